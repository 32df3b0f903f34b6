// weir/dlpack_abi.h: the structures of DLPack 1.x, as https://dmlc.github.io/dlpack documents its ABI. They
// are the program's own <dlpack/dlpack.h>, if it was included before or can be found. Otherwise they are
// declared here, under that header's guard, which then declares nothing more.
// Threads: values.
#pragma once
#if !defined(DLPACK_DLPACK_H_) && __has_include(<dlpack/dlpack.h>)
#include <dlpack/dlpack.h>
#endif
#if defined(DLPACK_DLPACK_H_)
#if !defined(DLPACK_MAJOR_VERSION) || DLPACK_MAJOR_VERSION != 1
#error "weir/dlpack.h needs DLPack 1.x: this program has another <dlpack/dlpack.h>"
#endif
#else
#define DLPACK_DLPACK_H_
#define DLPACK_MAJOR_VERSION 1
#define DLPACK_MINOR_VERSION 1
#define DLPACK_FLAG_BITMASK_READ_ONLY (1UL << 0UL)
#define DLPACK_FLAG_BITMASK_IS_COPIED (1UL << 1UL)
#include <cstdint>

extern "C" {
struct DLPackVersion {
  std::uint32_t major, minor;
};
enum DLDeviceType : std::int32_t {
  kDLCPU = 1,
  kDLCUDA = 2,
  kDLCUDAHost = 3,  // page-locked
  kDLOpenCL = 4,
  kDLVulkan = 7,
  kDLMetal = 8,
  kDLVPI = 9,
  kDLROCM = 10,
  kDLROCMHost = 11,
  kDLExtDev = 12,
  kDLCUDAManaged = 13,
  kDLOneAPI = 14,
  kDLWebGPU = 15,
  kDLHexagon = 16,
  kDLMAIA = 17,
  kDLTrn = 18
};
struct DLDevice {
  DLDeviceType device_type;
  std::int32_t device_id;  // 0 for host memory
};
enum DLDataTypeCode {
  kDLInt = 0,
  kDLUInt = 1,
  kDLFloat = 2,
  kDLOpaqueHandle = 3,
  kDLBfloat = 4,
  kDLComplex = 5,
  kDLBool = 6
};
struct DLDataType {
  std::uint8_t code, bits;
  std::uint16_t lanes;
};
struct DLTensor {
  void* data;
  DLDevice device;
  std::int32_t ndim;
  DLDataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements
  std::uint64_t byte_offset;
};
struct DLManagedTensor {  // before 1.0
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor*);
};
struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned*);
  std::uint64_t flags;
  DLTensor dl_tensor;
};
}
#endif

static_assert(sizeof(void*) != 8 ||
              (sizeof(DLTensor) == 48 && sizeof(DLManagedTensor) == 64 && sizeof(DLManagedTensorVersioned) == 80));
