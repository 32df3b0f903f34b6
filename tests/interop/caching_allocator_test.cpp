// The replacement of CUB's caching allocator on simulated devices.
// Threads: one.
#if defined(WEIR_WITH_CUDA)
#include "tests/interop/come_and_go.h"
#include "tests/interop/cub_user.h"
#include "tests/interop/where.h"

namespace weir {
namespace {

using caching_allocator = test::on_simulated;
using test::use_as_cub_does;

TEST_F(caching_allocator, it_is_used_as_cubs_is) {
  caching_device_allocator pool(8, 3, 7, 6 << 20), plain(true, false), simple;
  use_as_cub_does(pool);
  use_as_cub_does(plain);
  EXPECT_EQ(memory_allocated(), 0u);
  EXPECT_EQ(memory_reserved(), 0u) << "FreeAllCached";
}

TEST_F(caching_allocator, memory_is_of_the_named_device_and_stream) {
  caching_device_allocator pool;
  void *there = nullptr, *here = nullptr;
  ASSERT_EQ(pool.DeviceAllocate(1, &there, 100), cudaSuccess);
  EXPECT_EQ(find_block(there)->on, device(1));
  EXPECT_EQ(find_block(there)->home, detail::stream_of(1, nullptr));
  {
    device_guard const on(1);
    ASSERT_EQ(pool.DeviceAllocate(&here, 100), cudaSuccess);
    EXPECT_EQ(find_block(here)->on, device(1));
  }
  EXPECT_EQ(pool.DeviceFree(there), cudaSuccess);
  EXPECT_EQ(pool.DeviceFree(1, here), cudaSuccess);
}

TEST_F(caching_allocator, many_streams_leave_no_trace) {
  caching_device_allocator pool;
  auto const take = [&](auto* s, size_t bytes) {
    void* p = nullptr;
    EXPECT_EQ(pool.DeviceAllocate(0, &p, bytes, s), cudaSuccess);
    return p;
  };
  test::streams_come_and_go(take, [&](auto*, void* p, size_t) { EXPECT_EQ(pool.DeviceFree(p), cudaSuccess); });
}

// CUB records an event on the block's stream, so that the stream exists at its free. weir fences it there.
TEST_F(caching_allocator, a_free_is_fenced_on_the_blocks_stream) {
  caching_device_allocator pool;
  simulated_stream theirs(0);
  void* p = nullptr;
  ASSERT_EQ(pool.DeviceAllocate(0, &p, 2 << 20, theirs.handle()), cudaSuccess);
  auto const before = memory_stats(0).fences;
  ASSERT_EQ(pool.DeviceFree(p), cudaSuccess);
  EXPECT_EQ(memory_stats(0).fences, before + 1);
}

// A block may outlive its stream all the same, whether or not another stream has the handle by then.
TEST_F(caching_allocator, a_block_may_outlive_its_stream) {
  caching_device_allocator pool;
  for (bool const again : {false, true}) {
    std::optional<simulated_stream> theirs(0), later;
    void* p = nullptr;
    ASSERT_EQ(pool.DeviceAllocate(0, &p, 2 << 20, theirs->handle()), cudaSuccess);
    theirs.reset();
    if (again)
      later.emplace(0);
    EXPECT_EQ(pool.DeviceFree(p), cudaSuccess);
  }
  EXPECT_EQ(memory_allocated(), 0u);
}

TEST_F(caching_allocator, a_limit_empties_the_cache) {
  caching_device_allocator pool;
  void *a = nullptr, *b = nullptr;
  ASSERT_EQ(pool.DeviceAllocate(&a, 8 << 20), cudaSuccess);
  ASSERT_EQ(pool.DeviceAllocate(&b, 8 << 20), cudaSuccess);
  ASSERT_EQ(pool.SetMaxCachedBytes(32 << 20), cudaSuccess);
  ASSERT_EQ(pool.DeviceFree(a), cudaSuccess);
  EXPECT_GE(memory_reserved(), size_t{16} << 20);
  ASSERT_EQ(pool.SetMaxCachedBytes(1 << 20), cudaSuccess);
  ASSERT_EQ(pool.DeviceFree(b), cudaSuccess);
  EXPECT_EQ(memory_reserved(), 0u);
}

TEST_F(caching_allocator, errors_are_codes_and_nothing_is_lost) {
  caching_device_allocator pool(false, true);
  void* p = &pool;
  testing::internal::CaptureStderr();
  EXPECT_EQ(pool.DeviceAllocate(&p, size_t{1} << 50), cudaErrorMemoryAllocation);
  EXPECT_EQ(p, nullptr);
  EXPECT_EQ(pool.DeviceAllocate(7, &p, 100), cudaErrorInvalidDevice);
  EXPECT_EQ(pool.DeviceAllocate(-2, &p, 100), cudaErrorInvalidDevice);
  EXPECT_EQ(pool.DeviceAllocate(nullptr, 100), cudaErrorInvalidValue);
  EXPECT_EQ(pool.DeviceAllocate(0, &p, 100, reinterpret_cast<cudaStream_t>(64)), cudaErrorInvalidValue);
  EXPECT_EQ(pool.DeviceFree(&pool), cudaErrorInvalidValue);
  EXPECT_EQ(pool.DeviceFree(nullptr), cudaSuccess);
  ASSERT_EQ(pool.DeviceAllocate(&p, 1 << 20), cudaSuccess);
  EXPECT_EQ(pool.DeviceFree(p), cudaSuccess);
  EXPECT_EQ(pool.DeviceFree(p), cudaErrorInvalidValue);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("not a live block of weir"), std::string::npos);
  EXPECT_EQ(memory_allocated(), 0u);
}

}  // namespace
}  // namespace weir
#endif
