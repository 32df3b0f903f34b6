// Memory that other processes map, on CUDA: handles as POSIX file descriptors.
// Threads: any. The books are never locked during a driver call.
#include "runtime/driver/cuda/cuda_driver.h"

namespace weir::driver::cuda {
bool cuda_driver::serves_network_cards(CUdevice id) noexcept {
  int yes = 0;
  return api_.cuDeviceGetAttribute(&yes, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, id) ==
             CUDA_SUCCESS &&
         yes != 0;
}

result<memory_handle> cuda_driver::create_shared(int device, std::size_t bytes) {
  return create(device, bytes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

result<int> cuda_driver::export_handle(memory_handle handle) {
  if (status const may = may_call(); !may.ok())
    return {may};
  CUmemGenericAllocationHandle of_cuda = 0;
  int device = -1;
  {
    auto b = books_.lock();
    auto const found = b->handles.find(static_cast<std::uint64_t>(handle));
    if (found == b->handles.end() || found->second.handle == 0 || !found->second.exportable)
      return {invalid};
    of_cuda = found->second.handle;
    device = found->second.device;
  }
  int file = -1;
  call in(*this, device, call::mode::survives);
  if (in.refused())
    return {in.refusal()};
  CUresult const r = api_.cuMemExportToShareableHandle(&file, of_cuda, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  if (r == CUDA_ERROR_OPERATING_SYSTEM)
    return {{code::out_of_memory, r}};  // no file descriptor is left
  if (status const said = in.answer(r); !said.ok())
    return {said};
  return {{}, file};
}

// The sender of the file says its size and device; map() refuses a wrong size.
result<memory_handle> cuda_driver::import_handle(int device, std::size_t bytes, int file) {
  call in(*this, device, call::mode::asks);
  if (in.refused())
    return {in.refusal()};
  if (bytes == 0 || bytes % granularity_ != 0 || file < 0)
    return {invalid};
  // Entered before the call, so that nothing can fail after it.
  std::uint64_t id = 0;
  {
    auto b = books_.lock();
    id = b->next_handle++;
    b->handles.emplace(id, physical{.handle = 0, .device = device, .bytes = bytes});
  }
  CUmemGenericAllocationHandle handle = 0;
  CUresult const r = api_.cuMemImportFromShareableHandle(
      &handle, reinterpret_cast<void*>(static_cast<std::uintptr_t>(file)), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  status const said = in.answer(r);
  if (said.ok()) {
    books_.lock()->handles.find(id)->second.handle = handle;
    return {{}, static_cast<memory_handle>(id)};
  }
  books_.lock()->handles.erase(id);
  // For a file that is no exported memory CUDA answers an invalid value, an invalid device or a system error.
  if (said.what == code::failed)
    return {{code::invalid, said.native}};
  return {said};
}

}  // namespace weir::driver::cuda
