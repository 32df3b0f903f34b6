// Captures among host threads, with forks and joins, while others work, allocate and free. Graphs are
// launched several times, anywhere. weir's clocks and the checker check every byte.
// Threads: those of a run.
#pragma once
#include <cstring>
#include <optional>
#include <set>

#include "tests/explore/explore.h"
#include "tests/explore/policies.h"

namespace weir::tests {

// A captured graph must be right whenever it is launched. Inside, the program relies
// only on order made inside, or on a wait that weir answered with "ok", which can only
// mean "complete". It orders everything else at the launch.
// Requires: its machine is made with a checker in front, as in programs.h.
class captures_among_threads {
 public:
  explicit captures_among_threads(trial& t)
      : t_(t), bench_(t.bench({.devices = 1, .memory = std::size_t{4} << (16 + t.draw(3))}, drawn_policies(t))) {
    for (int i = 0, n = 2 + static_cast<int>(t.draw(3)); i < n; ++i)
      lines_.push_back({&t.stream(0)});
    t.among_threads(3, 8, [this](int n) {
      own_event mine;
      int const steps = n == 3 ? 1 : n;  // the simplest draw is short, and so are tapes that need little of this thread
      for (int k = 0; k < steps && !t_.failed(); ++k)
        t_.draw(3) == 2 ? capture(mine) : step(mine);
    });
    if (!t.failed())
      end();
  }

 private:
  struct block {
    unsigned char* at;
    std::size_t bytes;
    unsigned char value;
    int home, written_on;      // streams
    std::vector<int> readers;  // streams that may still read it, ordered after the write
  };
  struct lane {
    clock::stream_clock* line;
    int users = 0;          // threads that enqueue work on it now
    bool captured = false;  // then only the capturing thread enqueues work
  };
  struct own_event {  // of one thread, recorded repeatedly inside and outside captures
    clock::event_ref event{};
    clock::fence_ref last{};
  };
  // Streams that one thread enqueues work on. Meanwhile no thread begins a capture on them.
  class entered {
   public:
    entered(captures_among_threads& of, std::vector<int> const& lines) : of_(of) {
      for (int s : lines) {
        if (!(all_ = all_ && !of.at(s).captured))
          break;
        ++of.at(s).users;
        on_.push_back(s);
      }
    }
    ~entered() {
      for (int s : on_)
        --of_.at(s).users;
    }
    entered(entered const&) = delete;
    explicit operator bool() const { return all_; }

   private:
    captures_among_threads& of_;
    std::vector<int> on_;
    bool all_ = true;
  };

  lane& at(int i) { return lines_[static_cast<std::size_t>(i)]; }
  clock::stream_clock& line(int i) { return *at(i).line; }
  memory::allocator& memory() { return bench_.on(0); }
  driver::driver& machine() { return bench_.machine(); }
  int some_line() { return static_cast<int>(t_.draw(static_cast<std::uint32_t>(lines_.size()))); }
  unsigned char some_value() { return static_cast<unsigned char>(1 + t_.draw(200)); }

  // Work on one block ---------------------------------------------------------------------------------------
  struct job {
    enum class kind : std::uint8_t { set, add, look } what;
    unsigned char* at;
    std::size_t bytes;
    unsigned char value;                    // set, add: this
    std::optional<unsigned char> expected;  // previous value; none: any value, the same in all bytes
    trial* t;
    char const* where;
  };
  static void run(void* p) {
    auto const& j = *static_cast<job*>(p);
    if (j.what != job::kind::set) {
      bool const whole = std::memcmp(j.at, j.at + 1, j.bytes - 1) == 0 && (!j.expected || j.at[0] == *j.expected);
      if (!whole)
        j.t->fail(std::string("a block in use was overwritten, seen ") + j.where);
    }
    if (j.what != job::kind::look)
      std::memset(j.at, j.what == job::kind::set ? j.value : j.at[0] + j.value, j.bytes);
  }
  void give_job(int s, block const& b, job::kind what, unsigned char value, std::optional<unsigned char> expected,
                char const* where) {
    driver::touch const all{reinterpret_cast<driver::address>(b.at), b.bytes, what != job::kind::look};
    t_.must(machine().enqueue(0, line(s).handle(), {&all, 1},
                              {run, [](void* p) { delete static_cast<job*>(p); },
                               new job{what, b.at, b.bytes, value, expected, &t_, where}}),
            "enqueue");
  }
  void write(block const& b, int s) { give_job(s, b, job::kind::set, b.value, {}, ""); }
  void read(block const& b, int s, char const* where) { give_job(s, b, job::kind::look, 0, b.value, where); }

  // Requires: `after` is entered. Returns: whether the order holds. No fence can be recorded on a captured
  // stream, so its earlier work may stay unreachable; but if weir says ordered, it is.
  bool order(int before, int after) {
    if (before == after)
      return true;
    entered const there(*this, {before});
    auto const is = line(after).wait(line(before).now());
    if (there || is.what != driver::code::not_permitted)
      t_.must(is, "wait");
    return is.ok();
  }

  std::optional<block> take() {
    auto all = blocks_.lock();
    if (all->empty())
      return std::nullopt;
    std::swap((*all)[t_.draw(static_cast<std::uint32_t>(all->size()))], all->back());
    block b = std::move(all->back());
    all->pop_back();
    return b;
  }
  void give(block b) { blocks_.lock()->push_back(std::move(b)); }

  // Requires: entered.
  std::optional<block> allocate(int s) {
    static constexpr std::size_t sizes[] = {64, 512, 4000, 20'000, 65'536, 100'000};
    try {
      std::size_t const bytes = sizes[t_.draw(6)];
      auto* const p = static_cast<unsigned char*>(memory().allocate(line(s), bytes, 0, source_location::current()));
      block const b{p, bytes, some_value(), s, s, {}};
      write(b, s);
      return b;
    } catch (out_of_memory const&) {
      return std::nullopt;
    }
  }
  void drop(block const& b) {  // enqueues nothing, because any thread may be capturing its home
    t_.say("frees a block of ", b.home, " written on ", b.written_on);
    memory().deallocate(b.at, b.written_on != b.home && t_.coin() ? &line(b.written_on) : nullptr,
                        source_location::current());
  }

  // Outside of captures -------------------------------------------------------------------------------------
  void step(own_event& mine) {
    int const s = some_line();
    entered const on(*this, {s});
    switch (t_.draw(12)) {
      case 0:
      case 1:
      case 2:
        if (!on)
          break;
        if (auto b = allocate(s))
          t_.say("took ", b->bytes, " bytes on ", s), give(std::move(*b));
        break;
      case 3:
      case 4:
        if (auto b = take()) {
          entered const home(*this, {b->home});
          if (home && t_.coin() && order(b->written_on, b->home))
            read(*b, b->home, "before its free");
          drop(*b);
        }
        break;
      case 5:
      case 6:
        if (!on)
          break;
        if (auto b = take()) {
          use(*b, s);
          give(std::move(*b));
        }
        break;
      case 7:
      case 8: return record(mine, s, bool(on));
      default: return rare(s, bool(on));
    }
  }

  void use(block& b, int s) {
    t_.say("uses a block of ", b.home, " on ", s);
    memory().record_use(b.at, line(s), source_location::current());
    if (!order(b.written_on, s))
      return;
    read(b, s, "on a stream it was marked for");
    b.readers.push_back(s);
    if (!t_.coin())
      return;
    for (int r : b.readers) {
      if (!order(r, s))
        return;
    }
    b.readers.clear();
    b.value = some_value();
    write(b, s);
    b.written_on = s;
  }

  void record(own_event& mine, int s, bool entered_it) {
    int const other = some_line();
    entered const there(*this, {other});
    if (!entered_it || !there || !has_event(mine))
      return;
    t_.say(other, " waits for an event of ", s);
    if (put(mine, s))
      t_.must(line(other).wait(mine.last, line(s)), "wait for an event");
  }
  bool has_event(own_event& mine) {
    if (mine.event)
      return true;
    auto made = bench_.clocks().take_event(0, driver::event_kind::order_only);
    t_.must(made.is, "take_event");
    mine.event = made.value;
    return made.ok();
  }
  bool put(own_event& mine, int s) {
    clock::stamp const until_now = line(s).now();
    auto f = line(s).record(mine.event, mine.last);
    t_.must(f.is, "record");
    if (!f.ok())
      return false;
    mine = {f.value->event, f.value};
    if (!f.value->captured)
      behind_events_[t_.draw(2)] = until_now;
    return true;
  }

  void rare(int s, bool entered_it) {
    switch (t_.draw(8)) {
      case 0: return asked(line(s).fence().is, "fence", entered_it);
      case 1: return asked(bench_.clocks().poll(line(s).now()).is, "poll", entered_it);
      case 2: return asked(bench_.clocks().synchronize(line(s).now()), "synchronize", entered_it);
      case 3: return void(memory().empty_cache());
      default: return asked(bench_.clocks().poll(behind_events_[t_.draw(2)]).is, "poll behind an event", false);
    }
  }
  // weir may refuse a query of a captured stream, which spoils nothing.
  void asked(driver::status s, char const* what, bool entered_it) {
    if (entered_it || s.what != driver::code::not_permitted)
      t_.must(s, what);
  }

  // Captures ------------------------------------------------------------------------------------------------
  struct part {  // of a graph, in an order that the capture keeps
    job::kind what;
    std::size_t block;
    unsigned char value;
  };
  struct captured_block {
    block b;
    int writer = -1;                                       // the member that wrote it last, inside
    std::vector<int> readers{};                            // members that read it since
    bool used = false, written = false, complete = false;  // complete: all earlier work on it is
    std::optional<unsigned char> value{};                  // if known inside
  };
  struct recording {
    std::vector<int> members;  // the first began the capture
    std::vector<captured_block> blocks{};
    std::vector<part> parts{};
    std::set<int> worked{};  // must join
  };

  bool reserve(int s) {
    if (at(s).captured || at(s).users)
      return false;
    return at(s).captured = true;
  }
  int some_member(recording const& r) { return r.members[t_.draw(static_cast<std::uint32_t>(r.members.size()))]; }

  void capture(own_event& mine) {
    int const s = some_line();
    if (!reserve(s))
      return;
    recording r{{s}};
    for (int i = 0, n = 1 + static_cast<int>(t_.draw(2)); i < n; ++i) {
      if (auto b = take())
        r.blocks.push_back({std::move(*b)});
    }
    static constexpr driver::capture_mode modes[] = {driver::capture_mode::global, driver::capture_mode::this_thread,
                                                     driver::capture_mode::relaxed};
    t_.say("captures ", s, " with ", r.blocks.size(), " blocks");
    t_.must(machine().begin_capture(0, line(s).handle(), modes[t_.draw(3)]), "begin_capture");
    if (auto const is = line(s).captured(); !is.ok() || !is.value)
      t_.fail("a captured stream is not known to be captured");
    for (int i = 0, n = 2 + static_cast<int>(t_.draw(8)); i < n && !t_.failed(); ++i)
      step_inside(r, mine);
    for (std::size_t i = r.members.size(); i-- > 1;) {
      int const m = r.members[i];
      if (r.worked.count(m) || t_.coin())
        order_inside(m, s, mine);
    }
    auto const graph = machine().end_capture(0, line(s).handle());
    t_.say("ends the capture of ", s);
    for (int m : r.members)
      at(m).captured = false;
    if (!graph.ok())
      return t_.fail("a capture was spoiled");
    launch_all(r, graph.value, mine);
    for (auto& x : r.blocks)
      give(std::move(x.b));
  }

  void step_inside(recording& r, own_event& mine) {
    int const m = some_member(r);
    switch (t_.draw(10)) {
      case 0:
      case 1:
      case 2:
      case 3: return work_inside(r, m, mine);
      case 4:
      case 5: return fork(r, m, mine);
      case 6: return rely_inside(r, m);
      case 7:
        if (auto b = take())
          drop(*b);
        return;
      case 8: return ask_inside(m);
      case 9: return step(mine);
    }
  }

  void order_inside(int before, int after, own_event& mine) {
    if (before == after)
      return;
    t_.say("inside, ", after, " waits for ", before);
    if (t_.coin())
      return t_.must(line(after).join(line(before)), "join");
    if (has_event(mine) && put(mine, before))
      t_.must(line(after).wait(mine.last, line(before)), "wait inside");
  }

  void fork(recording& r, int from, own_event& mine) {
    int const s = some_line();
    if (!reserve(s))
      return;
    order_inside(from, s, mine);
    r.members.push_back(s);
    if (t_.coin(80))
      work_inside(r, s, mine);
  }

  void work_inside(recording& r, int m, own_event& mine) {
    r.worked.insert(m);
    if (r.blocks.empty()) {  // empty, so that the fork has work
      return t_.must(machine().enqueue(0, line(m).handle(), {}, {[](void*) {}, nullptr, nullptr}), "enqueue");
    }
    std::size_t const k = t_.draw(static_cast<std::uint32_t>(r.blocks.size()));
    auto& x = r.blocks[k];
    part const p{static_cast<job::kind>(t_.draw(3)), k, some_value()};
    if (x.writer >= 0)
      order_inside(x.writer, m, mine);
    if (p.what == job::kind::look) {
      x.readers.push_back(m);
    } else {
      for (int reader : std::exchange(x.readers, {}))
        order_inside(reader, m, mine);
      x.writer = m;
    }
    x.used = true;
    x.written = x.written || p.what != job::kind::look;
    t_.say("inside, ", m,
           p.what == job::kind::look  ? " reads"
           : p.what == job::kind::set ? " writes"
                                      : " changes",
           " a block of ", x.b.home);
    if (p.what == job::kind::set && t_.coin()) {
      t_.must(machine().fill(0, line(m).handle(), x.b.at, p.value, 1, x.b.bytes), "fill");
    } else {
      give_job(m, x.b, p.what, p.value, x.value, "in a graph");
    }
    if (p.what == job::kind::set)
      x.value = p.value;
    if (p.what == job::kind::add && x.value)
      x.value = static_cast<unsigned char>(*x.value + p.value);
    r.parts.push_back(p);
  }

  // An "ok" now means complete, because order known before the capture does not hold for its graph.
  void rely_inside(recording& r, int m) {
    auto b = take();
    if (!b)
      return;
    std::vector<int> users = b->readers;
    users.push_back(b->written_on);
    for (int u : users) {
      // a member's own block needs no query
      if (std::find(r.members.begin(), r.members.end(), u) != r.members.end())
        return give(std::move(*b));
      auto const is = line(m).wait(line(u).now());
      if (is.what != driver::code::not_permitted)
        t_.must(is, "wait inside for what is outside");
      if (!is.ok())
        return give(std::move(*b));
    }
    t_.say("inside, a block of ", b->home, " is said to be free of earlier work");
    r.blocks.push_back({.b = std::move(*b), .complete = true});
  }

  void ask_inside(int m) {
    clock::stamp const s = line(m).now();
    auto const refused = [&](driver::status is, char const* what) {
      if (is.what != driver::code::not_permitted)
        t_.fail(std::string(what) + " of a captured stream answered " + std::string(driver::name_of(is.what)));
    };
    switch (t_.draw(4)) {
      case 0: return refused(line(m).fence().is, "fence");
      case 1: return refused(line(m).query().is, "query");
      case 2:
        if (auto const is = bench_.clocks().poll(s).is; !is.ok())
          refused(is, "poll");
        return;
      case 3:
        try {
          memory().deallocate(memory().allocate(line(m), t_.draw(2) ? 64 : 20'000, 0, source_location::current()),
                              nullptr, source_location::current());
          if (!line(m).seen_captured())
            t_.fail("memory on a captured stream was not of its graph");
        } catch (out_of_memory const&) {}
    }
  }

  // Launches ------------------------------------------------------------------------------------------------
  void launch_all(recording& r, driver::graph_handle graph, own_event& mine) {
    auto const made = machine().instantiate(0, graph);
    t_.must(made.is, "instantiate");
    bool const early = t_.coin();
    if (early)
      t_.must(machine().destroy_graph(graph), "destroy_graph");
    for (int n = static_cast<int>(t_.draw(4)); n > 0 && !t_.failed(); --n) {
      launch(r, made.value, some_line());
      if (t_.coin())
        step(mine);
      if (t_.coin())
        use_between(r);
    }
    t_.must(machine().destroy_executable(made.value), "destroy_executable");
    if (!early)
      t_.must(machine().destroy_graph(graph), "destroy_graph");
  }

  void launch(recording& r, driver::executable_handle graph, int s) {
    entered const on(*this, {s});
    if (!on)
      return;
    for (auto& x : r.blocks) {
      if (!x.used)
        continue;
      memory().record_use(x.b.at, line(s), source_location::current());
      if (std::exchange(x.complete, false))
        continue;
      if (!order(x.b.written_on, s))
        return;
      for (int reader : x.written ? x.b.readers : std::vector<int>{}) {
        if (!order(reader, s))
          return;
      }
    }
    t_.say("launches on ", s);
    t_.must(machine().launch_graph(0, line(s).handle(), graph), "launch_graph");
    for (auto const& p : r.parts) {
      auto& v = r.blocks[p.block].b.value;
      if (p.what == job::kind::set)
        v = p.value;
      if (p.what == job::kind::add)
        v = static_cast<unsigned char>(v + p.value);
    }
    for (auto& x : r.blocks) {
      if (x.written)
        x.b.written_on = s, x.b.readers.clear();
      else if (x.used)
        x.b.readers.push_back(s);
    }
  }

  void use_between(recording& r) {
    int const s = some_line();
    entered const on(*this, {s});
    if (!on || r.blocks.empty())
      return;
    auto& x = r.blocks[t_.draw(static_cast<std::uint32_t>(r.blocks.size()))];
    x.complete = false;
    use(x.b, s);
  }

  void end() {
    auto& all = *blocks_.lock();  // all other threads have ended
    for (auto& b : all) {
      if (order(b.written_on, b.home))
        read(b, b.home, "at the end");
    }
    for (auto& l : lines_)
      t_.must(bench_.clocks().synchronize(l.line->now()), "synchronize");
    check("with live blocks: ");
    for (auto const& b : all)
      memory().deallocate(b.at, nullptr, source_location::current());
    t_.expect_empty(memory(), "after all was freed and complete");
    check("after all was freed: ");
  }
  void check(char const* when) {
    t_.expect_none(memory().validate(), when);
    t_.expect_none(bench_.clocks().validate(), when);
  }

  trial& t_;
  memory_bench& bench_;
  std::vector<lane> lines_;
  base::guarded<std::vector<block>> blocks_;
  clock::stamp behind_events_[2];  // covered by events of threads
};

}  // namespace weir::tests
