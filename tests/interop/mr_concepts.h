// What CCCL's concepts say of weir's memory resources, for both generations of its names.
// tools/check_cccl compiles this against any CCCL.
#pragma once
#include "weir/cuda_mr.h"

namespace weir::test {

using device_accessible = cuda::mr::device_accessible;
using host_accessible = cuda::mr::host_accessible;

template <class R>
constexpr bool follows_streams = requires(R& r, void* p, cuda::stream_ref s) {
  { r.allocate(s, size_t{1}, size_t{256}) } -> std::same_as<void*>;
  { r.deallocate(s, p, size_t{1}, size_t{256}) } -> std::same_as<void>;
  { r.allocate_async(size_t{1}, size_t{256}, s) } -> std::same_as<void*>;
  { r.deallocate_async(p, size_t{1}, size_t{256}, s) } -> std::same_as<void>;
};
static_assert(follows_streams<mr::device_resource> && follows_streams<mr::pinned_resource>);

#if CCCL_VERSION < 3001000
static_assert(cuda::mr::async_resource<mr::device_resource>);
static_assert(cuda::mr::async_resource_with<mr::device_resource, device_accessible>);
static_assert(!cuda::mr::resource_with<mr::device_resource, host_accessible>);
static_assert(cuda::mr::async_resource_with<mr::pinned_resource, device_accessible, host_accessible>);
using device_ref = cuda::mr::async_resource_ref<device_accessible>;
using host_ref = cuda::mr::async_resource_ref<device_accessible, host_accessible>;
inline void* take(device_ref r, size_t bytes) {
  return r.allocate(bytes, 256);
}
inline void give(device_ref r, void* p, size_t bytes) {
  r.deallocate(p, bytes, 256);
}
inline void* take(device_ref r, size_t bytes, cuda::stream_ref s) {
  return r.allocate_async(bytes, 256, s);
}
inline void give(device_ref r, void* p, size_t bytes, cuda::stream_ref s) {
  r.deallocate_async(p, bytes, 256, s);
}
#else
static_assert(cuda::mr::resource<mr::device_resource> && cuda::mr::synchronous_resource<mr::device_resource>);
static_assert(cuda::mr::resource_with<mr::device_resource, device_accessible>);
static_assert(!cuda::mr::synchronous_resource_with<mr::device_resource, host_accessible>);
static_assert(cuda::mr::resource_with<mr::pinned_resource, device_accessible, host_accessible>);
#if CCCL_VERSION < 3002000  // it has no type-erased resources
using device_ref = mr::device_resource;
using host_ref = mr::pinned_resource;
#else
using device_ref = cuda::mr::resource_ref<device_accessible>;
using host_ref = cuda::mr::resource_ref<device_accessible, host_accessible>;
static_assert(std::is_constructible_v<cuda::mr::any_resource<device_accessible>, mr::device_resource>);
#endif
inline void* take(device_ref r, size_t bytes) {
  return r.allocate_sync(bytes, 256);
}
inline void give(device_ref r, void* p, size_t bytes) {
  r.deallocate_sync(p, bytes, 256);
}
inline void* take(device_ref r, size_t bytes, cuda::stream_ref s) {
  return r.allocate(s, bytes, 256);
}
inline void give(device_ref r, void* p, size_t bytes, cuda::stream_ref s) {
  r.deallocate(s, p, bytes, 256);
}
#endif
static_assert(std::is_constructible_v<host_ref, mr::pinned_resource&>);
static_assert(!std::is_constructible_v<host_ref, mr::device_resource&>);
static_assert(std::is_copy_constructible_v<mr::device_resource> && std::is_copy_assignable_v<mr::device_resource>);

}  // namespace weir::test
