// Threads take stamps, record fences, wait and poll concurrently. If the clocks say ordered or complete, the
// ledger must have a path. The clocks must say what they promise to know.
// Threads: those of a run.
#pragma once
#include "tests/explore/explore.h"
#include "tests/support/ledger.h"

namespace weir::tests {

inline ledger& ledger_of(driver::driver& m) {
  for (auto* at = &m; at; at = at->behind()) {
    if (auto* const found = dynamic_cast<ledger*>(at))
      return *found;
  }
  throw std::logic_error("no ledger stands before the machine");
}

// Requires: its machines are made with a ledger in front, as in programs.h.
class clocks_among_threads {
 public:
  explicit clocks_among_threads(trial& t)
      : t_(t),
        bench_(t.bench({.devices = 1 + static_cast<int>(t.draw(2)), .memory = 1_MiB})),
        book_(ledger_of(t.machine())) {
    for (int i = 0, n = 2 + static_cast<int>(t.draw(3)); i < n; ++i)
      lines_.push_back(&t.stream(i % bench_.core.device_count()));
    t.among_threads(2, 12, [this](int n) {
      for (int k = 0; k < n && !t_.failed(); ++k)
        step();
    });
    if (!t.failed())
      end();
  }

 private:
  struct taken {
    clock::stamp s;
    std::size_t stream;
    int tail;  // the stream's last operation at that time
  };
  struct shared_event {
    clock::event_ref event;
    clock::fence_ref last;
    std::size_t stream = 0;
    bool busy = false;  // a thread is recording it
  };

  std::size_t some_line() { return t_.draw(static_cast<std::uint32_t>(lines_.size())); }
  std::size_t take(std::size_t i) {
    // One scheduling step: the stream's work so far, by the ledger and by the clocks.
    clock::stamp const s = lines_[i]->now();
    stamps_.push_back({s, i, book_.tail(lines_[i]->handle())});
    return stamps_.size() - 1;
  }
  void must(bool known, char const* what, std::size_t k) {
    if (!known)
      t_.fail(std::string(what) + ", and stamp " + std::to_string(k) + " is not known");
  }

  void step() {
    std::size_t const i = some_line();
    clock::stream_clock& line = *lines_[i];
    auto& clocks = bench_.clocks();
    switch (t_.draw(10)) {
      case 0:
      case 1:
        t_.say("work on ", i);
        (void)bench_.machine().enqueue(line.device(), line.handle(), {}, {.run = [](void*) {}});
        break;
      case 2: {
        auto const k = take(i);
        t_.say("stamp ", k, " of ", i, " is ", stamps_[k].s.n);
        break;
      }
      case 3: {
        std::size_t const k = take(some_line());
        t_.say(i, " waits for stamp ", k, " of ", stamps_[k].stream);
        clock::stamp const s = stamps_[k].s;
        if (line.wait(s).ok())
          must(line.covers(s), "a stream waited", k);
        break;
      }
      case 4:
        t_.say("fence on ", i);
        (void)line.fence();
        break;
      case 5: record(line, i); break;
      case 6: wait_for_event(line, i); break;
      case 7:
      case 8: {
        if (stamps_.empty())
          break;
        std::size_t const k = t_.draw(static_cast<std::uint32_t>(stamps_.size()));
        clock::stamp const s = stamps_[k].s;
        t_.say("polls stamp ", k);
        if (t_.draw(4) == 3) {
          if (clocks.synchronize(s).ok())
            must(clocks.complete(s), "the host waited", k);
        } else if (auto const r = clocks.poll(s); r.ok() && r.value) {
          must(clocks.complete(s), "a poll said so", k);
        }
        break;
      }
      case 9:
        t_.say("asks ", i);
        (void)(t_.draw(4) == 3 ? line.synchronize() : line.query().is);
        break;
    }
    check();
  }

  void record(clock::stream_clock& line, std::size_t i) {
    auto& e = events_[t_.draw(2)];
    if (e.busy)
      return;
    e.busy = true;
    if (!e.event || e.event->device() != line.device()) {
      auto made = bench_.clocks().take_event(line.device(), driver::event_kind::order_only);
      if (made.ok())
        e = {std::move(made.value), nullptr, 0, true};
    }
    if (e.event && e.event->device() == line.device()) {
      t_.say("records an event on ", i);
      auto f = line.record(e.event, e.last);
      if (f.ok())
        e = {e.event, std::move(f.value), i, true};
    }
    e.busy = false;
  }

  void wait_for_event(clock::stream_clock& line, std::size_t i) {
    auto& e = events_[t_.draw(2)];
    for (int tries = 0; tries < 8 && e.last && !e.busy; ++tries) {
      auto const f = e.last;
      t_.say(i, " waits for an event of ", e.stream);
      if (line.wait(f, *lines_[e.stream]).what != driver::code::not_ready)
        break;
    }
  }

  // No other thread runs between an answer and its check.
  void check() {
    for (int n = 0; n < 3 && !stamps_.empty(); ++n) {
      std::size_t const k = t_.draw(static_cast<std::uint32_t>(stamps_.size())), i = some_line();
      taken const x = stamps_[k];
      if (lines_[i]->covers(x.s) && !book_.ordered(x.tail, lines_[i]->handle())) {
        t_.fail("stream " + std::to_string(i) + " is said to be behind stamp " + std::to_string(k) + " of stream " +
                std::to_string(x.stream) + ", and is not");
      }
      if (bench_.clocks().complete(x.s) && !book_.complete(x.tail)) {
        t_.fail("stamp " + std::to_string(k) + " of stream " + std::to_string(x.stream) +
                " is said to be complete before any observation");
      }
    }
  }

  void end() {
    for (std::size_t k = 0; k < stamps_.size(); ++k) {
      clock::stamp const s = stamps_[k].s;
      if (!bench_.clocks().synchronize(s).ok() || !bench_.clocks().complete(s))
        t_.fail("in the end stamp " + std::to_string(k) + " is not complete");
    }
    check();
    for (auto const& w : bench_.clocks().validate())
      t_.fail(w);
  }

  trial& t_;
  memory_bench& bench_;
  ledger& book_;
  std::vector<clock::stream_clock*> lines_;
  std::vector<taken> stamps_;
  shared_event events_[2];
};

}  // namespace weir::tests
