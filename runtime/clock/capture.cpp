// Streams under capture: records and waits inside belong to the graph, and nothing is concluded from them.
// Threads: any; no lock is held over a driver call.
#include "runtime/clock/shared_state.h"

namespace weir::clock {

using driver::code;
using driver::result;
using driver::status;

result<bool> stream_clock::captured() const {
  // An answer that another thread's answer has overtaken may be out of date: the driver is asked again.
  for (;;) {
    std::uint32_t const seen = capture_seen_.load(base::memory_order_relaxed);
    auto const is = common_->machine.capturing(device_, handle());
    if (!is.ok()) return {note(is.is), false};
    if (note_captured(is.value, seen)) return is;
  }
}

// No number is begun, because the record is no point in the stream's own work. An event that others may query
// is never recorded inside: the query would spoil the capture, and a waiter would join it.
result<fence_ref> stream_clock::record_inside(event_ref const& event, fence_ref const& before) {
  auto f = std::make_shared<clock::fence>();
  f->event = event, f->of = hold();
  f->captured = true;
  if (before && !before->captured && !event->given_away()) {
    auto fresh = common_->events->take(device_, event->kind());
    if (!fresh.ok()) return {note(fresh.is), {}};
    f->event = std::move(fresh.value);
  }
  if (auto const s = note(common_->machine.record(device_, handle(), f->event->handle())); !s.ok()) return {s, {}};
  return {{}, std::move(f)};
}

// `from` must still be captured: the driver might refuse the wait by spoiling the waiter's own capture.
status stream_clock::wait_inside(driver::event_handle event, stream_clock& from) {
  if (&from.runtime_ != &runtime_) return {code::invalid};
  if (auto const s = open_for_work(); !s.ok()) return s;
  auto const there = from.captured();
  if (!there.ok()) return there.is;
  if (!there.value) return {code::not_permitted};
  auto const s = note(common_->machine.wait(device_, handle(), event));
  while (s.ok() && !note_captured(true, capture_seen_.load(base::memory_order_relaxed))) {}
  return s;
}

status stream_clock::join(stream_clock& from) {
  auto const there = from.captured();
  if (!there.ok()) return there.is;
  if (!there.value) return {code::not_permitted};
  auto event = common_->events->take(from.device_, driver::event_kind::order_only);
  if (!event.ok()) return note(event.is);
  auto const inside = from.record_inside(event.value, nullptr);
  return inside.ok() ? wait_inside(event.value->handle(), from) : inside.is;
}

}  // namespace weir::clock
