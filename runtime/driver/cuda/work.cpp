// Streams, events, copies, fills and test gates on CUDA.
// Threads: any.
#include <algorithm>
#include <array>
#include <cstring>

#include "runtime/driver/cuda/cuda_driver.h"

namespace weir::driver::cuda {
namespace {
stream_handle handle_of(CUstream s) noexcept {
  return static_cast<stream_handle>(reinterpret_cast<std::uintptr_t>(s));
}
}  // namespace

result<stream_handle> cuda_driver::create_stream(int device, stream_kind kind, int priority) {
  call in(*this, device, call::mode::asks);
  if (in.refused())
    return {in.refusal()};
  device_state const& d = at(device);
  CUstream s = nullptr;
  status const said = in.answer(
      api_.cuStreamCreateWithPriority(&s, kind == stream_kind::blocking ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING,
                                      std::clamp(priority, d.greatest_priority, d.least_priority)));
  return {said, handle_of(s)};
}

status cuda_driver::destroy_stream(int device, stream_handle s) {
  if (status const said = refuse_captured(device, s); !said.ok())
    return said;
  call in(*this, device, call::mode::asks);
  if (in.refused())
    return in.refusal();
  // The driver's own streams cannot be destroyed, and a null stream is the legacy stream.
  if (CUstream const stream = stream_of(s); !stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
    return invalid;
  return in.answer(api_.cuStreamDestroy(stream_of(s)));
}

status cuda_driver::query_stream(int device, stream_handle s) {
  return asked(device, [&] { return api_.cuStreamQuery(stream_of(s)); });
}

status cuda_driver::synchronize_stream(int device, stream_handle s) {
  return asked(device, [&] { return api_.cuStreamSynchronize(stream_of(s)); });
}

result<bool> cuda_driver::capturing(int device, stream_handle s) {
  call in(*this, device, call::mode::enqueues);
  if (in.refused())
    return {in.refusal()};
  CUstreamCaptureStatus is = CU_STREAM_CAPTURE_STATUS_NONE;
  CUresult const r = api_.cuStreamIsCapturing(stream_of(s), &is);
  if (r == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
    return {{}, false};  // the legacy stream, while another one is captured
  return {in.answer(r), is != CU_STREAM_CAPTURE_STATUS_NONE};
}

result<stream_handle> cuda_driver::adopt(int device, CUstream_st* foreign) {
  call in(*this, device, call::mode::asks);
  if (in.refused())
    return {in.refusal()};
  if (!foreign)
    return {{}, handle_of(CU_STREAM_LEGACY)};
  if (foreign == CU_STREAM_LEGACY || foreign == CU_STREAM_PER_THREAD)
    return {{}, handle_of(foreign)};
  auto const captured = capturing(device, handle_of(foreign));
  if (!captured.ok())
    return {captured.is};
  // A captured stream is asked nothing more, and counts as one of this device.
  if (captured.value)
    return {{}, handle_of(foreign)};
  auto const of = owner_of(in, device, foreign);
  if (!of.ok())
    return {of.is};
  if (of.value != device)
    return {invalid};
  return {{}, handle_of(foreign)};
}

result<int> cuda_driver::owner_of(call& in, int device, CUstream foreign) {
  CUcontext owner = nullptr;
  if (status const said = in.answer(api_.cuStreamGetCtx(foreign, &owner)); !said.ok())
    return {said};
  if (owner == in.context())
    return {{}, device};
  CUdevice of = -1;  // a non-primary context may be of this device too
  if (status const said = in.answer(api_.cuCtxPushCurrent(owner)); !said.ok())
    return {said};
  CUresult const r = api_.cuCtxGetDevice(&of);
  CUcontext popped = nullptr;
  api_.cuCtxPopCurrent(&popped);
  return {in.answer(r), ordinal_of(of)};
}

result<int> cuda_driver::stream_device(int device, CUstream_st* foreign) {
  call in(*this, device, call::mode::asks);
  if (in.refused())
    return {in.refusal()};
  if (!foreign || foreign == CU_STREAM_LEGACY || foreign == CU_STREAM_PER_THREAD)
    return {{}, device};
  auto const captured = capturing(device, handle_of(foreign));
  if (!captured.ok())
    return {captured.is};
  if (captured.value)
    return {{code::not_permitted}};
  auto const of = owner_of(in, device, foreign);
  if (of.ok() && of.value == no_device)
    return {invalid};
  return of;
}

result<identity> cuda_driver::identify(int device, CUstream_st* foreign) {
  call in(*this, device, call::mode::enqueues);
  if (in.refused())
    return {in.refusal()};
  CUstream const s = foreign ? foreign : CU_STREAM_LEGACY;
  CUstreamCaptureStatus is = CU_STREAM_CAPTURE_STATUS_NONE;
  CUresult r = api_.cuStreamIsCapturing(s, &is);
  // While another stream is captured, the legacy stream counts as captured too. Neither is asked for its id.
  bool const captured = r == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT || is != CU_STREAM_CAPTURE_STATUS_NONE;
  if (captured)
    return {{}, {.handle = handle_of(s), .captured = true}};
  unsigned long long id = 0;
  if (r == CUDA_SUCCESS)
    r = api_.cuStreamGetId(s, &id);
  return {in.answer(r), {.handle = handle_of(s), .id = id}};
}

result<stream_kind> cuda_driver::kind_of(int device, stream_handle s) {
  call in(*this, device, call::mode::asks);
  if (in.refused())
    return {in.refusal()};
  CUstream const stream = stream_of(s);
  if (!stream)
    return {invalid};
  // The driver's own streams are blocking. They are not asked, as another blocking stream may be captured.
  if (stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
    return {{}, stream_kind::blocking};
  if (status const said = refuse_captured(device, s); !said.ok())
    return {said};
  unsigned flags = 0;
  status const said = in.answer(api_.cuStreamGetFlags(stream, &flags));
  return {said, flags & CU_STREAM_NON_BLOCKING ? stream_kind::independent : stream_kind::blocking};
}

result<CUstream_st*> cuda_driver::native(int device, stream_handle s) {
  if (status const may = may_call(); !may.ok())
    return {may};
  if (!exists(device))
    return {invalid};
  return {{}, stream_of(s)};
}

result<event_handle> cuda_driver::create_event(int device, event_kind kind) {
  call in(*this, device, call::mode::asks);
  if (in.refused())
    return {in.refusal()};
  unsigned flags = 0;
  switch (kind) {
    case event_kind::order_only: flags = CU_EVENT_DISABLE_TIMING; break;
    case event_kind::timing: flags = CU_EVENT_DEFAULT; break;
    case event_kind::timing_blocking_sync: flags = CU_EVENT_BLOCKING_SYNC; break;
    case event_kind::blocking_sync: flags = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING; break;
  }
  CUevent e = nullptr;
  if (status const said = in.answer(api_.cuEventCreate(&e, flags)); !said.ok())
    return {said};
  return {{}, pack(e, device)};
}

status cuda_driver::destroy_event(int device, event_handle e) {
  call in(*this, device, call::mode::asks);
  if (in.refused())
    return in.refusal();
  if (!event_of(e) || device_of(e) != device)
    return invalid;
  return in.answer(api_.cuEventDestroy(event_of(e)));
}

result<CUevent_st*> cuda_driver::native_event(event_handle e) {
  if (status const may = may_call(); !may.ok())
    return {may};
  return {{}, event_of(e)};
}

status cuda_driver::record(int device, stream_handle s, event_handle e) {
  call in(*this, device, call::mode::enqueues);
  if (in.refused())
    return in.refusal();
  if (!event_of(e) || device_of(e) != device)
    return invalid;
  return in.answer(api_.cuEventRecord(event_of(e), stream_of(s)));
}

status cuda_driver::wait(int device, stream_handle s, event_handle e) {
  call in(*this, device, call::mode::enqueues);
  if (in.refused())
    return in.refusal();
  if (!event_of(e) || !exists(device_of(e)))
    return invalid;
  // An event of a lost device never completes, so that a usable device would wait forever.
  if (int const lost = at(device_of(e)).lost.load(base::memory_order_relaxed))
    return {code::lost, lost};
  return in.answer(api_.cuStreamWaitEvent(stream_of(s), event_of(e), 0));
}

status cuda_driver::query_event(event_handle e) {
  call in(*this, device_of(e), call::mode::asks);
  if (in.refused())
    return in.refusal();
  if (!event_of(e))
    return invalid;
  return in.answer(api_.cuEventQuery(event_of(e)));
}

status cuda_driver::synchronize_event(event_handle e) {
  call in(*this, device_of(e), call::mode::asks);
  if (in.refused())
    return in.refusal();
  if (!event_of(e))
    return invalid;
  return in.answer(api_.cuEventSynchronize(event_of(e)));
}

result<float> cuda_driver::elapsed_ms(event_handle start, event_handle end) {
  call in(*this, device_of(start), call::mode::asks);
  if (in.refused())
    return {in.refusal()};
  if (!event_of(start) || !event_of(end) || device_of(start) != device_of(end))
    return {invalid};
  float ms = 0;
  status const said = in.answer(api_.cuEventElapsedTime(&ms, event_of(start), event_of(end)));
  return {said, ms};
}

// Host-to-host copies run as a host function: CUDA would make the caller wait, also behind held work.
status cuda_driver::copy_on_host(int device, stream_handle s, void* dst, void const* src, std::size_t bytes) {
  struct both {
    void* to;
    void const* from;
    std::size_t bytes;
  };
  work w;
  w.state = new both{dst, src, bytes};
  w.run = [](void* p) {
    auto const& c = *static_cast<both*>(p);
    std::memmove(c.to, c.from, c.bytes);
  };
  w.drop = [](void* p) { delete static_cast<both*>(p); };
  return host_function(device, s, w);
}

status cuda_driver::copy(int device, stream_handle s, void* dst, void const* src, std::size_t bytes) {
  seen const ends = bytes ? look_at(dst, src, bytes) : seen{};
  // Both ranges begin in pinned memory, and may reach beyond it. copy_on_host() has a `call` of its own.
  if (ends.both_pinned) {
    if (!copyable(src, bytes, ends.src) || !copyable(dst, bytes, ends.dst))
      return invalid;
    return copy_on_host(device, s, dst, src, bytes);
  }
  call in(*this, device, call::mode::enqueues);
  if (in.refused())
    return in.refusal();
  if (bytes == 0)
    return {};
  // CUDA would read pageable memory now, or block until completion: both break this call's contract.
  if (!copyable(src, bytes, ends.src) || !copyable(dst, bytes, ends.dst))
    return invalid;
  return in.answer(
      api_.cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(dst), reinterpret_cast<CUdeviceptr>(src), bytes, stream_of(s)));
}

status cuda_driver::upload(int device, stream_handle s, void* dst, void const* src, std::size_t bytes) {
  call in(*this, device, call::mode::enqueues);
  if (in.refused())
    return in.refusal();
  if (bytes == 0)
    return {};
  if (!copyable(dst, bytes))
    return invalid;
  return in.answer(
      api_.cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(dst), reinterpret_cast<CUdeviceptr>(src), bytes, stream_of(s)));
}

// A call that finds no room waits for the stream's earlier work (docs/lab/machines.md).
upload_room cuda_driver::room_for_uploads() noexcept {
  // Where devices read pageable memory themselves, a call may return before the source is read.
  for (int d = 0; d < device_count(); ++d) {
    int reads_it = 0;
    if (api_.cuDeviceGetAttribute(&reads_it, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
                                  at(d).id) != CUDA_SUCCESS ||
        reads_it)
      return {};
  }
  constexpr std::size_t kib = 1024;
  return {.bytes = 2048 * kib, .most_of_a_small_one = 64 * kib, .most_of_one = 4096 * kib};
}

status cuda_driver::copy_peer(int device, stream_handle s, void* dst, int dst_device, void const* src, int src_device,
                              std::size_t bytes) {
  call in(*this, device, call::mode::enqueues);
  if (in.refused())
    return in.refusal();
  std::array<CUcontext, 2> contexts{};
  for (int i = 0; i < 2; ++i) {
    int const which = i == 0 ? dst_device : src_device;
    if (!exists(which))
      return {code::invalid, CUDA_ERROR_INVALID_DEVICE};
    contexts[static_cast<std::size_t>(i)] = at(which).context.load(base::memory_order_acquire);
    if (!contexts[static_cast<std::size_t>(i)])
      return {code::invalid, CUDA_ERROR_INVALID_CONTEXT};
    if (int const lost = at(which).lost.load(base::memory_order_relaxed))
      return {code::lost, lost};
  }
  if (bytes == 0)
    return {};
  seen const ends = look_at(dst, src, bytes);
  if (!copyable(src, bytes, ends.src) || !copyable(dst, bytes, ends.dst))
    return invalid;
  if (ends.both_pinned)
    return copy_on_host(device, s, dst, src, bytes);
  return in.answer(api_.cuMemcpyPeerAsync(reinterpret_cast<CUdeviceptr>(dst), contexts[0],
                                          reinterpret_cast<CUdeviceptr>(src), contexts[1], bytes, stream_of(s)));
}

status cuda_driver::fill(int device, stream_handle s, void* dst, std::uint32_t pattern, int pattern_bytes,
                         std::size_t count) {
  call in(*this, device, call::mode::enqueues);
  if (in.refused())
    return in.refusal();
  if (pattern_bytes != 1 && pattern_bytes != 2 && pattern_bytes != 4)
    return invalid;
  auto const width = static_cast<std::size_t>(pattern_bytes);
  if (reinterpret_cast<address>(dst) % width != 0 || count > SIZE_MAX / width)
    return invalid;
  if (count == 0)
    return {};
  if (!copyable(dst, count * width))
    return invalid;
  auto const to = reinterpret_cast<CUdeviceptr>(dst);
  if (pattern_bytes == 1)
    return in.answer(api_.cuMemsetD8Async(to, static_cast<unsigned char>(pattern), count, stream_of(s)));
  if (pattern_bytes == 2)
    return in.answer(api_.cuMemsetD16Async(to, static_cast<unsigned short>(pattern), count, stream_of(s)));
  return in.answer(api_.cuMemsetD32Async(to, pattern, count, stream_of(s)));
}

// Simulated devices run such work, and CUDA's none.
status cuda_driver::enqueue(int device, stream_handle, std::span<touch const>, work w) {
  if (w.drop)
    w.drop(w.state);
  if (status const may = may_call(); !may.ok())
    return may;
  return exists(device) ? status{code::not_supported, 0} : invalid;
}

status cuda_driver::make_gate_words(gates& g, call& in) {
  if (g.words)
    return {};
  void* words = nullptr;
  relaxed const mode(api_);
  std::size_t const bytes = g.sequences.size() * sizeof(std::uint32_t);
  status const said =
      in.answer(api_.cuMemHostAlloc(&words, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
  if (!said.ok())
    return said;
  std::fill_n(static_cast<std::uint32_t*>(words), g.sequences.size(), 0u);
  g.words = static_cast<std::uint32_t*>(words);
  return {};
}

int cuda_driver::free_gate_slot(gates const& g, int device) noexcept {
  std::array<bool, gates_a_device> used{};
  for (auto const& [id, closed] : g.closed)
    if (closed.device == device)
      used[static_cast<std::size_t>(closed.slot)] = true;
  auto const unused = std::find(used.begin(), used.end(), false);
  return unused == used.end() ? -1 : static_cast<int>(unused - used.begin());
}

// A gate is a word that the stream waits for. Words only grow, so that a word can serve its next gate before
// a stream that waits for the last one has looked.
result<gate_handle> cuda_driver::hold(int device, stream_handle s) {
  if (status const said = refuse_captured(device, s); !said.ok())
    return {said};
  call in(*this, device, call::mode::enqueues);
  if (in.refused())
    return {in.refusal()};
  int able = 0;
  if (api_.cuDeviceGetAttribute(&able, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, at(device).id) !=
          CUDA_SUCCESS ||
      able == 0)
    return {{code::not_supported, 0}};
  auto g = gates_.lock();  // held during the calls: for tests only, and waiting on a word does not block the host
  if (status const said = make_gate_words(*g, in); !said.ok())
    return {said};
  int const slot = free_gate_slot(*g, device);
  if (slot < 0)
    return {{code::not_permitted, 0}};
  auto const index = static_cast<std::size_t>(device * gates_a_device + slot);
  std::uint32_t const sequence = g->sequences[index] + 1;
  CUdeviceptr seen_from_device = 0;
  if (status const said = in.answer(api_.cuMemHostGetDevicePointer(&seen_from_device, g->words + index, 0)); !said.ok())
    return {said};
  auto const id = g->next++;
  auto const entry = g->closed.emplace(id, gate{.device = device, .slot = slot, .sequence = sequence}).first;
  status const said =
      in.answer(api_.cuStreamWaitValue32(stream_of(s), seen_from_device, sequence, CU_STREAM_WAIT_VALUE_GEQ));
  if (!said.ok()) {
    g->closed.erase(entry);
    return {said};
  }
  g->sequences[index] = sequence;
  return {{}, static_cast<gate_handle>(id)};
}

status cuda_driver::open_gate(gate_handle handle) {
  if (status const may = may_call(); !may.ok())
    return may;
  auto g = gates_.lock();
  auto const found = g->closed.find(static_cast<std::uint64_t>(handle));
  if (found == g->closed.end())
    return invalid;
  gate const& closed = found->second;
  base::store_release(g->words[closed.device * gates_a_device + closed.slot], closed.sequence);
  g->closed.erase(found);
  return {};
}

}  // namespace weir::driver::cuda
