// Random programs of allocation, frees, marks, waits and copies on the seeded machine:
// every byte of every block is checked.
// Threads: one; the machine's seed chooses what its devices do.
//
// A program relies only on its own order: it fills a block on its home stream, orders a reader after that, by
// weir's clocks or by an event unknown to weir, and reads. The rest is weir's task.
#pragma once
#include <array>
#include <functional>
#include <iostream>
#include <optional>
#include <random>

#include "runtime/memory/heap/fast_path.h"
#include "simulator/checker/race_checker.h"
#include "tests/model/painted.h"
#include "tests/model/policies.h"
#include "tests/model/verdict.h"
#include "tests/support/memory_bench.h"

namespace weir::tests {

class memory_program {
 public:
  explicit memory_program(std::uint64_t seed, about what = about::drawn_policies)
      : random_(seed * 0x9e3779b97f4a7c15u + 1),
        small_(what == about::small_blocks),
        devices_(below(3) == 0 ? 2 : 1),
        capacity_((std::size_t{1} + below(4)) << (below(2) ? 20 : 18)) {
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
    bench_.emplace(like, o, [&](std::unique_ptr<driver::driver> m) {
      if (!maps_)
        m = std::make_unique<no_mapping>(std::move(m));
      return watched ? driver::check::wrap(std::move(m)).machine : std::move(m);
    });
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

 private:
  friend class pools_program;
  struct expected {
    memory_program* in;
    unsigned char const* at;
    std::size_t bytes;
    std::uint32_t pattern;
    char const* where;
  };

  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  int device_of(int line) { return lines_[static_cast<std::size_t>(line)]->device(); }
  clock::stream_clock& line(int i) { return *lines_[static_cast<std::size_t>(i)]; }
  memory::allocator& on(int device) { return bench_->on(device); }
  driver::driver& machine() { return bench_->machine(); }
  void fail(check by, std::string what) { wrong_.note(by, std::move(what)); }
  template <class... Words>
  void say(Words const&... words) const {  // traces with WEIR_TEST_TRACE=1
    static bool const wanted = number_from_environment("WEIR_TEST_TRACE", 0) != 0;
    if (wanted)
      ((std::cout << ... << words) << '\n');
  }
  void must(driver::status s, char const* what) {
    if (!s.ok())
      fail(check::answers, std::string(what) + " answered " + std::string(driver::name_of(s.what)));
  }

  void fill(piece_of_memory const& b, int s) {
    if (b.bytes == 0)
      return;
    say("fill ", static_cast<void const*>(b.at), " on ", s, " with ", b.pattern);
    if (b.bytes % 4 == 0 && below(2)) {
      must(machine().fill(device_of(s), line(s).handle(), b.at, b.pattern, 4, b.bytes / 4), "fill");
      return;
    }
    enqueue(b, s, true, "", [](void* p) {
      auto const* const x = static_cast<expected*>(p);
      paint(const_cast<unsigned char*>(x->at), x->bytes, x->pattern);
    });
  }

  void look(piece_of_memory const& b, int s, char const* where) {
    if (b.bytes == 0)
      return;
    say("read ", static_cast<void const*>(b.at), " on ", s, ", ", where);
    enqueue(b, s, false, where, [](void* p) {
      auto const* const x = static_cast<expected*>(p);
      if (!painted(x->at, x->bytes, x->pattern))
        x->in->fail(check::bytes, std::string("a block in use was overwritten, seen ") + x->where);
    });
  }

  void enqueue(piece_of_memory const& b, int s, bool writes, char const* where, void (*run)(void*)) {
    driver::touch const t{reinterpret_cast<driver::address>(b.at), b.bytes, writes};
    must(machine().enqueue(device_of(s), line(s).handle(), {&t, 1},
                           {run, [](void* p) { delete static_cast<expected*>(p); },
                            new expected{this, b.at, b.bytes, b.pattern, where}}),
         "enqueue");
  }

  void refuse_some_call() {  // a call that only weir makes
    static constexpr std::array<char const*, 6> names{"create", "map", "grant", "unmap", "release", "create_segment"};
    static constexpr std::array<driver::code, 3> codes{driver::code::failed, driver::code::out_of_memory,
                                                       driver::code::not_permitted};
    bench_->control->fail_call(names[static_cast<std::size_t>(below(6))], static_cast<std::uint64_t>(1 + below(4)),
                               codes[static_cast<std::size_t>(below(3))]);
  }

  void order(int before, int after) {  // earlier work of `before` precedes later work of `after`
    if (before == after)
      return;
    say(before, " before ", after);
    if (below(2)) {
      clock::named_in_call const named(line(before));
      return must(line(after).wait(line(before).now()), "wait");
    }
    // an event unknown to weir
    auto const e = machine().create_event(device_of(before), driver::event_kind::order_only);
    must(e.is, "create_event");
    must(machine().record(device_of(before), line(before).handle(), e.value), "record");
    must(machine().wait(device_of(after), line(after).handle(), e.value), "wait");
    must(machine().destroy_event(device_of(before), e.value), "destroy_event");
  }

  std::size_t some_size() {
    return tests::some_size([this](int n) { return below(n); }, small_ ? 0 : capacity_);
  }

  void allocate() { allocate(below(static_cast<int>(lines_.size()))); }
  void allocate(int s) {
    std::size_t const bytes = some_size();
    std::size_t const alignment = below(6) == 0 ? std::size_t{1} << below(18) : 0;
    memory::allocator& a = on(device_of(s));
    void* p = nullptr;
    try {
      if (!(p = memory::fast_allocate(&line(s), bytes, alignment)))
        p = a.allocate(line(s), bytes, alignment, source_location::current());
    } catch (out_of_memory const& e) {
      ++ooms;
      auto const borrowed = [](auto const* l) { return l->alive() == clock::life::borrowed; };
      // What such a stream leaves unfenced stays in its heap.
      if (std::ranges::any_of(lines_, borrowed) || e.report().pool.limit || kept_)
        return;
      if (!unkind_ && maps_ && !captured_ && a.statistics().allocation.all.current == 0 && bytes < capacity_ / 4)
        fail(check::answers, "out of memory on an empty device:\n" + e.report().text());
      return;
    } catch (error const& e) {
      if (!unkind_)
        fail(check::answers, "allocate: " + std::string(e.operands()));
      return;
    }
    ++allocations;
    say("allocate ", p, ", ", bytes, " B aligned to ", alignment, " on ", s);
    if (alignment && reinterpret_cast<std::uintptr_t>(p) % alignment)
      fail(check::answers, "a block is not aligned as asked");
    auto const found = a.find(static_cast<char*>(p) + (bytes ? bytes - 1 : 0));
    if (!found || found->base != p || found->bytes != bytes || found->home != &line(s))
      fail(check::answers, "find does not know a block it just gave");
    piece_of_memory const b{static_cast<unsigned char*>(p), bytes, static_cast<std::uint32_t>(random_()), s, s, {}};
    for (auto const& other : blocks_) {
      if (b.at < other.at + other.bytes && other.at < b.at + b.bytes)
        fail(check::answers, "two live blocks overlap");
    }
    fill(b, s);
    blocks_.push_back(b);
  }

  piece_of_memory* some_block() {
    return blocks_.empty() ? nullptr : &blocks_[static_cast<std::size_t>(below(static_cast<int>(blocks_.size())))];
  }
  int some_line_of(int device) {
    for (;;) {
      int const s = below(static_cast<int>(lines_.size()));
      if (device_of(s) == device)
        return s;
    }
  }

  void free_used(piece_of_memory const& b, int by) {
    clock::named_in_call const named(line(by));
    if (!memory::fast_deallocate_used(&line(by), b.at))
      on(device_of(b.home)).deallocate(b.at, &line(by), source_location::current());
  }
  void free_block() {
    piece_of_memory* const b = some_block();
    if (!b)
      return;
    if (below(2)) {
      order(b->ordered, b->home);
      look(*b, b->home, "on its home stream before its free");
    }
    if (b->ordered != b->home && below(2)) {
      free_used(*b, b->ordered);  // also if marked: an exact last use
    } else if (!memory::fast_deallocate(b->at)) {
      on(device_of(b->home)).deallocate(b->at, nullptr, source_location::current());
    }
    say("free ", static_cast<void const*>(b->at), " of ", b->home, ", last written on ", b->ordered);
    *b = blocks_.back();
    blocks_.pop_back();
  }

  void use_elsewhere() {
    piece_of_memory* const b = some_block();
    if (!b)
      return;
    int const t = some_line_of(device_of(b->home));
    on(device_of(b->home)).record_use(b->at + (b->bytes ? b->bytes / 2 : 0), line(t), source_location::current());
    order(b->ordered, t);
    look(*b, t, "on a stream it was marked for");
    b->readers.push_back(t);
    if (below(2)) {
      for (int r : b->readers)
        order(r, t);
      b->readers.clear();
      b->pattern = static_cast<std::uint32_t>(random_());
      fill(*b, t);
      b->ordered = t;
    }
  }

  void use_elsewhere_once() {  // not marked: the free names the stream
    piece_of_memory* const b = some_block();
    if (!b)
      return;
    int const t = some_line_of(device_of(b->home));
    order(b->ordered, t);
    look(*b, t, "on the stream its free names");
    say("free ", static_cast<void const*>(b->at), " of ", b->home, ", last used on ", t);
    free_used(*b, t);
    *b = blocks_.back();
    blocks_.pop_back();
  }

  void copy_block() {  // within a device or between two
    piece_of_memory* const from = some_block();
    if (!from || from->bytes == 0)
      return;
    int const s = below(static_cast<int>(lines_.size())), here_is = device_of(from->home), there = device_of(s);
    void* p = nullptr;
    try {
      p = on(there).allocate(line(s), from->bytes, 0, source_location::current());
    } catch (error const&) {
      ++ooms;
      return;
    }
    ++allocations;
    on(here_is).record_use(from->at, line(s), source_location::current());
    order(from->ordered, s);
    say("copy ", static_cast<void const*>(from->at), " to ", p, " on ", s);
    if (here_is == there)
      must(machine().copy(there, line(s).handle(), p, from->at, from->bytes), "copy");
    else
      must(machine().copy_peer(there, line(s).handle(), p, there, from->at, here_is, from->bytes), "copy_peer");
    from->readers.push_back(s);
    blocks_.push_back({static_cast<unsigned char*>(p), from->bytes, from->pattern, s, s, {}});
  }

  void hand_over() {
    piece_of_memory* const b = some_block();
    auto const borrowed = [&](int i) { return line(i).alive() == clock::life::borrowed; };
    if (!b || std::ranges::any_of(b->readers, borrowed))
      return;  // no call names those
    clock::named_in_call const named(line(b->home));
    int const t = some_line_of(device_of(b->home));
    say("set_stream ", static_cast<void const*>(b->at), " from ", b->home, " to ", t);
    on(device_of(b->home)).set_stream(b->at, line(t), source_location::current());
    b->home = b->ordered = t;  // ordered after its home and all its marks
    b->readers.clear();
    look(*b, t, "on its new home stream");
  }

  void misuse() {
    piece_of_memory* const b = some_block();
    if (!b)
      return;
    memory::allocator& a = on(device_of(b->home));
    auto const refused = [&](void* p) {
      try {
        a.deallocate(p, nullptr, source_location::current());
        fail(check::answers, "a wrong free was taken");
      } catch (invalid_use const&) {}
    };
    if (b->bytes > 1)
      refused(b->at + 1 + below(static_cast<int>(b->bytes - 1)));
    refused(this);
    unsigned char* const at = b->at;
    a.deallocate(at, &line(b->ordered), source_location::current());
    *b = blocks_.back();
    blocks_.pop_back();
    refused(at);
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
    int const s = below(static_cast<int>(lines_.size()));
    driver::capture_mode const modes[] = {driver::capture_mode::global, driver::capture_mode::this_thread,
                                          driver::capture_mode::relaxed};
    say("capture on ", s);
    must(machine().begin_capture(device_of(s), line(s).handle(), modes[below(3)]), "begin_capture");
    captured_ = true;
    if (line(s).alive() == clock::life::borrowed)
      (void)line(s).lane();  // by a call that names it
    must(machine().enqueue(device_of(s), line(s).handle(), {}, {[](void*) {}, nullptr, nullptr}), "enqueue");
    for (int i = 0, n = 1 + below(6); i < n && wrong_.ok(); ++i) {
      int const t = below(static_cast<int>(lines_.size()));
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

  void drop_block() {  // enqueues nothing
    piece_of_memory* const b = some_block();
    if (!b)
      return;
    say("free ", static_cast<void const*>(b->at), " of ", b->home);
    free_used(*b, b->ordered);
    *b = blocks_.back();
    blocks_.pop_back();
  }

  void fence(clock::stream_clock& s) {
    clock::named_in_call const named(s);
    must(s.fence().is, "fence");
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
    int const i = below(static_cast<int>(lines_.size()));
    if (line(i).alive() == clock::life::own)
      return;
    for (std::size_t k = 0; k < blocks_.size();) {
      piece_of_memory& b = blocks_[k];
      if (b.home == i) {
        on(device_of(i)).deallocate(b.at, &line(b.ordered), source_location::current());
        b = blocks_.back();
        blocks_.pop_back();
        continue;
      }
      if (b.ordered == i) {
        order(i, b.home);
        b.ordered = b.home;
      }
      if (std::erase(b.readers, i))
        order(i, b.home), b.readers.push_back(b.home);
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
    switch (below(22)) {
      case 21: return capture();
      case 20: return replace_stream();
      case 0:
      case 1:
      case 2:
      case 3:
      case 4:
      case 5: return allocate();
      case 6:
      case 7:
      case 8:
      case 9: return free_block();
      case 10:
      case 11:
      case 12: return use_elsewhere();
      case 13: return below(2) ? copy_block() : use_elsewhere_once();
      case 14: return hand_over();
      case 15: return order(below(static_cast<int>(lines_.size())), below(static_cast<int>(lines_.size())));
      case 16: return fence(line(below(static_cast<int>(lines_.size()))));
      case 17: return must(bench_->clocks().poll(line(below(static_cast<int>(lines_.size()))).now()).is, "poll");
      case 18: return below(4) ? misuse() : (void)on(below(devices_)).empty_cache();
      default:
        return below(3) ? allocate()
                        : must(bench_->clocks().synchronize(line(below(static_cast<int>(lines_.size()))).now()),
                               "synchronize");
    }
  }

  void end() {
    for (auto const& b : blocks_) {
      order(b.ordered, b.home);
      look(b, b.home, "at the end");
    }
    for (auto* l : lines_)
      must(bench_->clocks().synchronize(l->now()), "synchronize");
    validate("with live blocks");
    while (!blocks_.empty()) {
      on(device_of(blocks_.back().home)).deallocate(blocks_.back().at, nullptr, source_location::current());
      blocks_.pop_back();
    }
    if (before_end_)
      before_end_();
    for (int d = 0; d < devices_; ++d) {
      on(d).empty_cache();
      auto const s = on(d).statistics();
      if (s.reserved_bytes.all.current || s.pending_bytes.all.current || s.allocated_bytes.all.current) {
        fail(check::invariants,
             "after all was freed and complete, " + std::to_string(s.reserved_bytes.all.current) + " B stay reserved");
      }
    }
    validate("after all was freed");
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
    bench_.reset();
    for (auto const& one : left)
      fail(check::census, "left at the end: " + one);
  }

  void validate(char const* when) {
    for (int d = 0; d < devices_; ++d) {
      for (auto const& w : on(d).validate())
        fail(check::invariants, std::string(when) + ": " + w);
    }
    for (auto const& w : bench_->clocks().validate())
      fail(check::invariants, std::string(when) + ": " + w);
  }

  std::mt19937_64 random_;
  bool const small_;
  int const devices_;
  std::size_t const capacity_;
  verdict wrong_;
  std::function<void()> before_step_, before_end_;
  bool maps_ = true, unkind_ = false, collectives_ = false, captured_ = false, kept_ = false;  // by registered pools
  std::shared_ptr<int> arrived_;   // parts of the newest collective
  std::optional<int> other_part_;  // the stream of the missing part
  std::vector<piece_of_memory> blocks_;
  std::vector<clock::stream_clock*> lines_;
  std::optional<memory_bench> bench_;

 public:
  std::uint64_t allocations = 0, ooms = 0;
};

}  // namespace weir::tests
