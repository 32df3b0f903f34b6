// The registered stream of a handle, with a memo in each thread; and external_stream.
// Threads: any.
#include "streams/stream/by_handle.h"

#include <array>

#include "streams/stream/context.h"

namespace weir {
namespace streams {
namespace {

struct memo {  // a thread's registered streams by handle
  struct entry {
    CUstream_st* handle = nullptr;
    stream_ref stream = weir::detail::stream_access::none();
    int device = -1;
  };
  static constexpr std::size_t size = 64;
  std::array<entry, size> entries;

  entry& at(int device, CUstream_st* handle) noexcept {  // handles are addresses of objects
    auto const n = reinterpret_cast<std::uintptr_t>(handle);
    return entries[(n / 64 ^ n / 4096 ^ static_cast<std::uintptr_t>(device) * 7) % size];
  }
};

memo& mine() {
  static auto* const value = new base::per_thread<memo>;
  return value->get();
}

clock::clocks& clocks_of(runtime::impl& r) { return r.part<clock::clocks>(); }

driver::stream_handle adopted(runtime::impl& r, int device, CUstream_st* native, char const* operation,
                              source_location at) {
  r.open(device, operation, at);
  auto const s = r.machine().adopt(device, native);
  if (s.is.what == driver::code::invalid) {
    throw invalid_use(operation, "a stream of another device, registered for " + base::gpu_name(device),
                      "Name the device the stream was made on", at);
  }
  require(s.is, operation, base::gpu_name(device), "Streams of the CUDA runtime exist on GPUs alone: use weir::stream",
          at);
  return s.value;
}

}  // namespace

stream_ref const* known_by_handle(int device, CUstream_st* handle, source_location const& at) {
  memo::entry const& e = mine().at(device, handle);
  if (e.device != device || e.handle != handle || process_was_forked()) return nullptr;
  auto const* const stream = weir::detail::stream_access::line_if_valid(e.stream);
  return stream && &stream->owner() == &current_runtime(at) ? &e.stream : nullptr;
}

clock::stream_clock& register_handle(runtime::impl& r, int device, CUstream_st* native, source_location at) {
  if (reinterpret_cast<std::uintptr_t>(native) == static_cast<std::uintptr_t>(driver::stream_handle::per_thread)) {
    throw invalid_use("external_stream",
                      "CUDA's per-thread default stream, which is another stream on every thread",
                      "Register a stream of your own, or use weir::stream", at);
  }
  return clocks_of(r).enrol(device, adopted(r, device, native, "external_stream", at));
}

void unregister_handle(runtime::impl& r, int device, CUstream_st* native, source_location at) {
  auto const h = native ? static_cast<driver::stream_handle>(reinterpret_cast<std::uintptr_t>(native))
                        : driver::stream_handle::legacy;
  auto& clocks = clocks_of(r);
  if (auto* const stream = clocks.registered(device, h)) return clocks.leave(*stream);
  throw invalid_use("unregister_stream",
                    base::text("the handle ", base::address_text(native), " on ", base::gpu_name(device),
                               ", which is not registered"),
                    "Unregister a stream once for each time that it was registered, by the same handle and device", at);
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

stream_ref borrow_stream(weir::device d, CUstream_st* native, source_location at) {
  auto& r = streams::current_runtime(at);
  int const i = streams::resolve(d, r, "borrow_stream", at);
  if (auto const* const known = streams::known_by_handle(i, native, at)) return *known;
  auto const handle = streams::adopted(r, i, native, "borrow_stream", at);
  auto& clocks = streams::clocks_of(r);
  clock::stream_clock* stream = clocks.registered(i, handle);
  // CUDA never destroys the legacy stream: it is registered for good.
  if (!stream && handle == driver::stream_handle::legacy) stream = &clocks.enrol(i, handle);
  if (!stream) {
    throw invalid_use("borrow_stream", base::text("a stream of ", base::gpu_name(i), " that is not registered"),
                      "Keep an external_stream of it (weir_register_stream in C) while it is used", at);
  }
  stream_ref const out = streams::ref_of(*stream);
  streams::mine().at(i, native) = {native, out, i};
  return out;
}

}  // namespace weir
