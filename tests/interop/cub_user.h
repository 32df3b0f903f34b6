// What users of cub::CachingDeviceAllocator write, for any allocator with its interface.
// Threads: one.
#pragma once
#include <gtest/gtest.h>

#include "weir/caching_device_allocator.h"

namespace weir::test {

template <class Allocator>
void use_as_cub_does(Allocator& pool) {
  void *a = nullptr, *b = nullptr;
  EXPECT_EQ(pool.DeviceAllocate(&a, 1000), cudaSuccess);
  EXPECT_EQ(pool.DeviceAllocate(0, &b, 1000, cudaStream_t{}), cudaSuccess);
  EXPECT_TRUE(a && b && a != b);
  EXPECT_EQ(pool.DeviceFree(a), cudaSuccess);
  void* again = nullptr;
  EXPECT_EQ(pool.DeviceAllocate(&again, 1000), cudaSuccess);
  EXPECT_TRUE(again);
  EXPECT_EQ(pool.DeviceFree(0, again), cudaSuccess);
  EXPECT_EQ(pool.DeviceFree(0, b), cudaSuccess);
  EXPECT_EQ(pool.SetMaxCachedBytes(1 << 20), cudaSuccess);
  EXPECT_EQ(pool.FreeAllCached(), cudaSuccess);
}

}  // namespace weir::test
