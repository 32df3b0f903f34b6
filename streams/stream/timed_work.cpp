// Events come from a pool and return after their times are read.
// Threads: any. The lock is held across a driver call only to read times.
#include "streams/stream/timed_work.h"

#include <deque>
#include <map>
#include <memory>

#include "runtime/core/parts.h"

namespace weir::streams {
namespace {

constexpr std::size_t collect_beyond = 2048;                  // uncollected spans
constexpr std::int64_t new_base_after_ns = 4'000'000'000;  // float milliseconds since the base lose precision

// A part of the runtime; its events end with it.
class stopwatch {
 public:
  explicit stopwatch(runtime::impl& r) : machine_(r.machine()), bases_(static_cast<std::size_t>(r.device_count())) {}
  ~stopwatch() {
    for (auto const& [device, e] : free_) (void)machine_.destroy_event(device, e);
    for (pending const& p : pending_)
      (void)machine_.destroy_event(p.what.device, p.start), (void)machine_.destroy_event(p.what.device, p.end);
    for (base_time const& b : bases_) forget(b);
    for (base_time const& b : old_) forget(b);
  }

  struct base_time {
    driver::event_handle event = driver::event_handle::none;
    std::int64_t ns = 0;
    int device = 0;
  };
  struct pending {
    observe::span what;
    driver::event_handle start, end;
    base_time from;
  };

  driver::event_handle take(int device) {
    {
      base::lock_guard const hold(lock_);
      auto const found = free_.find(device);
      if (found != free_.end()) {
        auto const e = found->second;
        free_.erase(found);
        return e;
      }
    }
    auto const made = machine_.create_event(device, driver::event_kind::timing);
    return made.ok() ? made.value : driver::event_handle::none;
  }
  void give_back(int device, driver::event_handle e) {
    if (e == driver::event_handle::none) return;
    base::lock_guard const hold(lock_);
    free_.emplace(device, e);
  }
  // A recent pair of device and host times. none: not available.
  base_time base_of(int device) {
    base_time& mine = bases_[static_cast<std::size_t>(device)];
    {
      base::lock_guard const hold(lock_);
      if (mine.event != driver::event_handle::none && base::now_ns() - mine.ns < new_base_after_ns) return mine;
    }
    auto const s = machine_.create_stream(device, driver::stream_kind::independent, 0);
    if (!s.ok()) return {};
    base_time made{take(device), 0, device};
    bool ok = made.event != driver::event_handle::none && machine_.record(device, s.value, made.event).ok() &&
              machine_.synchronize_event(made.event).ok();
    made.ns = base::now_ns();
    (void)machine_.destroy_stream(device, s.value);
    if (!ok) return {};
    base::lock_guard const hold(lock_);
    if (mine.event != driver::event_handle::none) old_.push_back(mine);
    return mine = made;
  }
  void add(pending p) {
    bool many;
    {
      base::lock_guard const hold(lock_);
      pending_.push_back(std::move(p));
      many = pending_.size() > collect_beyond && pending_.size() % 256 == 0;
    }
    if (many) collect(false);
  }

  void collect(bool wait) {
    base::lock_guard const hold(lock_);
    std::deque<pending> left;
    for (pending& p : pending_) {
      auto const is = wait ? machine_.synchronize_event(p.end) : machine_.query_event(p.end);
      if (is.what == driver::code::not_ready) {
        left.push_back(std::move(p));
        continue;
      }
      auto const begin = machine_.elapsed_ms(p.from.event, p.start), length = machine_.elapsed_ms(p.start, p.end);
      if (is.ok() && begin.ok() && length.ok()) {
        p.what.begin_ns = p.from.ns + static_cast<std::int64_t>(static_cast<double>(begin.value) * 1e6);
        p.what.end_ns = p.what.begin_ns + static_cast<std::int64_t>(static_cast<double>(length.value) * 1e6);
        observe::span_recorder::process().add(std::move(p.what));
      }
      free_.emplace(p.what.device, p.start), free_.emplace(p.what.device, p.end);
    }
    pending_.swap(left);
    if (pending_.empty()) {
      for (base_time const& b : old_) forget(b);
      old_.clear();
    }
  }

 private:
  void forget(base_time const& b) const noexcept {
    if (b.event != driver::event_handle::none) (void)machine_.destroy_event(b.device, b.event);
  }

  driver::driver& machine_;
  base::mutex lock_;
  std::multimap<int, driver::event_handle> free_;  // by device
  std::deque<pending> pending_;
  std::vector<base_time> bases_, old_;
};

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
    if (stream.alive() == clock::life::retired || stream.captured().value) return;
    stopwatch& by = stream.owner().part<stopwatch>();
    auto made = std::make_unique<open>(open{by, stream, {}});
    stopwatch::pending& w = made->work;
    w.what = {observe::span::on::stream,
              std::string(name),
              0,
              0,
              stream.owner().id(),
              stream.device(),
              stream.id(),
              call_.link(),
              bytes,
              waits_for,
              at};
    w.from = by.base_of(stream.device());
    if (w.from.event == driver::event_handle::none) return;
    w.start = by.take(stream.device()), w.end = by.take(stream.device());
    if (w.start == driver::event_handle::none || w.end == driver::event_handle::none ||
        !stream.owner().machine().record(stream.device(), stream.handle(), w.start).ok()) {
      by.give_back(stream.device(), w.start), by.give_back(stream.device(), w.end);
      return;
    }
    open_ = made.release();
  } catch (std::exception const&) {  // this work is not timed
  }
}

void timed_work::end() noexcept {
  std::unique_ptr<open> const done(std::exchange(open_, nullptr));
  stopwatch::pending& w = done->work;
  bool const kept = done->turn == observe::span_recorder::process().turn() &&
                    done->stream.owner().machine().record(done->stream.device(), done->stream.handle(), w.end).ok();
  try {
    if (kept) return done->by.add(std::move(w));
    done->by.give_back(w.what.device, w.start), done->by.give_back(w.what.device, w.end);
  } catch (std::exception const&) {  // its events remain until the process ends
  }
}

namespace {
base::flag any_launch;  // a launch was timed at some time
base::per_thread<std::unique_ptr<timed_work>>& open_launch() {
  static auto* const value = new base::per_thread<std::unique_ptr<timed_work>>;
  return *value;
}
}  // namespace

void begin_timed_launch(clock::stream_clock& stream, source_location at) noexcept {
  if (!observe::span_recorder::on()) [[likely]] return;
  try {
    any_launch.set(true);
    open_launch().get() = nullptr;
    open_launch().get() = std::make_unique<timed_work>(stream, "launch", 0, at);
  } catch (std::bad_alloc const&) {  // this launch is not timed
  }
}

void end_timed_launch() noexcept {
  if (!any_launch.on()) [[likely]] return;
  open_launch().get() = nullptr;
}

void collect_timed_work(runtime::impl& r) noexcept {
  try {
    if (auto* const by = r.part_if_made<stopwatch>()) by->collect(true);
  } catch (std::bad_alloc const&) {  // uncollected spans are collected later
  }
}

}  // namespace weir::streams
