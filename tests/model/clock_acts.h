// What random programs of the clocks do: they give work, take stamps, record fences and events, wait and poll, and check
// the clocks against a graph of all driver calls. If the clocks say ordered or complete, the graph must have a path. The
// clocks must say what they promise to know.
// Threads: one at a time, switched inside calls of weir.
//
// The runner gives the numbers: by a seed, with actions of other threads inside driver calls (clock_program.h), or by a
// tape and among threads (tests/explore/clocks_program.h).
#pragma once
#include <set>
#include <sstream>
#include <string>

#include "tests/model/verdict.h"
#include "tests/support/ledger.h"
#include "tests/support/memory_bench.h"

namespace weir::tests {

class clock_acts {
 public:
  clock_acts() { stamps_.reserve(most_stamps); }  // other threads refer to them
  clock_acts(clock_acts const&) = delete;
  virtual ~clock_acts() = default;

  std::uint64_t answers = 0, yes = 0;

 protected:
  static constexpr std::uint32_t most_stamps = 48;
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

  // The runner's part.
  virtual std::uint32_t draw(std::uint32_t n) = 0;  // from 0 to n - 1
  virtual memory_bench& bench() = 0;
  virtual bool right() const = 0;  // nothing has failed
  virtual void failed(check by, std::string what) = 0;
  virtual bool traces() const = 0;
  virtual void told(std::string const&) = 0;

  clock::clocks& clocks() { return bench().clocks(); }
  template <class... Words>
  void say(Words const&... words) {
    if (!traces())
      return;
    std::ostringstream text;
    (text << ... << words);
    told(text.str());
  }
  template <class... Words>
  void fail(check by, Words const&... words) {
    std::ostringstream text;
    ((text << words << ' '), ...);
    failed(by, text.str());
  }

  std::size_t some_stream() { return draw(static_cast<std::uint32_t>(lines_.size())); }
  std::size_t take(std::size_t i) {
    auto& l = lines_[i];
    if (stamps_.size() == most_stamps)
      return draw(most_stamps);
    bool const retired = l.t->alive() == clock::life::retired;
    known order = l.order;
    clock::stamp const now = l.t->now();
    stamps_.push_back({now, i, retired ? l.tail : book_->tail(l.t->handle()), std::move(order)});
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

  static constexpr std::uint32_t kinds = 15;  // of acts
  void act(std::size_t i, std::uint32_t kind) {
    clock::stream_clock& t = *lines_[i].t;
    switch (kind) {
      case 0:
      case 1:
      case 2: {  // work
        if (t.alive() == clock::life::retired)
          break;
        say("work on ", t.id());
        (void)bench().machine().enqueue(t.device(), t.handle(), {}, {.run = [](void*) {}});
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
        if (bench().machine().query_event(e.event->handle()).ok()) {
          clocks().note_complete(on, f);
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
          if (clocks().synchronize(stamps_[k].s).ok())
            add(complete_, more);
        } else if (auto const r = clocks().poll(stamps_[k].s); r.ok() && r.value) {
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
    }
  }

  void record_event(std::size_t i, std::uint32_t which) {
    clock::stream_clock& t = *lines_[i].t;
    auto& e = events_[which];
    if (e.busy)
      return;
    e.busy = true;
    if (!e.event || e.event->device() != t.device()) {
      auto made = clocks().take_event(t.device(), driver::event_kind::order_only);
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

  // Soundness: an answer has a path in the graph. Precision: the clocks say what they promised to know before the
  // question.
  void judge(std::size_t k) {
    clock::stamp const s = stamps_[k].s;
    std::size_t const of = stamps_[k].stream;
    bool const must_be = complete_.count(k), complete = clocks().complete(s);
    ++answers, yes += complete;
    if (complete && !book_->complete(stamps_[k].tail))
      fail(check::order, "stamp", k, "of stream", of, "is said to be complete before any observation");
    else if (!complete && must_be)
      fail(check::order, "stamp", k, "of stream", of, "must be known to be complete");
    for (std::size_t i = 0; i < lines_.size() && right(); ++i) {
      if (lines_[i].t->alive() != clock::life::retired)
        judge(k, i);
    }
  }
  void judge(std::size_t k, std::size_t i) {
    line const& l = lines_[i];
    bool const must_be = l.order.count(k), covered = l.t->covers(stamps_[k].s);
    ++answers, yes += covered;
    if (covered && !book_->ordered(stamps_[k].tail, l.t->handle()))
      fail(check::order, "stamp", k, "of stream", stamps_[k].stream, "is said to be before stream", i, "and is not");
    else if (!covered && must_be)
      fail(check::order, "stamp", k, "of stream", stamps_[k].stream, "must be known to be before stream", i);
  }
  void judge_all() {
    for (std::size_t k = 0; k < stamps_.size() && right(); ++k)
      judge(k);
  }
  // In the end everything completes, and the clocks must find that out.
  void end(int lost) {
    for (std::size_t i = 0; i < stamps_.size() && right(); ++i) {
      clock::stamp const s = stamps_[i].s;
      auto const r = clocks().synchronize(s);
      if (lost < 0 && (!r.ok() || !clocks().complete(s)))  // waits for a lost device may never end
        fail(check::order, "in the end stamp", i, "is not complete");
    }
  }

  ledger* book_ = nullptr;
  std::vector<line> lines_;
  std::vector<taken> stamps_;
  known complete_;
  user_event events_[3];
  int watched_ = -1;  // the event last waited for or queried
};

}  // namespace weir::tests
