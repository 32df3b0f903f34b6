// Random programs of records, waits, polls and refusals check the clocks against a graph of all driver calls.
// If the clocks say ordered or complete, the graph must have a path. The clocks must say what they promise to
// know. Actions of other threads run inside driver calls, before or after the call itself.
// Threads: one. WEIR_TEST_TRACE=1 prints what a program does.
#pragma once
#include <functional>
#include <iostream>
#include <map>
#include <set>
#include <sstream>

#include "tests/model/verdict.h"
#include "tests/support/ledger.h"
#include "tests/support/memory_bench.h"

namespace weir::tests {

class clock_program {
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
    // In the end everything completes, and the clocks must find that out.
    for (std::size_t i = 0; i < stamps_.size() && wrong_.ok(); ++i) {
      clock::stamp const s = stamps_[i].s;
      auto const r = bench_.clocks().synchronize(s);
      if (lost_ >= 0)
        continue;  // waits for the lost device may never end
      if (!r.ok() || !bench_.clocks().complete(s))
        fail(check::order, "in the end stamp", i, "is not complete");
    }
    judge();
    return wrong_;
  }
  std::uint64_t answers = 0, yes = 0, learned = 0;

 private:
  using known = std::set<std::size_t>;  // stamps
  struct taken {
    clock::stamp s;
    std::size_t stream;
    int tail;     // the stream's last operation at that time
    known order;  // stamps that its stream must have known then
  };
  struct line {
    clock::stream_clock* t;
    known order;    // stamps that must be covered
    int tail = -1;  // retired: its last operation; another stream may have its handle
  };
  struct user_event {
    clock::event_ref event;
    clock::fence_ref last;
    std::size_t stream = 0;
    known order;
    bool busy = false;  // another thread is recording it
  };

  std::uint32_t draw(std::uint32_t n) {
    state_ += 0x9e3779b97f4a7c15u;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return static_cast<std::uint32_t>(((z ^ (z >> 31)) >> 32) * n >> 32);
  }
  template <class... Words>
  void say(Words const&... words) {
    static bool const wanted = number_from_environment("WEIR_TEST_TRACE", 0) != 0;
    if (wanted)
      ((std::cout << std::string(2 * static_cast<std::size_t>(depth_), ' ')) << ... << words) << '\n';
  }
  template <class... Words>
  void fail(check by, Words const&... words) {
    std::ostringstream text;
    ((text << words << ' '), ...);
    wrong_.note(by, text.str());
  }

  void new_stream(int device, clock::life l) {
    bench_.core.open(device, "test", source_location::current());
    auto const s = bench_.machine().create_stream(device, driver::stream_kind::independent, 0);
    if (s.ok())
      lines_.push_back({&bench_.clocks().make(device, s.value, l), {}, -1});
  }
  std::size_t some_stream() { return draw(static_cast<std::uint32_t>(lines_.size())); }
  std::size_t take(std::size_t i) {
    auto& l = lines_[i];
    if (stamps_.size() == 48)
      return draw(48);
    bool const retired = l.t->alive() == clock::life::retired;
    stamps_.push_back({l.t->now(), i, retired ? l.tail : book_->tail(l.t->handle()), l.order});
    return stamps_.size() - 1;
  }
  // Stamps implied by stamp i: those that its stream knew then, and its stream's older ones.
  known closure(std::size_t i) const {
    known out = stamps_[i].order;
    for (std::size_t j = 0; j < stamps_.size(); ++j) {
      if (stamps_[j].stream == stamps_[i].stream && stamps_[j].s.n <= stamps_[i].s.n) {
        out.insert(j);
        out.insert(stamps_[j].order.begin(), stamps_[j].order.end());
      }
    }
    return out;
  }
  static void add(known& to, known const& more) { to.insert(more.begin(), more.end()); }

  void act() {
    struct deeper {
      int& depth;
      explicit deeper(int& d) : depth(d) { ++depth; }
      ~deeper() { --depth; }
    } const in(depth_);
    std::size_t const i = some_stream();
    clock::stream_clock& t = *lines_[i].t;
    auto& clocks = bench_.clocks();
    bool const may_refuse = refusals_ && draw(4) == 0;
    if (may_refuse) {
      static char const* const calls[] = {
          "record", "wait", "query_event", "create_event", "synchronize_event", "query_stream", "synchronize_stream",
          "any"};
      char const* const call = calls[draw(8)];
      say("the next ", call, " is refused");
      book_->fail_call(call, 1, draw(2) ? driver::code::failed : driver::code::out_of_memory);
    }
    switch (draw(16)) {
      case 0:
      case 1:
      case 2: {  // work
        if (t.alive() == clock::life::retired)
          break;
        say("work on ", t.id());
        (void)bench_.machine().enqueue(t.device(), t.handle(), {}, {.run = [](void*) {}});
        break;
      }
      case 3: {
        auto const k = take(i);
        say("stamp ", k, " of ", stamps_[k].s.stream, " is ", stamps_[k].s.n);
        break;
      }
      case 4:
      case 5: {  // wait for a stamp
        if (stamps_.empty())
          break;
        std::size_t const k = draw(static_cast<std::uint32_t>(stamps_.size()));
        known const more = closure(k);
        say(t.id(), " waits for stamp ", k, " of ", stamps_[k].s.stream);
        if (t.wait(stamps_[k].s).ok())
          add(lines_[i].order, more);
        break;
      }
      case 6:
      case 7: {  // wait for a stream
        std::size_t const other = some_stream();
        std::size_t const k = take(other);
        known const more = closure(k);
        say(t.id(), " waits for ", stamps_[k].s.stream, ", stamp ", k);
        if (t.wait(stamps_[k].s).ok())
          add(lines_[i].order, more);
        break;
      }
      case 8:
        say("fence on ", t.id());
        (void)t.fence();
        break;
      case 9:
      case 10: {  // an event that is recorded repeatedly
        record_event(i, draw(3));
        break;
      }
      case 11: {  // wait for the event, as stream_ref does
        watched_ = static_cast<int>(draw(3));
        auto const& e = events_[watched_];
        if (!e.last || e.busy)
          break;
        for (int tries = 0; tries < 8; ++tries) {
          auto const f = e.last;
          known const more = e.order;
          say(t.id(), " waits for event ", &e - events_);
          auto const s = t.wait(f, *lines_[e.stream].t);
          if (s.ok())
            add(lines_[i].order, more);
          if (s.what != driver::code::not_ready || e.busy || !e.last)
            break;
        }
        break;
      }
      case 12: {  // query the event, as event::query does
        watched_ = static_cast<int>(draw(3));
        auto const& e = events_[watched_];
        if (!e.last || e.busy)
          break;
        auto const f = e.last;
        known const more = e.order;
        auto& on = *lines_[e.stream].t;
        say("ask event ", &e - events_);
        if (bench_.machine().query_event(e.event->handle()).ok()) {
          clocks.note_complete(on, f);
          if (!f->stale.load())
            add(complete_, more);
        }
        break;
      }
      case 13: {  // poll or synchronize
        if (stamps_.empty())
          break;
        std::size_t const k = draw(static_cast<std::uint32_t>(stamps_.size()));
        known const more = closure(k);
        bool const block = draw(4) == 0;
        say(block ? "synchronize with stamp " : "poll stamp ", k);
        if (block) {
          if (clocks.synchronize(stamps_[k].s).ok())
            add(complete_, more);
        } else if (auto const r = clocks.poll(stamps_[k].s); r.ok() && r.value) {
          add(complete_, more);
        }
        break;
      }
      case 14: {  // the stream itself
        known const order = lines_[i].order;
        known done;
        for (std::size_t k = 0; k < stamps_.size(); ++k) {
          if (stamps_[k].stream == i)
            done.insert(k);
        }
        bool const block = draw(4) == 0;
        say(block ? "synchronize with " : "ask ", t.id());
        if (block ? t.synchronize().ok() : t.query().value) {
          add(complete_, order);
          add(complete_, done);
        }
        break;
      }
      case 15: rare(); break;
    }
    if (may_refuse && depth_ == 1)
      book_->forget_orders();
    judge();
  }

  void record_event(std::size_t i, std::uint32_t which) {
    clock::stream_clock& t = *lines_[i].t;
    auto& e = events_[which];
    if (e.busy)
      return;
    e.busy = true;
    if (!e.event || e.event->device() != t.device()) {
      auto made = bench_.clocks().take_event(t.device(), driver::event_kind::order_only);
      if (made.ok())
        e = {std::move(made.value), nullptr, 0, {}, true};
    }
    if (e.event && e.event->device() == t.device()) {
      std::size_t const k = take(i);
      known const order = stamps_[k].stream == i && stamps_[k].s.n == t.now().n ? closure(k) : lines_[i].order;
      say("event ", &e - events_, " on ", t.id());
      auto f = t.record(e.event, e.last);
      if (f.ok())
        e = {e.event, std::move(f.value), i, order, true};
    }
    e.busy = false;
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

  // Soundness: an answer has a path in the graph. Precision: the clocks say what they promise to know.
  void judge() {
    if (!wrong_.ok())
      return;
    for (std::size_t k = 0; k < stamps_.size(); ++k) {
      auto const& s = stamps_[k];
      bool const complete = bench_.clocks().complete(s.s);
      ++answers, yes += complete;
      if (complete && !book_->complete(s.tail))
        return fail(check::order, "stamp", k, "of stream", s.s.stream, "is said to be complete before any observation");
      if (!complete && complete_.count(k))
        return fail(check::order, "stamp", k, "of stream", s.s.stream, "must be known to be complete");
      for (auto const& l : lines_) {
        if (l.t->alive() == clock::life::retired)
          continue;
        bool const covered = l.t->covers(s.s);
        ++answers, yes += covered;
        if (covered && !book_->ordered(s.tail, l.t->handle()))
          return fail(check::order, "stamp", k, "of stream", s.s.stream, "is said to be before stream", l.t->id(),
                      "and is not");
        if (!covered && l.order.count(k))
          return fail(check::order, "stamp", k, "of stream", s.s.stream, "must be known to be before stream",
                      l.t->id());
      }
    }
    if (auto const broken = bench_.clocks().validate(); !broken.empty())
      fail(check::invariants, broken.front());
    learned = complete_.size();
  }

  std::uint64_t state_;
  ledger* book_ = nullptr;
  std::vector<line> lines_;
  std::vector<taken> stamps_;
  known complete_;
  user_event events_[3];
  int watched_ = -1;  // the event last waited for or queried
  verdict wrong_;
  int depth_ = 0, lost_ = -1;
  std::uint32_t intrusions_ = 0;  // percent
  bool refusals_ = false;
  memory_bench bench_;
};

}  // namespace weir::tests
