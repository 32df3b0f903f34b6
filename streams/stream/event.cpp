// Events: a program's own points in a stream, recorded any number of times, timed on request.
// Threads: any. An event's lock is held across a record, never across a wait.
#include "runtime/base/call_site.h"
#include "runtime/driver/allocation_observer.h"
#include "runtime/memory/device/device_memory.h"
#include "streams/stream/context.h"
#include "streams/stream/timed_work.h"
#include "weir/stream.h"

namespace weir {

struct WEIR_LOCAL event::state {
  struct recorded {
    std::uint64_t stream = 0;  // id of the last record's stream; 0: never recorded
    clock::event_ref event;    // null: no driver event yet
    clock::fence_ref last;
  };
  explicit state(event_options o) : options(o) {}
  event_options const options;
  base::guarded<recorded> now;

  recorded get() const { return *now.lock(); }
  driver::event_kind kind() const noexcept {
    using enum driver::event_kind;
    if (options.timing)
      return options.blocking_sync ? timing_blocking_sync : timing;
    return options.blocking_sync ? blocking_sync : order_only;
  }
};

namespace {
constexpr char const* recorded_inside =
    "an event last recorded inside a capture, which each launch of the graph repeats";
constexpr char const* record_outside = "Record it on a stream that is not captured, behind the launch";
}  // namespace

event::event(event_options o) : state_(std::make_unique<state>(o)) {}
event::~event() = default;
event::event(event&&) noexcept = default;
event& event::operator=(event&&) noexcept = default;

void event::record(source_location at) {
  record(current_stream(gpu, at), at);
}

void event::record(stream_ref s, source_location at) {
  auto& stream = streams::worker_or_throw(s, "event::record", at);
  if (!state_)
    state_ = std::make_unique<state>(event_options{});  // moved from: like new
  auto now = state_->now.lock();
  auto recorded = now->event;
  bool const of_a_gone_runtime = now->last && !clock::find(now->stream);
  if (recorded && !of_a_gone_runtime) {
    clock::stream_clock const& before = *clock::find(now->stream);
    if (&before.owner() != &stream.owner() || recorded->device() != stream.device())
      throw invalid_use("event::record",
                        streams::describe(stream) + "; the event is of gpu:" + std::to_string(recorded->device()) +
                            ", recorded on " + streams::describe(before),
                        "Use an event for each device", at, error_id{240});
  } else {  // not recorded yet, or in a runtime that has ended
    auto made = stream.owner().part<clock::clocks>().take_event(stream.device(), state_->kind());
    require(made.is, "event::record", streams::describe(stream), "", at);
    recorded = std::move(made.value);
  }
  clock::fence_ref const before = now->event == recorded ? now->last : nullptr;  // null: a new event
  auto f = stream.record(recorded, before);
  require(f.is, "event::record", streams::describe(stream), "", at);
  recorded = f.value->event;  // perhaps another one
  *now = {stream.id(), std::move(recorded), std::move(f.value)};
}

bool event::query(source_location at) const {
  if (!state_)
    return true;
  if (process_was_forked())
    streams::throw_forked("event::query", at);
  auto const now = state_->get();
  clock::stream_clock* const stream = clock::find(now.stream);
  if (!stream)
    return true;  // never recorded, or its runtime has ended
  if (now.last->captured)
    throw invalid_use("event::query", recorded_inside, record_outside, at, error_id{241});
  auto& clocks = stream->owner().part<clock::clocks>();
  // An event in the program's hands may have been recorded again: only the driver knows.
  if (!now.event->given_away() && clocks.complete({now.stream, now.last->n})) {
    stream->know_complete();
    return true;
  }
  auto const s = stream->note(stream->owner().machine().query_event(now.event->handle()));
  if (s.what == driver::code::not_ready)
    return false;
  require(s, "event::query", streams::describe(*stream), "", at);
  clocks.note_complete(*stream, now.last);
  return true;
}

void event::synchronize(source_location at) const {
  if (!state_)
    return;
  if (process_was_forked())
    streams::throw_forked("event::synchronize", at);
  auto const now = state_->get();
  clock::stream_clock* const stream = clock::find(now.stream);
  if (!stream)
    return;  // as in query()
  if (now.last->captured)
    throw invalid_use("event::synchronize", recorded_inside, record_outside, at, error_id{242});
  auto& clocks = stream->owner().part<clock::clocks>();
  // An event in the program's hands may have been recorded again: only the driver knows.
  if (!now.event->given_away() && clocks.complete({now.stream, now.last->n}))
    return stream->know_complete();
  observe::host_span const waits("synchronize", at);
  base::call_site const in(stream->owner().observer(), "synchronize", at);
  auto const is = stream->note(stream->owner().machine().synchronize_event(now.event->handle()));
  streams::require_not_stuck(stream->owner().machine(), is, "event::synchronize", at);
  require(is, "event::synchronize", streams::describe(*stream), "", at);
  clocks.note_complete(*stream, now.last);
  memory::device_memory::return_idle(stream->owner(), stream->device());
}

float_milliseconds event::elapsed_time(event const& end, source_location at) const {
  // Always throws: the code behind each call relies on it.
  auto const refuse = [&](std::string what, char const* remedy, error_id id) {
    throw invalid_use("event::elapsed_time", std::move(what), remedy, at, id);
  };
  if (!state_ || !end.state_)
    refuse("an event that was moved from", "Use the event it was moved to", error_id{243});
  if (!state_->options.timing || !end.state_->options.timing)
    refuse(std::string("the ") + (state_->options.timing ? "end" : "start") + " event has no time",
           "Make both with event_options{.timing = true}", error_id{244});
  if (process_was_forked())
    streams::throw_forked("event::elapsed_time", at);
  auto const a = state_->get();
  auto const b = end.state_->get();
  clock::stream_clock* const from = clock::find(a.stream);
  clock::stream_clock* const to = clock::find(b.stream);
  if (!from || !to)
    refuse(std::string("the ") + (from ? "end" : "start") + " event was never recorded", "Record both", error_id{245});
  if (&from->owner() != &to->owner() || from->device() != to->device())
    refuse("start on " + streams::describe(*from) + ", end on " + streams::describe(*to), "Record both on one device",
           error_id{246});
  if (a.last->captured || b.last->captured)
    refuse(recorded_inside, record_outside, error_id{247});
  auto const ms = from->owner().machine().elapsed_ms(a.event->handle(), b.event->handle());
  if (ms.is.what == driver::code::not_ready)
    refuse("the work between the events is not complete", "Synchronize with the end event first", error_id{248});
  require(from->note(ms.is), "event::elapsed_time", streams::describe(*from), "", at);
  return float_milliseconds(ms.value);
}

CUevent_st* event::native(source_location at) const {
  if (!state_)
    return nullptr;
  if (process_was_forked())
    streams::throw_forked("event::native", at);
  auto now = state_->now.lock();
  clock::stream_clock* const stream = clock::find(now->stream);
  if (!stream)
    return nullptr;
  auto const r = stream->owner().machine().native_event(now->event->handle());
  require(r.is, "event::native", streams::describe(*stream) + " on " + stream->owner().why(),
          "Use native() on GPUs only: other devices have no CUDA event", at);
  if (auto* const w = stream->owner().observer()) [[unlikely]]
    w->event_handed_out(now->event->handle());
  // The caller may record it in CUDA, which weir does not see.
  now->event->give_away();
  now->last->stale.store(true);
  return r.value;
}

void stream_ref::wait(event const& e, source_location at) const {
  auto& stream = streams::worker_or_throw(*this, "stream::wait", at);
  for (;;) {
    if (!e.state_)
      return;
    auto const now = e.state_->get();
    clock::stream_clock* const from = clock::find(now.stream);
    if (!from)
      return;  // as in event::query()
    if (&from->owner() != &stream.owner())
      throw invalid_use("stream::wait",
                        streams::describe(stream) + " of runtime " + std::to_string(stream.owner().id()) +
                            ", an event of runtime " + std::to_string(from->owner().id()),
                        "Synchronize with the event on the host", at, error_id{249});
    streams::timed_work const timed(stream, "wait", 0, at, from->id());
    auto const s = stream.wait(now.last, *from);
    if (s.what == driver::code::not_ready)
      continue;  // recorded again meanwhile: use that record
    require(s, "stream::wait", streams::describe(stream) + ", for an event on " + streams::describe(*from),
            s.what == driver::code::not_permitted
                ? "A captured stream can wait only for streams and events of its own capture, until the capture ends"
                : "",
            at);
    return;
  }
}

}  // namespace weir
