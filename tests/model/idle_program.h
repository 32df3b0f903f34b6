// Random allocations and frees of a program whose idle memory goes back: what was freed since the last look stays
// mapped, and in the end all goes. One run in three has refused calls.
// Threads: one; the machine's seed chooses when work completes.
#pragma once
#include <map>
#include <random>

#include "tests/model/bound_program.h"

namespace weir::tests {

class idle_program {
 public:
  explicit idle_program(std::uint64_t seed) : random_(seed * 0x9e3779b97f4a7c15u + 17), unkind_(below(3) == 0) {
    bench_.emplace(
        simulated{.devices = 1, .memory = 512 * page, .schedule = simulated::scheduling::seeded, .seed = seed + 1},
        options{}, [this](std::unique_ptr<driver::driver> m) {
          auto made = std::make_unique<mapped_handles>(std::move(m));
          mapped_ = made.get();
          return made;
        });
    for (std::size_t i = 0, n = 1 + below(3); i < n; ++i)
      lines_.push_back(&bench_->stream(0));
    device().let_idle_go_after(1);  // that time has passed by the next look
  }

  verdict run() {
    for (std::size_t i = 0, n = 40 + below(80); i < n && wrong_.ok(); ++i) {
      if (unkind_ && below(6) == 0)
        refuse();
      switch (below(8)) {
        case 0:
        case 1: take(); break;
        case 2:
        case 3: give(below(8)); break;
        case 4: work(line()); break;
        case 5: (void)bench_->control->run(); break;
        default: look();
      }
      for (auto const& w : device().validate())
        wrong_.note(check::invariants, w);
    }
    bench_->control->clear_failures();
    while (!live_.empty())
      give(0);
    for (std::size_t i = 0; i < 3 + lines_.size(); ++i) {  // each may record a fence that the next one needs
      if (!bench_->control->run())
        wrong_.note(check::stuck, bench_->control->stuck());
      device().return_idle();
    }
    if (auto const left = device().statistics().reserved_bytes.all.current)
      wrong_.note(check::answers, std::to_string(left) + " B that are free stay reserved");
    for (auto const& f : bench_->control->findings())
      wrong_.note(check_of(f), f);
    return wrong_;
  }
  std::uint64_t returned = 0, young = 0;  // bytes; blocks freed since the look before

 private:
  static constexpr std::size_t page = 64 << 10;
  static constexpr source_location at{"a program", "idle_program.h", 1};
  struct block {
    void* at;
    std::size_t bytes;
  };
  std::size_t below(std::size_t n) { return random_() % n; }
  memory::device_allocator& device() { return static_cast<memory::device_allocator&>(bench_->on(0)); }
  clock::stream_clock& line() { return *lines_[below(lines_.size())]; }
  void work(clock::stream_clock& s) {
    if (!bench_->machine().enqueue(0, s.handle(), {}, {[](void*) {}, nullptr, nullptr}).ok())
      wrong_.note(check::answers, "enqueue was refused");
  }
  void refuse() {
    static constexpr driver::call calls[] = {driver::call::unmap, driver::call::release, driver::call::record,
                                             driver::call::query_event};
    bench_->control->refusing().refuse({.of = calls[below(4)], .k = 1 + below(3)});
  }
  void take() {
    std::size_t const bytes = page + below(6) * page / 2;
    try {
      live_.push_back({device().allocate(line(), bytes, 0, at), bytes});
    } catch (out_of_memory const&) {}
    freed_.clear();  // it may have looked
  }
  void give(std::size_t way) {
    if (live_.empty())
      return;
    std::swap(live_[below(live_.size())], live_.back());
    block const b = live_.back();
    live_.pop_back();
    if (way < 2) {
      clock::stream_clock& user = line();
      device().record_use(b.at, user, at);
      work(user);
    }
    device().deallocate(b.at, nullptr, at);
    freed_.push_back(b);
  }
  std::map<driver::memory_handle, std::size_t> handles_of_freed() const {
    std::map<driver::memory_handle, std::size_t> all;
    for (block const& b : freed_)
      mapped_->under(reinterpret_cast<std::uintptr_t>(b.at), b.bytes, all);
    return all;
  }
  void look() {
    auto const stay = handles_of_freed();
    auto const before = device().reserved();
    device().return_idle();
    returned += before - device().reserved(), young += freed_.size();
    if (handles_of_freed() != stay)
      wrong_.note(check::answers, "memory went that was freed since the last look");
    freed_.clear();
  }

  std::mt19937_64 random_;
  bool const unkind_;
  mapped_handles* mapped_ = nullptr;
  std::optional<memory_bench> bench_;
  std::vector<clock::stream_clock*> lines_;
  std::vector<block> live_, freed_;  // freed_: since the last call that may have looked
  verdict wrong_;
};

}  // namespace weir::tests
