// The stream of a handle: external_stream, borrow_stream, and what adaptors of other libraries ask.
// Threads: any.
#include "streams/stream/by_handle.h"

#include <optional>

#include "streams/stream/borrowed.h"
#include "weir/memory.h"
#include "weir/stream_of.h"

namespace weir {
namespace streams {

// A value of a thread is destroyed at its end; what comes later finds the empty memo.
handle_memo& handle_memo::mine() {
  struct own {
    handle_memo its;
    own() { value() = &its; }
    ~own() { value() = &empty; }
  };
  static base::per_thread<own> all;
  return all.get().its;
}

void handle_memo::note(int device, CUstream_st* handle, clock::stream_clock& s, std::uint64_t version) {
  const_cast<entry&>(mine().at(device, handle)) = {handle, &s, version, guarded_runtime(), device};
}

void handle_memo::forget_that_one_is_current() noexcept {
  if (value() == &empty)
    return;
  for (entry& e : const_cast<handle_memo*>(value())->entries_)
    if (e.device <= of_any_device)
      e = {};
}

namespace {

driver::stream_handle handle_of(CUstream_st* s) noexcept {
  return s ? static_cast<driver::stream_handle>(reinterpret_cast<std::uintptr_t>(s)) : driver::stream_handle::legacy;
}

clock::clocks& clocks_of(runtime::impl& r) {
  return r.part<clock::clocks>();
}

driver::stream_handle adopted(runtime::impl& r, int device, CUstream_st* native, char const* operation,
                              source_location at) {
  r.open(device, operation, at);
  auto const s = r.machine().adopt(device, native);
  if (s.is.what == driver::code::invalid)
    throw_other_device(operation, device, at);
  require(s.is, operation, base::gpu_name(device), "Pass the handle of a stream that exists", at);
  return s.value;
}

}  // namespace

void throw_other_device(char const* operation, int device, source_location at) {
  throw invalid_use(operation, "a stream of another device, named for " + base::gpu_name(device),
                    "Name the device the stream was made on, while the stream exists", at, error_id{231});
}

clock::stream_clock& register_handle(runtime::impl& r, int device, CUstream_st* native, source_location at,
                                     external_stream_options o) {
  if (handle_of(native) == driver::stream_handle::per_thread)
    throw invalid_use("external_stream", "CUDA's per-thread default stream, which is another stream on every thread",
                      "Register a stream of your own, or use weir::stream", at, error_id{232});
  return clocks_of(r).enrol(device, adopted(r, device, native, "external_stream", at), o.announces_captures);
}

void unregister_handle(runtime::impl& r, int device, CUstream_st* native, source_location at) {
  if (clocks_of(r).leave(device, handle_of(native)))
    return;
  throw invalid_use("unregister_stream",
                    base::text("the handle ", base::address_text(native), " on ", base::gpu_name(device),
                               ", which is not registered"),
                    "Unregister a stream once for each time that it was registered, by the same handle and device", at,
                    error_id{233});
}

}  // namespace streams

external_stream::external_stream(weir::device d, CUstream_st* native, source_location at)
    : external_stream(d, native, external_stream_options{}, at) {}
external_stream::external_stream(weir::device d, CUstream_st* native, external_stream_options o, source_location at)
    : ref_(streams::ref_of([&]() -> clock::stream_clock& {
        auto& r = streams::current_runtime(at);
        return streams::register_handle(r, streams::resolve(d, r, "external_stream", at), native, at, o);
      }())) {}

external_stream::~external_stream() {
  clock::stream_clock* const stream = clock::find(ref_.id());
  if (!stream || process_is_ending() || process_was_forked())
    return;
  (void)streams::clocks_of(stream->owner()).leave(ref_.id());
}

namespace {

// Null, cudaStreamLegacy and cudaStreamPerThread: each device has one.
bool is_of_each_device(CUstream_st* native) noexcept {
  return streams::handle_of(native) <= driver::stream_handle::per_thread;
}

// Waits for whatever a stream that no longer exists has left: its device is not known. Throws: driver_error
// (in a capture), device_lost
void wait_for_every_device(runtime::impl& r, char const* operation, source_location at) {
  for (int d = 0; d < r.device_count(); ++d) {
    auto const is = streams::clocks_of(r).synchronize_device(d);
    if (is.what == driver::code::invalid)
      continue;  // nothing of this process runs there
    require(is, operation, base::gpu_name(d) + ", for a stream that does not exist any more",
            "Name a stream that exists, or free after the work is done and without a stream", at);
  }
}

}  // namespace

stream_ref borrow_stream(weir::device d, CUstream_st* native, source_location at) {
  if (auto* const known = streams::handle_memo::find(d.index(), native))
    return streams::ref_of(*known);
  auto& r = streams::current_runtime(at);
  int const i = streams::resolve(d, r, "borrow_stream", at);
  auto const handle = streams::handle_of(native);
  std::uint64_t const version = streams::handle_memo::version();
  auto* stream = streams::clocks_of(r).known(i, handle);
  // CUDA never destroys the legacy stream: it is registered for good.
  if (!stream && handle == driver::stream_handle::legacy)
    stream = &streams::register_handle(r, i, native, at);
  using streams::borrowed_streams;
  if (!stream)
    return streams::ref_of(r.part<borrowed_streams>().named(i, native, borrowed_streams::of::this_device, at));
  streams::handle_memo::note(i, native, *stream, version);
  return streams::ref_of(*stream);
}

stream_ref detail::stream_of(CUstream_st* native, source_location at) {
  using streams::handle_memo;
  if (auto* const known = handle_memo::find(handle_memo::of_any_device, native))
    return streams::ref_of(*known);
  auto& r = streams::current_runtime(at);
  int const here = streams::device_in_cuda(r, "stream_of", at);
  if (is_of_each_device(native))
    return borrow_stream(here, native, at);
  std::uint64_t const version = handle_memo::version();
  auto* stream = streams::clocks_of(r).known(here, streams::handle_of(native));
  using streams::borrowed_streams;
  if (!stream)
    stream = &r.part<borrowed_streams>().named(here, native, borrowed_streams::of::any_device, at);
  if (stream->alive() != clock::life::borrowed)
    handle_memo::note(handle_memo::of_any_device, native, *stream, version);
  return streams::ref_of(*stream);
}

stream_ref detail::stream_of(weir::device d, CUstream_st* native, source_location at) {
  if (d == gpu)
    return stream_of(native, at);
  using streams::handle_memo;
  int const key = handle_memo::of_device(d.index());
  if (auto* const known = handle_memo::find(key, native))
    return streams::ref_of(*known);
  std::uint64_t const version = handle_memo::version();
  stream_ref const found = borrow_stream(d, native, at);
  // If no device is current in CUDA, this one becomes it.
  (void)streams::device_in_cuda(streams::current_runtime(at), d.index(), "stream_of", at);
  clock::stream_clock& stream = streams::clock_of(found);
  if (stream.alive() != clock::life::borrowed)
    handle_memo::note(key, native, stream, version);
  return found;
}

device detail::device_in_cuda(source_location at) {
  return streams::device_in_cuda(streams::current_runtime(at), "current device", at);
}

device detail::device_of_call(weir::device d, source_location at) {
  if (d == gpu)
    return device_in_cuda(at);
  (void)streams::device_in_cuda(streams::current_runtime(at), d.index(), "current device", at);
  return d;
}

void detail::deallocate_on(weir::device d, CUstream_st* last_use, void* p, source_location at) {
  if (!p)
    return;
  std::optional<stream_ref> stream;  // none: it does not exist, or cannot be asked
  bool exists = true;
  try {
    // Any other handle tells its device.
    stream = is_of_each_device(last_use) ? stream_of(d, last_use, at) : stream_of(last_use, at);
  } catch (not_supported const&) {  // a forked child, or the end of the process
  } catch (device_lost const&) {
    throw;  // a driver_error, but of no missing stream
  } catch (invalid_use const&) {
    exists = false;
  } catch (driver_error const&) {
    exists = false;
  }
  if (stream)
    return weir::deallocate(*stream, p, at);
  if (!exists)
    wait_for_every_device(streams::current_runtime(at), "deallocate", at);
  weir::deallocate(p, at);
}

// A borrowed home is fenced only in a call that names it. If its handle names another stream by now, the home
// has ended.
void detail::deallocate_at_home(void* p, source_location at) {
  if (deallocate_quickly(p))
    return;
  auto const block = p ? streams::block_of_allocator(p) : std::nullopt;
  auto const* const home = block && block->home ? stream_access::line_if_valid(*block->home) : nullptr;
  if (!home || home->alive() != clock::life::borrowed)
    return deallocate_slowly(p, at);
  auto* const native = reinterpret_cast<CUstream_st*>(static_cast<std::uintptr_t>(home->handle()));
  try {
    if (borrow_stream(home->device(), native, at) == *block->home)
      return deallocate(*block->home, p, at);
  } catch (driver_error const&) {  // the home has ended
  } catch (invalid_use const&) {}
  deallocate_slowly(p, at);
}

}  // namespace weir
