// Copies as single operations of a stream.
// Threads: any.
#include "streams/copy/copy_engine.h"

#include "runtime/base/call_site.h"
#include "streams/stream/timed_work.h"

namespace weir::streams {
namespace {

// src null: a fill
[[noreturn]] void throw_refused(driver::status why, clock::stream_clock const& stream, void const* dst, void const* src,
                                std::size_t bytes, source_location at, std::string const& whose = "") {
  bool const filling = !src;
  std::size_t const before = copy_in_parts::so_far();
  std::string remedy = "Nothing was enqueued: repeat the call";
  if (why.what == driver::code::lost)
    remedy = "Continue with the other devices";
  else if (before > 0)
    remedy = base::text(before, " B of the same call were enqueued before: repeat the whole call");
  throw_refusal(why, filling ? "fill" : "copy",
                range_text(dst, bytes) + (filling ? "" : " <- " + range_text(src, bytes)) +
                    " on a stream of gpu:" + std::to_string(stream.device()) + whose,
                remedy, at);
}

template <class Enqueue>
driver::status observed_copy(clock::stream_clock& stream, std::size_t bytes, source_location const& at,
                             Enqueue enqueue) {
  auto& r = stream.owner();
  // These scopes serve observers alone.
  if (r.observer() || observe::span_recorder::on()) [[unlikely]] {
    base::call_site const in(r.observer(), "copy", at);
    timed_work const timed(stream, "copy", bytes, at);
    return stream.note(enqueue(r.machine()));
  }
  auto const done = enqueue(r.machine());
  if (done.ok())
    return done;
  return stream.note(done);  // the device may be lost
}

}  // namespace

std::size_t*& copy_in_parts::current() noexcept {
  struct parts;
  return base::thread_pointer<parts, static_cast<std::size_t*>(nullptr)>::value;
}

std::string range_text(void const* p, std::size_t bytes) {
  return base::text(base::address_text(p), " (", bytes, " B)");
}

std::string which_is_lost(runtime::impl& r, driver::status why, int one, int other) {
  if (why.what != driver::code::lost)
    return "";
  std::string out;
  for (int const d : {one, other})
    if (r.machine().memory(d).is.what == driver::code::lost)
      out += (out.empty() ? ": gpu:" : " and gpu:") + std::to_string(d);
  return out;
}

driver::status try_copy(clock::stream_clock& stream, void* dst, void const* src, std::size_t bytes,
                        source_location const& at) {
  return observed_copy(stream, bytes, at, [&](driver::driver& machine) {
    return machine.copy(stream.device(), stream.handle(), dst, src, bytes);
  });
}

void enqueue_upload(clock::stream_clock& stream, void* dst, void const* src, std::size_t bytes, source_location at) {
  auto const done = observed_copy(stream, bytes, at, [&](driver::driver& machine) {
    return machine.upload(stream.device(), stream.handle(), dst, src, bytes);
  });
  if (!done.ok()) [[unlikely]]
    throw_refused(done, stream, dst, src, bytes, at);
  copy_in_parts::enqueued(bytes);
}

void throw_refused_copy(driver::status why, clock::stream_clock const& stream, void const* dst, void const* src,
                        std::size_t bytes, source_location at) {
  throw_refused(why, stream, dst, src, bytes, at);
}

void enqueue_copy(clock::stream_clock& stream, void* dst, void const* src, std::size_t bytes, source_location at) {
  auto const done = try_copy(stream, dst, src, bytes, at);
  if (!done.ok()) [[unlikely]]
    throw_refused(done, stream, dst, src, bytes, at);
  copy_in_parts::enqueued(bytes);
}

driver::status try_peer_copy(clock::stream_clock& stream, void* dst, int dst_device, void const* src, int src_device,
                             std::size_t bytes, source_location at) noexcept {
  base::call_site const in(stream.owner().observer(), "copy", at);
  timed_work const timed(stream, "copy", bytes, at);
  auto const done =
      stream.owner().machine().copy_peer(stream.device(), stream.handle(), dst, dst_device, src, src_device, bytes);
  // The lost device may be either: a query of the stream's own marks it, if it is that one.
  if (done.what == driver::code::lost)
    (void)stream.note(stream.owner().machine().query_stream(stream.device(), stream.handle()));
  return done;
}

void enqueue_peer_copy(clock::stream_clock& stream, void* dst, int dst_device, void const* src, int src_device,
                       std::size_t bytes, source_location at) {
  auto const done = try_peer_copy(stream, dst, dst_device, src, src_device, bytes, at);
  if (!done.ok()) [[unlikely]]
    throw_refused(done, stream, dst, src, bytes, at, which_is_lost(stream.owner(), done, dst_device, src_device));
  copy_in_parts::enqueued(bytes);
}

void enqueue_fill(clock::stream_clock& stream, void* dst, std::byte value, std::size_t bytes, source_location at) {
  base::call_site const in(stream.owner().observer(), "fill", at);
  timed_work const timed(stream, "fill", bytes, at);
  auto const done = stream.note(stream.owner().machine().fill(stream.device(), stream.handle(), dst,
                                                              static_cast<std::uint32_t>(value), 1, bytes));
  if (!done.ok()) [[unlikely]]
    throw_refused(done, stream, dst, nullptr, bytes, at);
}

}  // namespace weir::streams
