// Memory that the program takes from CUDA itself.
// Threads: any. A free is told before it is made: the address may be another thread's as soon as the call returns.
#include "runtime/driver/cuda/symbols.h"
#include "runtime/driver/cuda/watch/seen_call.h"

#if WEIR_HAS_CUPTI
#include <algorithm>
#include <map>

#include "runtime/base/lasting.h"
#include "runtime/base/sync.h"

namespace weir::driver::cuda {
namespace {

constexpr int of_host = -1;

void tell_taken(seen_call const& call, int device, seen_calls::stream stream, address at, std::size_t bytes) {
  if (at == 0)
    return;
  base::site const site = call.site();
  call.each([&](seen_calls& to) { to.allocated(device, stream, at, bytes, site); });
}
void tell_given_back(seen_call const& call, int device, seen_calls::stream stream, address at) {
  if (at == 0)
    return;
  base::site const site = call.site();
  call.each([&](seen_calls& to) { to.freed(device, stream, at, site); });
}

void tell_device_memory(seen_call const& call) {
  auto const& p = call.given<cuMemAlloc_v2_params>();
  tell_taken(call, call.device(), seen_calls::no_stream, number_of(*p.dptr), p.bytesize);
}
void tell_rows_of_memory(seen_call const& call) {
  auto const& p = call.given<cuMemAllocPitch_v2_params>();
  tell_taken(call, call.device(), seen_calls::no_stream, number_of(*p.dptr), *p.pPitch * p.Height);
}
void tell_managed(seen_call const& call) {
  auto const& p = call.given<cuMemAllocManaged_params>();
  call.not_understood("uses of managed memory by the host");
  tell_taken(call, call.device(), seen_calls::no_stream, number_of(*p.dptr), p.bytesize);
}
// Memory of a graph lies where memory that was freed may have lain.
void tell_memory_of_graph(seen_call const& call, CUdeviceptr at, std::size_t bytes) {
  call.not_understood("allocations inside graphs of the program");
  call.each([&](seen_calls& to) { to.hidden(number_of(at), bytes); });
}
void tell_memory_node(seen_call const& call) {
  auto const& p = *call.given<cuGraphAddMemAllocNode_params>().nodeParams;
  tell_memory_of_graph(call, p.dptr, p.bytesize);
}
#if CUDA_VERSION >= 12030
template <class Parameters>
void tell_node(seen_call const& call) {
  CUgraphNodeParams const& p = *call.given<Parameters>().nodeParams;
  if (p.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
    tell_memory_of_graph(call, p.alloc.dptr, p.alloc.bytesize);
}
#endif
template <class Parameters>
void tell_memory_in_order(seen_call const& call) {
  auto const& p = call.given<Parameters>();
  if (call.is_captured(p.hStream))
    return tell_memory_of_graph(call, *p.dptr, p.bytesize);
  tell_taken(call, call.device_of(p.hStream), call.handle(p.hStream), number_of(*p.dptr), p.bytesize);
}
void tell_pages(seen_call const& call) {
  auto const& p = call.given<cuMemMap_params>();
  tell_taken(call, call.device(), seen_calls::no_stream, number_of(p.ptr), p.size);
}
template <class Parameters>
void tell_host_memory(seen_call const& call) {
  auto const& p = call.given<Parameters>();
  tell_taken(call, of_host, seen_calls::no_stream, number_of(*p.pp), p.bytesize);
}
void tell_registered(seen_call const& call) {
  auto const& p = call.given<cuMemHostRegister_v2_params>();
  tell_taken(call, of_host, seen_calls::no_stream, number_of(p.p), p.bytesize);
}

void tell_free(seen_call const& call) {
  tell_given_back(call, of_host, seen_calls::no_stream, number_of(call.given<cuMemFree_v2_params>().dptr));
}
void tell_unmapped(seen_call const& call) {
  auto const& p = call.given<cuMemUnmap_params>();
  base::site const site = call.site();
  call.each([&](seen_calls& to) { to.unmapped(number_of(p.ptr), p.size, site); });
}
void tell_free_in_order(seen_call const& call) {
  auto const& p = call.given<cuMemFreeAsync_params>();
  if (!call.is_captured(p.hStream))
    tell_given_back(call, call.device_of(p.hStream), call.handle(p.hStream), number_of(p.dptr));
}
template <class Parameters>
void tell_host_free(seen_call const& call) {
  tell_given_back(call, of_host, seen_calls::no_stream, number_of(call.given<Parameters>().p));
}

// Memory that no call takes -----------------------------------------------------------------------------------

void tell_found(seen_call const& call, CUdeviceptr at, std::size_t bytes) {
  if (at == 0 || bytes == 0)
    return;
  int const device = call.device();
  base::site const site = call.site();
  call.each([&](seen_calls& to) { to.found(device, number_of(at), bytes, site); });
}

struct bytes_at {
  CUdeviceptr at = 0;
  std::size_t bytes = 0;
};
// Variables of modules, told once: by the handle of the module or library.
using variables = std::multimap<void*, bytes_at>;
base::guarded<variables>& known_variables() {
  static base::lasting<base::guarded<variables>> all;
  return *all;
}
void tell_variable(seen_call const& call, void* of, CUdeviceptr const* at, std::size_t const* bytes) {
  if (!at || !bytes)  // the program asks for one of the two
    return;
  {
    auto const all = known_variables().lock();
    auto const [first, last] = all->equal_range(of);
    if (std::none_of(first, last, [&](auto const& one) { return one.second.at == *at; }))
      all->emplace(of, bytes_at{*at, *bytes});
  }
  tell_found(call, *at, *bytes);
}
void tell_variable_of_module(seen_call const& call) {
  auto const& p = call.given<cuModuleGetGlobal_v2_params>();
  tell_variable(call, p.hmod, p.dptr, p.bytes);
}
template <class Parameters>
void tell_variable_of_library(seen_call const& call) {
  auto const& p = call.given<Parameters>();
  tell_variable(call, p.library, p.dptr, p.bytes);
}
void forget_variables(seen_call const& call, void* of) {
  std::vector<bytes_at> gone;
  {
    auto const all = known_variables().lock();
    auto const [first, last] = all->equal_range(of);
    for (auto at = first; at != last; ++at)
      gone.push_back(at->second);
    all->erase(first, last);
  }
  for (bytes_at const& g : gone)
    call.each([&](seen_calls& to) { to.hidden(number_of(g.at), g.bytes); });
}
void tell_module_gone(seen_call const& call) {
  forget_kernels();
  forget_variables(call, call.given<cuModuleUnload_params>().hmod);
}
void tell_library_gone(seen_call const& call) {
  forget_kernels();
  forget_variables(call, call.given<cuLibraryUnload_params>().library);
}

bytes_at block_around(CUdeviceptr p) {
  bytes_at found;
  CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE};
  void* answers[] = {&found.at, &found.bytes};
  if (load().api->cuPointerGetAttributes(2, which, answers, p) != CUDA_SUCCESS)
    return {};
  return found;
}
void tell_of_other_process(seen_call const& call, CUdeviceptr p) {
  bytes_at const all = block_around(p);
  if (all.bytes)
    return tell_found(call, all.at, all.bytes);
  call.not_understood("blocks of other processes whose size the driver does not tell");
  call.each([&](seen_calls& to) { to.hidden(number_of(p), 1); });
}
// A handle that is open already is opened at the same address, and closed as often. Several may lie in one block.
struct open_handle {
  std::size_t times = 0;
  CUdeviceptr block = 0;
};
base::guarded<std::map<CUdeviceptr, open_handle>>& opened() {
  static base::lasting<base::guarded<std::map<CUdeviceptr, open_handle>>> all;
  return *all;
}
void tell_opened(seen_call const& call) {
  CUdeviceptr const at = *call.given<cuIpcOpenMemHandle_params>().pdptr;
  bytes_at const around = block_around(at);
  {
    auto const all = opened().lock();
    open_handle& one = (*all)[at];
    ++one.times;
    one.block = around.bytes ? around.at : at;
  }
  tell_of_other_process(call, at);
}
// The block goes with the last handle in it.
void tell_closed(seen_call const& call) {
  CUdeviceptr block = 0;
  {
    auto const all = opened().lock();
    auto const of = all->find(call.given<cuIpcCloseMemHandle_params>().dptr);
    if (of == all->end() || --of->second.times > 0)
      return;
    block = of->second.block;
    all->erase(of);
    if (std::ranges::any_of(*all, [&](auto const& other) { return other.second.block == block; }))
      return;
  }
  base::site const site = call.site();
  call.each([&](seen_calls& to) { to.closed(number_of(block), site); });
}
void tell_imported(seen_call const& call) {
  tell_of_other_process(call, *call.given<cuMemPoolImportPointer_params>().ptr_out);
}
void tell_external(seen_call const& call) {
  auto const& p = call.given<cuExternalMemoryGetMappedBuffer_params>();
  tell_found(call, *p.devPtr, p.bufferDesc->size);
}
void tell_graphics(seen_call const& call) {
  auto const& p = call.given<cuGraphicsResourceGetMappedPointer_v2_params>();
  call.not_understood("mapped resources of graphics");
  call.each([&](seen_calls& to) { to.hidden(number_of(*p.pDevPtr), *p.pSize); });
}
// As a rule the two are equal.
void tell_second_address(seen_call const& call) {
  auto const& p = call.given<cuMemHostGetDevicePointer_v2_params>();
  if (number_of(*p.pdptr) == number_of(p.p))
    return;
  call.not_understood("blocks of pinned memory that have another address on the device");
  call.each([&](seen_calls& to) { to.hidden(number_of(*p.pdptr), 1); });
}
void tell_texture(seen_call const& call) {
  call.not_understood("textures, surfaces and CUDA arrays, which kernels use without a pointer");
}

constexpr watched_call memory_rows[] = {
    WEIR_CALL(cuMemAlloc_v2, EXIT, tell_device_memory),
    WEIR_CALL(cuMemAllocPitch_v2, EXIT, tell_rows_of_memory),
    WEIR_CALL(cuMemAllocManaged, EXIT, tell_managed),
    WEIR_CALL_OF_STREAM(cuMemAllocAsync, _ptsz, EXIT, tell_memory_in_order<cuMemAllocAsync_params>),
    WEIR_CALL_OF_STREAM(cuMemAllocFromPoolAsync, _ptsz, EXIT, tell_memory_in_order<cuMemAllocFromPoolAsync_params>),
    WEIR_CALL(cuMemMap, EXIT, tell_pages),
    WEIR_CALL(cuMemHostAlloc, EXIT, tell_host_memory<cuMemHostAlloc_params>),
    WEIR_CALL(cuMemAllocHost_v2, EXIT, tell_host_memory<cuMemAllocHost_v2_params>),
    WEIR_CALL(cuMemHostRegister_v2, EXIT, tell_registered),
    WEIR_CALL(cuMemFree_v2, ENTER, tell_free),
    WEIR_CALL_OF_STREAM(cuMemFreeAsync, _ptsz, ENTER, tell_free_in_order),
    WEIR_CALL(cuMemUnmap, ENTER, tell_unmapped),
    WEIR_CALL(cuMemFreeHost, ENTER, tell_host_free<cuMemFreeHost_params>),
    WEIR_CALL(cuMemHostUnregister, ENTER, tell_host_free<cuMemHostUnregister_params>),
    WEIR_CALL(cuModuleGetGlobal_v2, EXIT, tell_variable_of_module),
    WEIR_CALL(cuLibraryGetGlobal, EXIT, tell_variable_of_library<cuLibraryGetGlobal_params>),
    WEIR_CALL(cuLibraryGetManaged, EXIT, tell_variable_of_library<cuLibraryGetManaged_params>),
    WEIR_ORDER(cuModuleUnload, ENTER, tell_module_gone),
    WEIR_ORDER(cuLibraryUnload, ENTER, tell_library_gone),
    WEIR_CALL(cuIpcOpenMemHandle, EXIT, tell_opened),
    WEIR_CALL(cuIpcOpenMemHandle_v2, EXIT, tell_opened),
    WEIR_CALL(cuIpcCloseMemHandle, EXIT, tell_closed),
    WEIR_CALL(cuMemPoolImportPointer, EXIT, tell_imported),
    WEIR_CALL(cuExternalMemoryGetMappedBuffer, EXIT, tell_external),
    WEIR_CALL(cuGraphicsResourceGetMappedPointer_v2, EXIT, tell_graphics),
    WEIR_CALL(cuMemHostGetDevicePointer_v2, EXIT, tell_second_address),
    WEIR_CALL(cuGraphAddMemAllocNode, EXIT, tell_memory_node),
#if CUDA_VERSION >= 12030
    WEIR_CALL(cuGraphAddNode, EXIT, tell_node<cuGraphAddNode_params>),
    WEIR_CALL(cuGraphAddNode_v2, EXIT, tell_node<cuGraphAddNode_v2_params>),
#endif
    WEIR_ORDER(cuArrayCreate_v2, EXIT, tell_texture),
    WEIR_ORDER(cuArray3DCreate_v2, EXIT, tell_texture),
    WEIR_ORDER(cuMipmappedArrayCreate, EXIT, tell_texture),
    WEIR_ORDER(cuTexObjectCreate, EXIT, tell_texture),
    WEIR_ORDER(cuSurfObjectCreate, EXIT, tell_texture),
    WEIR_ORDER(cuTexRefSetAddress_v2, EXIT, tell_texture),
    WEIR_ORDER(cuExternalMemoryGetMappedMipmappedArray, EXIT, tell_texture),
};

}  // namespace

std::span<watched_call const> memory_calls() {
  return memory_rows;
}

}  // namespace weir::driver::cuda
#endif
