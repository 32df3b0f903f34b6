// The stream of a handle: external_stream, borrow_stream, and the adaptors' stream_of.
// Threads: any.
#include "streams/stream/by_handle.h"

#include "streams/stream/borrowed.h"
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
  static auto* const all = new base::per_thread<own>;
  return all->get().its;
}

void handle_memo::note(int device, CUstream_st* handle, clock::stream_clock& s, std::uint64_t version) {
  const_cast<entry&>(mine().at(device, handle)) = {handle, &s, version, guarded_runtime(), device};
}

namespace {

driver::stream_handle handle_of(CUstream_st* s) noexcept {
  return s ? static_cast<driver::stream_handle>(reinterpret_cast<std::uintptr_t>(s)) : driver::stream_handle::legacy;
}

clock::clocks& clocks_of(runtime::impl& r) { return r.part<clock::clocks>(); }

driver::stream_handle adopted(runtime::impl& r, int device, CUstream_st* native, char const* operation,
                              source_location at) {
  r.open(device, operation, at);
  auto const s = r.machine().adopt(device, native);
  if (s.is.what == driver::code::invalid) throw_other_device(operation, device, at);
  require(s.is, operation, base::gpu_name(device), "Pass the handle of a stream that exists", at);
  return s.value;
}

}  // namespace

void throw_other_device(char const* operation, int device, source_location at) {
  throw invalid_use(operation, "a stream of another device, named for " + base::gpu_name(device),
                    "Name the device the stream was made on, while the stream exists", at, error_id{231});
}

clock::stream_clock& register_handle(runtime::impl& r, int device, CUstream_st* native, source_location at) {
  if (handle_of(native) == driver::stream_handle::per_thread)
    throw invalid_use("external_stream", "CUDA's per-thread default stream, which is another stream on every thread",
                      "Register a stream of your own, or use weir::stream", at, error_id{232});
  return clocks_of(r).enrol(device, adopted(r, device, native, "external_stream", at));
}

void unregister_handle(runtime::impl& r, int device, CUstream_st* native, source_location at) {
  auto& clocks = clocks_of(r);
  if (auto* const stream = clocks.registered(device, handle_of(native))) return clocks.leave(*stream);
  throw invalid_use("unregister_stream",
                    base::text("the handle ", base::address_text(native), " on ", base::gpu_name(device),
                               ", which is not registered"),
                    "Unregister a stream once for each time that it was registered, by the same handle and device", at,
                    error_id{233});
}

}  // namespace streams

external_stream::external_stream(weir::device d, CUstream_st* native, source_location at)
    : ref_(streams::ref_of([&]() -> clock::stream_clock& {
        auto& r = streams::current_runtime(at);
        return streams::register_handle(r, streams::resolve(d, r, "external_stream", at), native, at);
      }())) {}

external_stream::~external_stream() {
  clock::stream_clock* const stream = clock::find(ref_.id());
  if (!stream || process_is_ending() || process_was_forked()) return;
  streams::clocks_of(stream->owner()).leave(*stream);
}

namespace {

// The stream of a handle, by the thread's memo or among the registered ones. Another one is what
// unknown(runtime, device, handle) registers. Null: the call borrows it.
template <class Unknown>
stream_ref stream_behind(weir::device d, CUstream_st* native, char const* operation, source_location at,
                         Unknown const& unknown) {
  if (auto* const known = streams::handle_memo::find(d.index(), native)) return streams::ref_of(*known);
  auto& r = streams::current_runtime(at);
  int const i = streams::resolve(d, r, operation, at);
  auto const handle = streams::handle_of(native);
  std::uint64_t const version = streams::handle_memo::version();
  auto* stream = streams::clocks_of(r).registered(i, handle);
  if (!stream) stream = unknown(r, i, handle);
  if (!stream) return streams::ref_of(r.part<streams::borrowed_streams>().named(i, native, at));
  streams::handle_memo::note(i, native, *stream, version);
  return streams::ref_of(*stream);
}

}  // namespace

// CUDA never destroys the legacy stream: it is registered for good.
stream_ref borrow_stream(weir::device d, CUstream_st* native, source_location at) {
  return stream_behind(d, native, "borrow_stream", at, [&](auto& r, int i, auto handle) {
    return handle == driver::stream_handle::legacy ? &streams::register_handle(r, i, native, at) : nullptr;
  });
}

stream_ref detail::stream_of(weir::device d, CUstream_st* native, source_location at) {
  return stream_behind(d, native, "stream_of", at, [&](auto& r, int i, auto handle) {
    return handle == driver::stream_handle::per_thread ? nullptr : &streams::register_handle(r, i, native, at);
  });
}

}  // namespace weir
