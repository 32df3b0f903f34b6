// The acts of clock_acts.h on the seeded machine. Actions of other threads run inside driver calls, before or after the
// call itself. Calls are refused, registrations end, and devices are lost.
// Threads: one. WEIR_TEST_TRACE=1 prints what a program does.
#pragma once
#include <iostream>
#include <utility>

#include "tests/model/clock_acts.h"

namespace weir::tests {

class clock_program : public clock_acts {
 public:
  explicit clock_program(std::uint64_t seed)
      : state_(seed * 2 + 1),
        bench_({.devices = 1 + static_cast<int>(draw(2)),
                .memory = 16_MiB,
                .schedule = simulated::scheduling::seeded,
                .seed = seed},
               {}, [this](std::unique_ptr<driver::driver> m) {
                 auto made = std::make_unique<ledger>(std::move(m));
                 book_ = made.get();
                 return made;
               }) {
    int const devices = bench_.core.device_count();
    for (int i = 0, n = 2 + static_cast<int>(draw(4)); i < n; ++i)
      new_stream(static_cast<int>(draw(static_cast<std::uint32_t>(devices))), clock::life::own);
    intrusions_ = draw(2) ? 25 : 0;
    refusals_ = draw(3) == 0;
    book_->other_threads = [this] {
      if (depth_ >= 3 || draw(100) >= intrusions_ || book_->size() > ledger::most - 64)
        return;
      say("{");
      watched_ >= 0 && draw(4) == 0 ? record_event(some_stream(), static_cast<std::uint32_t>(watched_)) : act();
      say("}");
    };
  }

  verdict run() {
    for (int i = 0, n = 10 + static_cast<int>(draw(50)); i < n && wrong_.ok() && book_->size() < ledger::most - 256;
         ++i)
      act();
    if (!wrong_.ok())
      return wrong_;
    book_->other_threads = nullptr;
    book_->forget_orders();
    end(lost_);
    judge();
    return wrong_;
  }
  std::uint64_t learned = 0;

 private:
  std::uint32_t draw(std::uint32_t n) override {
    state_ += 0x9e3779b97f4a7c15u;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return static_cast<std::uint32_t>(((z ^ (z >> 31)) >> 32) * n >> 32);
  }
  memory_bench& bench() override { return bench_; }
  bool right() const override { return wrong_.ok(); }
  void failed(check by, std::string what) override { wrong_.note(by, std::move(what)); }
  bool traces() const override {
    static bool const wanted = number_from_environment("WEIR_TEST_TRACE", 0) != 0;
    return wanted;
  }
  void told(std::string const& text) override {
    std::cout << std::string(2 * static_cast<std::size_t>(depth_), ' ') << text << '\n';
  }

  void new_stream(int device, clock::life l) {
    bench_.core.open(device, "test", source_location::current());
    auto const s = bench_.machine().create_stream(device, driver::stream_kind::independent, 0);
    if (s.ok())
      lines_.push_back({&bench_.clocks().make(device, s.value, l), {}, -1});
  }
  void act() {
    struct deeper {
      int& depth;
      explicit deeper(int& d) : depth(d) { ++depth; }
      ~deeper() { --depth; }
    } const in(depth_);
    std::size_t const i = some_stream();
    bool const may_refuse = refusals_ && draw(4) == 0;
    if (may_refuse) {
      static char const* const calls[] = {
          "record", "wait", "query_event", "create_event", "synchronize_event", "query_stream", "synchronize_stream",
          "any"};
      char const* const call = calls[draw(8)];
      say("the next ", call, " is refused");
      book_->fail_call(call, 1, draw(2) ? driver::code::failed : driver::code::out_of_memory);
    }
    std::uint32_t const kind = draw(kinds + 1);
    kind == kinds ? rare() : clock_acts::act(i, kind);
    if (may_refuse && depth_ == 1)
      book_->forget_orders();
    judge();
  }

  void rare() {
    auto& clocks = bench_.clocks();
    switch (draw(6)) {
      case 0: {
        int const device = static_cast<int>(draw(static_cast<std::uint32_t>(bench_.core.device_count())));
        say("synchronize with gpu:", device);
        (void)clocks.synchronize_device(device);
        break;
      }
      case 1: {  // a registration and its stream end, another begins: the driver may reuse the handle
        std::size_t const i = some_stream();
        auto& t = *lines_[i].t;
        if (depth_ > 1 || t.alive() == clock::life::retired)
          break;
        say("retire ", t.id());
        // no work follows on the stream, also by other threads
        auto others = std::exchange(book_->other_threads, nullptr);
        clocks.retire(t);
        book_->other_threads = std::move(others);
        lines_[i].tail = book_->tail(t.handle());
        (void)bench_.machine().destroy_stream(t.device(), t.handle());
        new_stream(t.device(), clock::life::foreign);
        break;
      }
      case 2:
        if (depth_ > 1 || draw(4))
          break;
        lost_ = static_cast<int>(draw(static_cast<std::uint32_t>(bench_.core.device_count())));
        say("gpu:", lost_, " is lost");
        bench_.control->lose_device(lost_);
        break;
      case 3: {  // a backlog
        auto& t = *lines_[some_stream()].t;
        if (depth_ > 1 || draw(8) || book_->size() > ledger::most - 384)
          break;
        say("80 fences on ", t.id());
        for (int k = 0; k < 80; ++k)
          (void)t.fence();
        break;
      }
      default: break;
    }
  }

  void judge() {
    judge_all();
    if (!wrong_.ok())
      return;
    if (auto const broken = clocks().validate(); !broken.empty())
      fail(check::invariants, broken.front());
    learned = complete_.size();
  }

  std::uint64_t state_;
  verdict wrong_;
  int depth_ = 0, lost_ = -1;
  std::uint32_t intrusions_ = 0;  // percent
  bool refusals_ = false;
  memory_bench bench_;
};

}  // namespace weir::tests
