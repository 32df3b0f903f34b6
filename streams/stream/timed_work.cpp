// Events return to their pool after their times are read.
// Threads: any. One thread at a time reads times; no lock that timed work needs is held over its driver calls.
#include "streams/stream/timed_work.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <memory>

#include "runtime/core/parts.h"

namespace weir::streams {
namespace {

constexpr std::size_t collect_beyond = 2048;               // uncollected spans
constexpr std::int64_t new_base_after_ns = 4'000'000'000;  // float milliseconds since the base lose precision

// A part of the runtime.
class stopwatch {
 public:
  explicit stopwatch(runtime::impl& r)
      : machine_(r.machine()), clocks_(r.part<clock::clocks>()), bases_(static_cast<std::size_t>(r.device_count())) {}

  struct base_time {  // a device time and a host time. Without an event: not available
    clock::event_ref event;
    std::int64_t ns = 0;
  };
  struct pending {
    observe::span what;
    clock::event_ref start, end;
    base_time from;
  };

  clock::event_ref take(int device) { return clocks_.take_event(device, driver::event_kind::timing).value; }
  // A recent one; a new one is taken on a stream of its own, which other work does not delay.
  base_time base_of(int device) {
    base_time& known = bases_[static_cast<std::size_t>(device)];
    {
      base::lock_guard const hold(lock_);
      if (known.event && base::now_ns() - known.ns < new_base_after_ns)
        return known;
    }
    base_time made{take(device)};
    auto const s = machine_.create_stream(device, driver::stream_kind::independent, 0);
    if (!s.ok())
      return {};
    bool const has_passed = made.event && machine_.record(device, s.value, made.event->handle()).ok() &&
                            machine_.synchronize_event(made.event->handle()).ok();
    made.ns = base::now_ns();
    (void)machine_.destroy_stream(device, s.value);
    if (!has_passed)
      return {};
    base::lock_guard const hold(lock_);
    known = made;
    return known;
  }
  void add(pending p) {
    bool is_time = false;
    {
      base::lock_guard const hold(lock_);
      pending_.push_back(std::move(p));
      is_time = pending_.size() > collect_beyond && pending_.size() % 256 == 0;
    }
    if (is_time)
      collect_complete();
  }

  // Blocks: until all that was added before is complete. Other threads add work meanwhile, for which this may wait.
  void collect_all() {
    base::lock_guard const alone(collecting_);
    collect(true);
  }

 private:
  void collect_complete() {
    base::unique_lock const alone(collecting_, std::try_to_lock);
    if (alone.owns_lock())
      collect(false);
  }
  // Requires: collecting_
  void collect(bool wait) {
    std::deque<pending> mine;
    {
      base::lock_guard const hold(lock_);
      mine.swap(pending_);
    }
    std::erase_if(mine, [&](pending& p) { return is_read(p, wait); });
    // What is left has begun earlier than what was added meanwhile.
    base::lock_guard const hold(lock_);
    std::move(pending_.begin(), pending_.end(), std::back_inserter(mine));
    pending_.swap(mine);
  }
  // False: it is not complete.
  bool is_read(pending& p, bool wait) {
    driver::event_handle const first = p.start->handle(), last = p.end->handle();
    auto const is = wait ? machine_.synchronize_event(last) : machine_.query_event(last);
    if (is.what == driver::code::not_ready)
      return false;
    auto const begin = machine_.elapsed_ms(p.from.event->handle(), first), length = machine_.elapsed_ms(first, last);
    if (is.ok() && begin.ok() && length.ok()) {  // else it is dropped: it has no times
      p.what.begin_ns = p.from.ns + static_cast<std::int64_t>(static_cast<double>(begin.value) * 1e6);
      p.what.end_ns = p.what.begin_ns + static_cast<std::int64_t>(static_cast<double>(length.value) * 1e6);
      observe::span_recorder::process().add(std::move(p.what));
    }
    return true;
  }

  driver::driver& machine_;
  clock::clocks& clocks_;
  base::mutex collecting_;  // held over driver calls; before lock_
  base::mutex lock_;
  std::deque<pending> pending_;
  std::vector<base_time> bases_;  // by device
};

driver::status record(clock::stream_clock& on, clock::event_ref const& e) {
  return on.owner().machine().record(on.device(), on.handle(), e->handle());
}

}  // namespace

struct timed_work::open {
  stopwatch& by;
  clock::stream_clock& stream;
  stopwatch::pending work;
  std::uint64_t turn = observe::span_recorder::process().turn();
};

void timed_work::begin(clock::stream_clock& stream, std::string_view name, std::size_t bytes, source_location at,
                       std::uint64_t waits_for) noexcept {
  try {
    if (stream.alive() == clock::life::retired || stream.captured().value)
      return;
    stopwatch& by = stream.owner().part<stopwatch>();
    auto made = std::make_unique<open>(open{by, stream, {}});
    stopwatch::pending& w = made->work;
    observe::span& s = w.what;
    s.where = observe::span::on::stream, s.name = name, s.runtime = stream.owner().id(), s.device = stream.device();
    s.number = stream.id(), s.link = call_.link(), s.bytes = bytes, s.stream = waits_for, s.at = at;
    w.from = by.base_of(stream.device());
    if (!w.from.event)
      return;
    w.start = by.take(stream.device()), w.end = by.take(stream.device());
    if (w.start && w.end && record(stream, w.start).ok())
      open_ = made.release();
  } catch (std::exception const&) {}  // this work is not timed
}

void timed_work::end() noexcept {
  std::unique_ptr<open> const done(std::exchange(open_, nullptr));
  stopwatch::pending& w = done->work;
  // A newer recording has started since, which drops earlier spans.
  if (done->turn != observe::span_recorder::process().turn())
    return;
  if (!record(done->stream, w.end).ok())
    return;
  try {
    done->by.add(std::move(w));
  } catch (std::exception const&) {}  // this work is not timed
}

namespace {
base::flag any_launch;  // a launch was timed at some time
base::per_thread<std::unique_ptr<timed_work>>& open_launch() noexcept {
  static base::per_thread<std::unique_ptr<timed_work>> value;
  return value;
}
}  // namespace

void begin_timed_launch(clock::stream_clock& stream, source_location at) noexcept {
  if (!observe::span_recorder::on()) [[likely]]
    return;
  try {
    any_launch.set(true);
    open_launch().get() = nullptr;
    open_launch().get() = std::make_unique<timed_work>(stream, "launch", 0, at);
  } catch (std::bad_alloc const&) {}  // this launch is not timed
}

void end_timed_launch() noexcept {
  if (!any_launch.on()) [[likely]]
    return;
  try {
    open_launch().get() = nullptr;
  } catch (std::bad_alloc const&) {}  // this thread has timed no launch
}

void collect_timed_work(runtime::impl& r) noexcept {
  try {
    if (auto* const by = r.part_if_made<stopwatch>())
      by->collect_all();
  } catch (std::bad_alloc const&) {}  // uncollected spans are collected later
}

}  // namespace weir::streams
