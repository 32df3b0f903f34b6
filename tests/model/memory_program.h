// The acts of memory_acts.h on the seeded machine, with other processes' streams, collectives, captures, misuse and
// refused calls.
// Threads: one; the machine's seed chooses what its devices do.
#pragma once
#include <array>
#include <iostream>
#include <optional>
#include <random>

#include "simulator/checker/race_checker.h"
#include "tests/model/memory_acts.h"
#include "tests/model/policies.h"

namespace weir::tests {

class memory_program : public memory_acts {
 public:
  using numbers = std::vector<std::uint32_t>;
  // given: the program's numbers, instead of those by the seed. After their end all are 0.
  explicit memory_program(std::uint64_t seed, about what = about::drawn_policies, std::optional<numbers> given = {})
      : random_(seed * 0x9e3779b97f4a7c15u + 1), given_(std::move(given)) {
    small_ = what == about::small_blocks;
    devices_ = below(3) == 0 ? 2 : 1;
    std::size_t const units = 1 + static_cast<std::size_t>(below(4));
    capacity_ = units << (below(2) ? 20 : 18);
    options o;
    if (below(4) == 0)
      o.device_limit = capacity_ / 2;
    choose_policies(o, seed, what);
    collectives_ = below(4) == 0;
    simulated like{
        .devices = devices_, .memory = capacity_, .schedule = simulated::scheduling::seeded, .seed = seed + 1};
    if (collectives_)
      like.connections = 1 << 20;  // ranks on one may block each other: the program's fault
    maps_ = below(10) != 0;
    bool const watched = below(2) != 0;
    own_.emplace(like, o, [&](std::unique_ptr<driver::driver> m) {
      if (!maps_)
        m = std::make_unique<no_mapping>(std::move(m));
      return watched ? driver::check::wrap(std::move(m)).machine : std::move(m);
    });
    bench_ = &*own_;
    if (what == about::drawn_policies && idle_goes(o, seed))
      let_idle_go(*bench_, devices_);
    bool const foreign = below(4) == 0;
    for (int i = 0, n = 2 + below(3); i < n; ++i) {
      lines_.push_back(nullptr);
      new_line(i, i % devices_, foreign && below(2) ? external(i) : clock::life::own);
    }
    unkind_ = below(6) == 0;
    if (collectives_) {
      for (auto* l : lines_)
        l->set_carries_collectives(below(4) != 0);
      bench_->memory().add_callback(
          [](void* p, memory_report const&) { return static_cast<memory_program*>(p)->give_the_other_part(); }, this,
          0);
    }
  }

  verdict run() {
    for (int i = 0, n = 20 + below(60); i < n && wrong_.ok(); ++i) {
      if (unkind_ && below(6) == 0)
        refuse_some_call();
      if (before_step_)
        before_step_();
      step();
    }
    if (unkind_)
      bench_->control->clear_failures();
    if (wrong_.ok())
      end();
    if (wrong_.by == check::answers && !bench_->control->run()) {  // out of memory because nothing ever completes
      wrong_ = {};
      wrong_.note(check::stuck, bench_->control->stuck());
    }
    if (auto const found = bench_->control->findings(); !found.empty()) {
      if (wrong_.by == check::answers)
        wrong_ = {};  // expected: a device lost by its own work refuses calls
      wrong_.note(check_of(found.front()), found.front());
    }
    judge_by_checker();
    if (wrong_.ok())
      end_machine();
    if (!wrong_.ok())
      wrong_.what += std::string(unkind_ ? ", driver calls refused" : "") + (maps_ ? "" : ", segments") +
                     (devices_ > 1 ? ", two devices" : "");
    return wrong_;
  }
  numbers const& drawn() const noexcept { return drawn_; }
  std::ostream* trace = number_from_environment("WEIR_TEST_TRACE", 0) ? &std::cout : nullptr;  // null: none

 private:
  friend class pools_program;
  std::uint32_t number(std::uint32_t n) override {
    std::uint64_t const by_seed = random_();
    return take(by_seed % n) % n;
  }
  std::uint32_t some_pattern() override { return take(random_()); }
  std::uint32_t take(std::uint64_t by_seed) {
    std::size_t const at = drawn_.size();
    drawn_.push_back(!given_ ? static_cast<std::uint32_t>(by_seed) : at < given_->size() ? (*given_)[at] : 0);
    return drawn_.back();
  }
  void fail(check by, std::string what) override { wrong_.note(by, std::move(what)); }
  bool traces() const override { return trace; }
  void told(std::string const& text) override { *trace << text << '\n'; }

  void refuse_some_call() {  // a call that only weir makes
    static constexpr std::array<char const*, 6> names{"create", "map", "grant", "unmap", "release", "create_segment"};
    static constexpr std::array<driver::code, 3> codes{driver::code::failed, driver::code::out_of_memory,
                                                       driver::code::not_permitted};
    bench_->control->fail_call(names[static_cast<std::size_t>(below(6))], static_cast<std::uint64_t>(1 + below(4)),
                               codes[static_cast<std::size_t>(below(3))]);
  }
  void rare() override { below(4) ? misuse() : memory_acts::rare(); }
  void misuse() {
    piece* const at = some_block();
    if (!at)
      return;
    memory::allocator& a = on(device_of(at->home));
    auto const refused = [&](void* p) {
      try {
        a.deallocate(p, nullptr, source_location::current());
        fail(check::answers, "a wrong free was taken");
      } catch (invalid_use const&) {}
    };
    if (at->bytes > 1)
      refused(at->at + 1 + below(static_cast<int>(at->bytes - 1)));
    refused(this);
    auto const b = take_out(*at);
    a.deallocate(b->at, &line(b->ordered), source_location::current());
    refused(b->at);
  }

  // Two streams wait for each other's parts.
  void give_part(int s) {
    using arrived = std::shared_ptr<int>;
    void (*const drop)(void*) = [](void* p) { delete static_cast<arrived*>(p); };
    must(machine().enqueue(device_of(s), line(s).handle(), {},
                           {[](void* p) { ++**static_cast<arrived*>(p); }, drop, new arrived(arrived_)}),
         "enqueue");
    driver::work rest{[](void*) {}, drop, new arrived(arrived_)};
    rest.ready = [](void* p) { return **static_cast<arrived*>(p) == 2; };
    must(machine().enqueue(device_of(s), line(s).handle(), {}, rest), "enqueue");
  }
  bool give_the_other_part() {
    if (!other_part_)
      return false;
    say("the other part on ", *other_part_);
    give_part(*std::exchange(other_part_, std::nullopt));
    return true;
  }
  void begin_collective() {
    std::vector<int> able;
    for (int i = 0; i < static_cast<int>(lines_.size()); ++i) {
      if (line(i).carries_collectives())
        able.push_back(i);
    }
    if (able.size() < 2)
      return;
    int const first = below(static_cast<int>(able.size()) - 1);
    say("a collective's part on ", able[static_cast<std::size_t>(first)]);
    arrived_ = std::make_shared<int>(0);
    give_part(able[static_cast<std::size_t>(first)]);
    other_part_ = able[static_cast<std::size_t>(first) + 1];
    for (int i = 0, n = below(6); i < n && other_part_ && wrong_.ok(); ++i)
      below(3) ? allocate() : drop_block();
    give_the_other_part();
  }
  // Captured work never runs. weir must not spoil the capture.
  void capture() {
    int const s = some_line();
    driver::capture_mode const modes[] = {driver::capture_mode::global, driver::capture_mode::this_thread,
                                          driver::capture_mode::relaxed};
    say("capture on ", s);
    must(machine().begin_capture(device_of(s), line(s).handle(), modes[below(3)]), "begin_capture");
    captured_ = true;
    if (line(s).alive() == clock::life::borrowed)
      (void)line(s).lane();  // by a call that names it
    must(machine().enqueue(device_of(s), line(s).handle(), {}, {[](void*) {}, nullptr, nullptr}), "enqueue");
    for (int i = 0, n = 1 + below(6); i < n && wrong_.ok(); ++i) {
      int const t = some_line();
      if (below(4) == 0)
        drop_block();
      else if (t != s)
        allocate(t);
      else
        (void)bench_->clocks().poll(line(t).now());
    }
    captured_ = false, line(s).saw_captured(false);
    auto const graph = machine().end_capture(device_of(s), line(s).handle());
    if (!graph.ok())
      return fail(check::answers, "a capture was spoiled");
    must(machine().destroy_graph(graph.value), "destroy_graph");
  }

  static clock::life external(int i) { return i % 2 ? clock::life::borrowed : clock::life::foreign; }
  void new_line(int i, int device, clock::life l) {
    bench_->core.open(device, "test", source_location::current());
    auto const made = machine().create_stream(device, driver::stream_kind::independent, 0);
    must(made.is, "create_stream");
    lines_[static_cast<std::size_t>(i)] = &bench_->clocks().make(device, made.value, l);
  }
  // A registration and its stream end, another begins: the driver may reuse the handle.
  void replace_stream() {
    int const i = some_line();
    if (line(i).alive() == clock::life::own)
      return;
    for (std::size_t k = 0; k < blocks_.size();) {
      piece& b = *blocks_[k];
      if (b.home == i) {
        auto const gone = take_out(b);
        on(device_of(i)).deallocate(gone->at, &line(gone->ordered), source_location::current());
        continue;
      }
      if (b.ordered == i) {
        order(i, b.home);
        b.ordered = b.home;
      }
      if (std::erase(b.readers, i)) {
        order(i, b.home);
        b.readers.push_back(b.home);
      }
      ++k;
    }
    say("stream ", i, " ends, another begins");
    int const device = device_of(i);
    bool const carried = line(i).carries_collectives();
    bench_->clocks().retire(line(i));
    must(machine().destroy_stream(device, line(i).handle()), "destroy_stream");
    new_line(i, device, external(i));
    line(i).set_carries_collectives(carried);
  }

  void step() {
    if (collectives_ && below(10) == 0)
      return begin_collective();
    int const kind = below(kinds + 2);
    if (kind < kinds)
      return act(kind);
    kind == kinds ? replace_stream() : capture();
  }

  void judge_by_checker() {
    if (auto* const checker = machine().checker())
      for (auto const& f : checker->findings())
        wrong_.note(check_of(f.what), f.text);
  }
  void end_machine() {
    for (int i = 0; i < static_cast<int>(lines_.size()); ++i) {
      auto const handle = line(i).handle();
      int const device = device_of(i);
      bench_->clocks().retire(line(i));
      must(machine().destroy_stream(device, handle), "destroy_stream");
    }
    std::vector<std::string> left;
    bench_->control->at_end([&left](std::vector<std::string> const& census) { left = census; });
    own_.reset();
    for (auto const& one : left)
      fail(check::census, "left at the end: " + one);
  }

  std::mt19937_64 random_;
  std::optional<numbers> const given_;
  numbers drawn_;
  verdict wrong_;
  std::function<void()> before_step_;
  bool collectives_ = false;
  std::shared_ptr<int> arrived_;   // parts of the newest collective
  std::optional<int> other_part_;  // the stream of the missing part
  std::optional<memory_bench> own_;
};

}  // namespace weir::tests
