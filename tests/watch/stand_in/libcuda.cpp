// A libcuda.so.1 whose entry points a test program gives.
// Threads: any, once it has them.
#include <cuda.h>

namespace {
using finder = void* (*)(char const* name);
finder find_entry = nullptr;
CUresult refuse() {
  return CUDA_ERROR_NOT_SUPPORTED;
}
}  // namespace

extern "C" {
__attribute__((visibility("default"))) void weir_stand_in_entries(finder f) {
  find_entry = f;
}
__attribute__((visibility("default"))) CUresult cuGetProcAddress_v2(char const* name, void** entry, int, cuuint64_t,
                                                                    CUdriverProcAddressQueryResult* answer) {
  void* const found = find_entry(name);
  *entry = found ? found : reinterpret_cast<void*>(refuse);
  if (answer)
    *answer = CU_GET_PROC_ADDRESS_SUCCESS;
  return CUDA_SUCCESS;
}
}
