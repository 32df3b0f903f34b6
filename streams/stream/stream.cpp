// weir/stream.h: stamps and streams over the clocks and the pool.
// Threads: any.
#include "weir/stream.h"

#include "runtime/base/call_site.h"
#include "runtime/driver/allocation_observer.h"
#include "runtime/memory/device/device_memory.h"
#include "streams/stream/context.h"
#include "streams/stream/stream_pool.h"
#include "streams/stream/timed_work.h"

namespace weir {
namespace {

clock::clocks& clocks_of(clock::stream_clock const& t) {
  return t.owner().part<clock::clocks>();
}

void check_one_runtime(clock::stream_clock const& a, clock::stream_clock const& b, char const* operation,
                       source_location at) {
  if (&a.owner() == &b.owner())
    return;
  throw invalid_use(operation,
                    streams::describe(a) + " of runtime " + std::to_string(a.owner().id()) + ", " +
                        streams::describe(b) + " of runtime " + std::to_string(b.owner().id()),
                    "Synchronize with the other runtime's stream on the host", at, error_id{250});
}

void require_wait(driver::status s, clock::stream_clock const& waiter, std::string_view operation,
                  std::string const& what, source_location at) {
  if (s.ok())
    return;
  streams::require_not_stuck(waiter.owner().machine(), s, operation, at);
  throw_refusal(s, operation, streams::describe(waiter) + ", " + what,
                s.what == driver::code::not_permitted
                    ? "A captured stream waits for streams and events of its own capture alone, and cannot be asked: "
                      "synchronize with other work on the host before the capture begins"
                    : "",
                at);
}

}  // namespace

bool stamp::query(source_location at) const {
  if (process_was_forked())
    streams::throw_forked("stamp::query", at);
  clock::stream_clock* const stream = clock::find(stream_);
  if (!stream)
    return true;
  auto const r = clocks_of(*stream).poll({stream_, n_});
  require(r.is, "stamp::query", streams::describe(*stream), "", at);
  return r.value;
}

void stamp::synchronize(source_location at) const {
  if (process_was_forked())
    streams::throw_forked("stamp::synchronize", at);
  clock::stream_clock* const stream = clock::find(stream_);
  if (!stream)
    return;
  observe::host_span const waits("synchronize", at);
  base::call_site const in(stream->owner().observer(), "synchronize", at);
  auto const is = clocks_of(*stream).synchronize({stream_, n_});
  streams::require_not_stuck(stream->owner().machine(), is, "stamp::synchronize", at);
  require(is, "stamp::synchronize", streams::describe(*stream), "", at);
  memory::device_memory::return_idle(stream->owner(), stream->device());
}

device stream_ref::device() const noexcept {
  return weir::device(clock::tenure_word::device(tenure_));
}
std::uint64_t stream_ref::id() const noexcept {
  return clock::tenure_word::id(tenure_);
}
stamp stream_ref::stamp() const noexcept {
  clock::stream_clock const* const stream = clock::find(id());
  return stream ? streams::public_stamp(stream->now()) : weir::stamp{};
}

bool stream_ref::query(source_location at) const {
  auto& stream = streams::clock_or_throw(*this, "stream::query", at);
  auto const r = stream.query();
  require_wait(r.is, stream, "stream::query", "asked", at);
  return r.value;
}

void stream_ref::synchronize(source_location at) const {
  auto& stream = streams::clock_or_throw(*this, "stream::synchronize", at);
  observe::host_span const waits("synchronize", at);
  base::call_site const in(stream.owner().observer(), "synchronize", at);
  require_wait(stream.synchronize(), stream, "stream::synchronize", "waited for", at);
  memory::device_memory::return_idle(stream.owner(), stream.device());
}

void stream_ref::wait(weir::stamp s, source_location at) const {
  auto& stream = streams::worker_or_throw(*this, "stream::wait", at);
  clock::named_in_call const named(stream);
  clock::stamp const wanted = streams::inner_stamp(s);
  // Stamps of a stream whose runtime has ended are covered, too. rely_on() gets null for it then.
  if (stream.covers(wanted))
    return stream.rely_on(clock::find(wanted.stream));
  // Not null, because the stamp is not covered.
  clock::stream_clock const& other = *clock::find(wanted.stream);
  check_one_runtime(stream, other, "stream::wait", at);
  streams::timed_work const timed(stream, "wait", 0, at, other.id());
  base::call_site const in(stream.owner().observer(), "wait", at);
  auto is = stream.wait(wanted);
  // No fence can be recorded now on a borrowed or retired stream. What none covers, the host waits for.
  bool const cannot_be_fenced = other.alive() == clock::life::borrowed || other.alive() == clock::life::retired;
  if (!is.ok() && cannot_be_fenced)
    is = clocks_of(stream).synchronize(wanted);
  require_wait(is, stream, "stream::wait", "for " + streams::describe(other), at);
}

void stream_ref::wait(stream_ref other, source_location at) const {
  auto& stream = streams::worker_or_throw(*this, "stream::wait", at);
  auto& from = streams::clock_or_throw(other, "stream::wait", at);
  clock::stamp const wanted = from.now();
  if (stream.covers(wanted))
    return;
  check_one_runtime(stream, from, "stream::wait", at);
  streams::timed_work const timed(stream, "wait", 0, at, from.id());
  base::call_site const in(stream.owner().observer(), "wait", at);
  clock::named_in_call const named(from);
  auto is = stream.wait(wanted);
  if (is.what == driver::code::not_permitted) {  // perhaps the other stream is captured
    if (auto const joined = stream.join(from); joined.ok())
      return;
  }
  require_wait(is, stream, "stream::wait", "for " + streams::describe(from), at);
}

event stream_ref::record_event(source_location at) const {
  event e;
  e.record(*this, at);
  return e;
}

bool stream_ref::is_capturing(source_location at) const {
  auto& stream = streams::clock_or_throw(*this, "stream::is_capturing", at);
  auto const r = stream.captured();
  require(r.is, "stream::is_capturing", streams::describe(stream), "", at);
  return r.value;
}

stream_flags stream_ref::flags(source_location at) const {
  auto& stream = streams::clock_or_throw(*this, "stream::flags", at);
  driver::result<driver::stream_kind> r;
  if (stream.alive() == clock::life::own) {  // weir knows, and asks no driver
    r.value = stream.owner().part<streams::stream_pool>().kind_of(stream);
  } else {
    r = stream.owner().machine().kind_of(stream.device(), stream.handle());
  }
  if (r.is.what == driver::code::not_permitted)
    throw invalid_use("stream::flags", streams::describe(stream) + ", which is captured",
                      "Ask an external stream for its flags before or after its capture", at, error_id{453});
  require(r.is, "stream::flags", streams::describe(stream), "", at);
  return r.value == driver::stream_kind::blocking ? stream_flags::blocking : stream_flags::non_blocking;
}

CUstream_st* streams::native_handle(clock::stream_clock const& stream, source_location at) {
  auto& machine = stream.owner().machine();
  auto const r = machine.native(stream.device(), stream.handle());
  require(r.is, "stream::native", streams::describe(stream) + " on " + stream.owner().why(),
          "Give work to a simulated stream with weir::launch or parallel_for", at);
  require(machine.make_current(stream.device()), "stream::native", streams::describe(stream), "", at);
  return r.value;
}

CUstream_st* stream_ref::native(source_location at) const {
  auto& stream = streams::clock_or_throw(*this, "stream::native", at);
  auto* const handle = streams::native_handle(stream, at);
  // The checker judges no work that CUDA gets by this handle, and says so.
  if (auto* const w = stream.owner().observer()) [[unlikely]]
    w->stream_handed_out({stream.device(), stream.handle()});
  return handle;
}

event stream::record_event(source_location at) const {
  return ref_.record_event(at);
}

stream::stream(weir::priority p, source_location at) : stream(gpu, stream_flags::non_blocking, p, at) {}

stream::stream(weir::device d, weir::priority p, source_location at) : stream(d, stream_flags::non_blocking, p, at) {}

stream::stream(stream_flags f, weir::priority p, source_location at) : stream(gpu, f, p, at) {}

stream::stream(weir::device d, stream_flags f, weir::priority p, source_location at)
    : ref_(streams::ref_of([&]() -> clock::stream_clock& {
        auto& r = streams::current_runtime(at);
        int const device = streams::resolve(d, r, "stream", at);
        auto& s = r.part<streams::stream_pool>().lease(device, streams::kind_of(f), p, at);
        if (auto* const w = r.observer()) [[unlikely]]
          w->stream_made({s.device(), s.handle()}, at);
        return s;
      }())) {}

stream::stream(stream&& from) noexcept : ref_(std::exchange(from.ref_, detail::stream_access::none())) {}

stream& stream::operator=(stream&& from) noexcept {
  std::swap(ref_, from.ref_);
  return *this;
}

stream::~stream() {
  clock::stream_clock* const line = clock::find(ref_.id());  // null: moved from, or the runtime is gone
  if (!line || process_is_ending() || process_was_forked())
    return;
  if (auto* const pool = line->owner().part_if_made<streams::stream_pool>())
    pool->give_back(*line);
}

stream_ref default_stream(device d, source_location at) {
  auto& r = streams::current_runtime(at);
  return streams::ref_of(r.part<streams::stream_pool>().default_line(streams::resolve(d, r, "default_stream", at), at));
}

stream_ref current_stream(device d, source_location at) {
  auto& r = streams::current_runtime(at);
  return streams::ref_of(streams::current_clock(r, streams::resolve(d, r, "current_stream", at), at));
}

namespace {
clock::stream_clock& of_this_runtime(stream_ref s, char const* operation, source_location at) {
  auto& stream = streams::clock_or_throw(s, operation, at);
  auto& r = streams::current_runtime(at);
  if (&stream.owner() != &r)
    throw invalid_use(operation,
                      streams::describe(stream) + " of runtime " + std::to_string(stream.owner().id()) +
                          ", the thread's is " + std::to_string(r.id()),
                      "Enter the stream's runtime with a runtime_guard first", at, error_id{251});
  if (stream.alive() == clock::life::borrowed)
    throw invalid_use(operation, "a borrowed stream, " + streams::describe(stream),
                      "Keep an external_stream of it: a current stream has to exist as long as it is current", at,
                      error_id{252});
  return stream;
}
}  // namespace

void set_stream(stream_ref s, source_location at) {
  auto& stream = of_this_runtime(s, "set_stream", at);
  streams::choose(stream.owner(), stream.device(), &stream, "set_stream", at);
}

stream_guard::stream_guard(stream_ref s, source_location at) {
  auto& stream = of_this_runtime(s, "stream_guard", at);
  mark_ = streams::enter(stream.owner(), stream.device(), &stream, "stream_guard", at);
}

stream_guard::~stream_guard() {
  streams::leave(mark_);
}

}  // namespace weir
