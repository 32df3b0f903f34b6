// Streams under capture: records and waits inside belong to the graph, and nothing is concluded from them.
// Threads: any; no lock is held over a driver call.
#include "runtime/clock/shared_state.h"

namespace weir::clock {

using driver::code;
using driver::result;
using driver::status;

result<bool> stream_clock::captured() const {
  std::uint64_t ended = 0;
  auto const is = captured(ended);
  if (ended)
    runtime_.part<clocks>().capture_ended(ended);
  return is;
}

result<bool> stream_clock::captured(std::uint64_t& ended) const {
  // An answer that another thread's answer has overtaken may be out of date: the driver is asked again.
  for (;;) {
    std::uint64_t const last = last_capture();
    std::uint32_t const seen = capture_seen_.load(base::memory_order_relaxed);
    auto const is = common_->machine.capturing(device_, handle());
    if (!is.ok())
      return {note(is.is), false};
    if (!note_captured(is.value, seen))
      continue;
    if (!is.value)
      ended = last;
    return is;
  }
}

// A question that the driver refuses tells of no capture: the call that follows gets the same answer.
void stream_clock::refuse_unannounced(std::string_view operation, source_location const& at) const {
  if (auto const inside = captured(); !inside.ok() || !inside.value)
    return;
  throw invalid_use(std::string(operation),
                    base::text("stream ", id(), " of gpu:", device_, ", in a capture that was not announced"),
                    "Call is_capturing() on the stream inside each capture, before other calls, or register it without "
                    "external_stream_options::announces_captures",
                    at, error_id{466});
}

// Read before the driver is asked: if the stream is not captured then, this capture has ended.
std::uint64_t stream_clock::last_capture() const noexcept {
  stream_clock const* const lane = lane_.load(base::memory_order_acquire);
  return lane ? lane->capture() : 0;
}

result<stream_clock*> stream_clock::lane() {
  for (;;) {
    std::uint64_t const last = last_capture();
    std::uint32_t const seen = capture_seen_.load(base::memory_order_relaxed);
    auto const number = common_->machine.capture_of(device_, handle());
    if (!number.ok())
      return {note(number.is), nullptr};
    if (!note_captured(number.value != 0, seen))
      continue;
    if (number.value) {
      stream_clock& its = runtime_.part<clocks>().lane_of(*this, number.value);
      // Another thread may have noted the end of a borrowed stream's last capture until the lane was there.
      if (alive() == life::borrowed)
        saw_captured(true);
      return {{}, &its};
    }
    if (last)
      runtime_.part<clocks>().capture_ended(last);
    return {{}, nullptr};
  }
}

stream_clock* stream_clock::lane_or_none() noexcept try { return lane().value; } catch (std::bad_alloc const&) {
  return nullptr;
}

// The stream's own clock begins no number, because the record is no point in its own work; its lane does. An
// event that others may query is never recorded inside: the query would spoil the capture, and a waiter would
// join it.
result<fence_ref> stream_clock::record_inside(event_ref const& event, fence_ref const& before) {
  auto f = std::make_shared<clock::fence>();
  f->event = event, f->of = hold();
  f->captured = true;
  // The last record was outside: others may still query this event.
  if (before && !before->captured && !event->given_away()) {
    auto fresh = common_->events->take(device_, event->kind());
    if (!fresh.ok())
      return {note(fresh.is), {}};
    f->event = std::move(fresh.value);
  }
  if (stream_clock* const here = lane_or_none()) {
    begun b = here->begin();
    f->lane = here->id();
    f->n = b.n;
    f->seen = std::move(b.seen);
  }
  if (auto const s = note(common_->machine.record(device_, handle(), f->event->handle())); !s.ok())
    return {s, {}};
  return {{}, std::move(f)};
}

// `from` must still be captured: the driver might refuse the wait by spoiling the waiter's own capture.
status stream_clock::wait_inside(clock::fence const& f, stream_clock& from) {
  if (&from.runtime_ != &runtime_)
    return {code::invalid};
  if (auto const s = open_for_work(); !s.ok())
    return s;
  auto const inside = from.captured();
  if (!inside.ok())
    return inside.is;
  if (!inside.value)
    return {code::not_permitted};
  auto const s = note(common_->machine.wait(device_, handle(), f.event->handle()));
  if (!s.ok())
    return s;
  // The wait has put this stream into the capture.
  while (!note_captured(true, capture_seen_.load(base::memory_order_relaxed))) {}
  // An order is known only between two lanes of one capture, and only by a record that still counts.
  stream_clock const* const its_lane = find(f.lane);
  if (!its_lane || its_lane->alive() != life::captured || f.stale.load())
    return s;
  stream_clock* const own_lane = lane_or_none();
  if (own_lane && own_lane->capture() == its_lane->capture())
    own_lane->merge(*its_lane, f);
  return s;
}

status stream_clock::join(stream_clock& from) {
  auto const inside = from.captured();
  if (!inside.ok())
    return inside.is;
  if (!inside.value)
    return {code::not_permitted};
  auto event = common_->events->take(from.device_, driver::event_kind::order_only);
  if (!event.ok())
    return note(event.is);
  auto const recorded = from.record_inside(event.value, nullptr);
  if (!recorded.ok())
    return recorded.is;
  return wait_inside(*recorded.value, from);
}

}  // namespace weir::clock
