// CCCL's memory resources on weir: equality, errors, bad input, and what the streams order.
// Threads: one, and one that releases a stream.
#if defined(__CUDACC__)
#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <set>
#include <thread>

#include "tests/interop/come_and_go.h"
#include "tests/interop/mr_concepts.h"
#include "tests/interop/where.h"
#include "tests/support/refused.h"
#include "weir/caching_device_allocator.h"
#include "weir/copy.h"
#include "weir/launch.h"

namespace weir {
namespace {

using cuda_mr = test::on_simulated;
using cuda_mr_gpu = test::on_gpus;
cuda::stream_ref const legacy{cudaStream_t{}};

TEST_F(cuda_mr, resources_of_one_device_are_equal) {
  mr::device_resource const a(device(0)), same(gpu), other(device(1));
  EXPECT_TRUE(a == same);
  EXPECT_TRUE(a != other);
  EXPECT_TRUE(mr::pinned_resource() == mr::pinned_resource());
  EXPECT_EQ(other.device(), device(1));
}

// As RMM's and CUDA's own do: current in CUDA, which weir::set_device sets, too.
TEST_F(cuda_mr, a_resource_without_a_device_is_of_the_current_one) {
  mr::device_resource r, same;
  EXPECT_TRUE(r == same);
  EXPECT_TRUE(r != mr::device_resource(device(0)));
  EXPECT_EQ(r.device(), device(0));
  void* const here = r.allocate(legacy, 1000);
  set_device(1);
  EXPECT_EQ(r.device(), device(1));
  void *const there = r.allocate(legacy, 1000), *const ready = r.allocate_sync(1000);
  mr::pinned_resource staging;
  void* const pinned = staging.allocate(legacy, 1000);
  EXPECT_EQ(find_block(here)->on, device(0));
  EXPECT_EQ(find_block(there)->on, device(1));
  EXPECT_EQ(find_block(ready)->on, device(1));
  same.deallocate(legacy, here, 1000);  // under another device than it was allocated on
  set_device(0);
  same.deallocate(legacy, there, 1000);
  same.deallocate_sync(ready, 1000);
  staging.deallocate(legacy, pinned, 1000);
  EXPECT_EQ(memory_allocated(0) + memory_allocated(1), 0u);
}

// As cudaMallocAsync: the memory is of the stream's device, whichever is current.
TEST_F(cuda_mr, a_stream_tells_its_device) {
  simulated_stream own(1);
  cuda::stream_ref const theirs{own.handle()};
  mr::device_resource r;
  void* const p = r.allocate(theirs, 1000);
  EXPECT_EQ(find_block(p)->on, device(1));
  r.deallocate(theirs, p, 1000);
  mr::device_resource const first(device(0));
  EXPECT_NE(test::refused([&] { (void)mr::device_resource(first).allocate(theirs, 1000); }).find("another device"),
            std::string::npos);
  void* const q = mr::device_resource(first).allocate(legacy, 1000);
  mr::device_resource(first).deallocate(theirs, q, 1000);  // which used it last
  EXPECT_EQ(memory_allocated(0) + memory_allocated(1), 0u);
}

TEST_F(cuda_mr, many_streams_leave_no_trace) {
  mr::device_resource r;
  test::streams_come_and_go([&](auto* s, size_t bytes) { return r.allocate(cuda::stream_ref{s}, bytes); },
                            [&](auto* s, void* p, size_t bytes) { r.deallocate(cuda::stream_ref{s}, p, bytes); });
}

TEST_F(cuda_mr, memory_is_the_devices_and_its_home_the_stream) {
  mr::device_resource there(device(1));
  void* const p = there.allocate(legacy, 1000);
  auto const block = find_block(p);
  ASSERT_TRUE(block);
  EXPECT_EQ(block->on, device(1));
  EXPECT_EQ(block->bytes, 1000u);
  EXPECT_EQ(block->home, detail::stream_of(device(1), nullptr));
  there.deallocate(legacy, p, 1000);
  EXPECT_EQ(memory_allocated(device(1)), 0u);
}

TEST_F(cuda_mr, both_generations_of_names_are_one_resource) {
  mr::device_resource r;
  void* const a = r.allocate_async(1 << 20, 256, legacy);
  r.deallocate(legacy, a, 1 << 20);
  EXPECT_EQ(r.allocate(legacy, 1 << 20), a);
  r.deallocate_async(a, 1 << 20, legacy);
  void* const b = r.allocate_sync(100);
  r.deallocate(b, 100);
  void* const c = r.allocate(100);
  r.deallocate_sync(c, 100);
  EXPECT_EQ(memory_allocated(), 0u);
}

TEST_F(cuda_mr, pinned_memory_is_written_by_the_host) {
  mr::pinned_resource r;
  auto* const p = static_cast<int*>(r.allocate(legacy, 4 * sizeof(int)));
  *p = 7;
  ASSERT_TRUE(find_block(p));
  EXPECT_EQ(find_block(p)->kind, memory_kind::pinned);
  buffer const there(sizeof(int));
  copy(there.data(), p, sizeof(int), non_blocking);
  r.deallocate(legacy, p, 4 * sizeof(int));
  EXPECT_EQ(pinned_memory_stats().allocated_bytes.all.current, 0);
}

TEST_F(cuda_mr, alignment_is_256_whatever_less_is_asked_for) {
  mr::device_resource r;
  mr::pinned_resource host;
  for (size_t const asked : {size_t{1}, size_t{2}, size_t{16}, size_t{128}}) {
    for (size_t const bytes : {size_t{1}, size_t{100}, size_t{300}, size_t{5000}, size_t{1} << 20}) {
      void* const all[] = {r.allocate(legacy, bytes, asked), r.allocate(legacy, bytes, asked),
                           r.allocate_sync(bytes, asked)};
      void* const pinned = host.allocate(legacy, bytes, asked);
      for (void* const p : all) {
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % 256, 0u) << bytes << " B, asked for " << asked;
        r.deallocate(legacy, p, bytes, asked);
      }
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pinned) % 256, 0u) << bytes << " B, asked for " << asked;
      host.deallocate(legacy, pinned, bytes, asked);
    }
  }
}

TEST_F(cuda_mr, alignment_is_256_at_every_size) {
  mr::device_resource r;
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{4}, size_t{100}, size_t{300}, size_t{5000}, size_t{1} << 20}) {
    std::array<void*, 5> all;
    for (void*& p : all)
      p = r.allocate_sync(bytes);
    for (void* p : all) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % 256, 0u) << bytes;
      r.deallocate_sync(p, bytes);
    }
  }
}

TEST_F(cuda_mr, a_free_waits_for_the_work_of_its_stream) {
  std::atomic<bool> go{false};
  stream s{device(0)};
  mr::device_resource r;
  void* const p = allocate(s, 1 << 20);
  launch_host(detail::stream_of(0, nullptr), [&] { go.wait(false); });
  r.deallocate(legacy, p, 1 << 20);
  EXPECT_EQ(memory_stats().pending_bytes.all.current, 1 << 20);
  go = true, go.notify_all();
  detail::stream_of(0, nullptr).synchronize();
}

// Its memory may have been freed by work that still runs there.
TEST_F(cuda_mr, allocate_sync_waits_for_the_default_stream) {
  std::atomic<bool> go{false};
  mr::device_resource r;
  launch_host(default_stream(), [&] { go.wait(false); });
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    go = true, go.notify_all();
  });
  void* const p = r.allocate_sync(100);
  EXPECT_TRUE(go);
  r.deallocate_sync(p, 100);
  opener.join();
}

#if CCCL_VERSION >= 3002000
// RMM's containers own what they allocate from in this form, and copy it with themselves.
TEST_F(cuda_mr, an_owned_resource_is_copied_moved_and_equal) {
  using any = cuda::mr::any_resource<cuda::mr::device_accessible>;
  any first{mr::device_resource(device(1))};
  any const copy = first;
  EXPECT_TRUE(first == copy);
  EXPECT_FALSE(first == any{mr::device_resource(device(0))});
  EXPECT_FALSE(first == any{mr::pinned_resource(device(1))}) << "another type";
  void* const p = first.allocate(legacy, 1000, 256);
  EXPECT_EQ(find_block(p)->on, device(1));
  any moved = std::move(first);
  EXPECT_TRUE(moved == copy);
  cuda::mr::resource_ref<cuda::mr::device_accessible> const ref = moved;
  EXPECT_TRUE(ref == cuda::mr::resource_ref<cuda::mr::device_accessible>(moved));
  moved.deallocate(legacy, p, 1000, 256);
  EXPECT_EQ(memory_allocated(device(1)), 0u);
}
#endif

// It is a std::bad_alloc, which is what containers know, and carries the report.
TEST_F(cuda_mr, out_of_memory_is_a_bad_alloc_with_a_report) {
  mr::device_resource r;
  EXPECT_THROW((void)r.allocate(legacy, size_t{1} << 50), std::bad_alloc);
  try {
    (void)r.allocate_sync(size_t{1} << 50);
    FAIL() << "1 PiB was there";
  } catch (out_of_memory const& e) {
    EXPECT_EQ(e.report().requested, size_t{1} << 50);
  }
  r.deallocate_sync(r.allocate_sync(5), 5);
}

TEST_F(cuda_mr, a_wrong_pointer_is_refused_and_nothing_changes) {
  mr::device_resource r;
  int mine = 0;
  EXPECT_NE(test::refused([&] { r.deallocate(legacy, &mine, 4); }).find("not a live block of weir"), std::string::npos);
  EXPECT_NE(test::refused([&] { r.deallocate_sync(&mine, 4); }).find("not a live block of weir"), std::string::npos);
  void* const p = r.allocate(legacy, 1 << 20);
  test::refused([&] { r.deallocate(legacy, static_cast<char*>(p) + 256, 1 << 20); });
  r.deallocate(legacy, p, 1 << 20);
  test::refused([&] { r.deallocate(legacy, p, 1 << 20); });
  test::refused([&] { r.deallocate_sync(p, 1 << 20); });
  EXPECT_EQ(memory_allocated(), 0u);
}

TEST_F(cuda_mr, wrong_alignments_and_devices_are_refused) {
  mr::device_resource r;
  test::refused([&] { (void)r.allocate(legacy, 100, 3); });
  test::refused([&] { (void)r.allocate_sync(100, 8_MiB); });
  test::refused([] { mr::device_resource none(device(7)); });
  test::refused([] { mr::device_resource none(cpu); });
}

TEST_F(cuda_mr, an_unknown_handle_is_refused_on_simulated_devices) {
  mr::device_resource r;
  cuda::stream_ref const strange{reinterpret_cast<cudaStream_t>(64)};
  EXPECT_THROW((void)r.allocate(strange, 100), invalid_use);
  EXPECT_EQ(memory_allocated(), 0u);
}

// The reference ends the process, as CCCL's erased deallocate is noexcept, with weir's words.
TEST_F(cuda_mr, a_double_free_through_a_reference_says_so) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a new process: a forked one frees nothing
  mr::device_resource r;
  void* const p = test::take(r, 1 << 20, legacy);
  test::give(r, p, 1 << 20, legacy);
#if CCCL_VERSION >= 3002000
  EXPECT_DEATH(test::give(r, p, 1 << 20, legacy), "freed");
#else
  test::refused([&] { test::give(r, p, 1 << 20, legacy); });
#endif
}

// As the destructors of a forked child's containers do.
TEST_F(cuda_mr, a_free_in_a_forked_child_does_nothing) {
  GTEST_FLAG_SET(death_test_style, "fast");
  mr::device_resource r;
  void* const p = r.allocate(legacy, 1 << 20);
  EXPECT_EXIT((r.deallocate(legacy, p, 1 << 20), r.deallocate_sync(p, 1 << 20), std::_Exit(0)),
              testing::ExitedWithCode(0), "");
  r.deallocate(legacy, p, 1 << 20);
}

TEST_F(cuda_mr, errors_name_the_line_of_the_call) {
  mr::device_resource r;
  try {
    (void)r.allocate(legacy, 100, 3);
    FAIL();
  } catch (invalid_use const& e) {
    EXPECT_NE(std::string(e.where().file_name()).find("cuda_mr_test"), std::string::npos);
  }
}

// Also on a thread that has not called CUDA's runtime.
TEST_F(cuda_mr_gpu, cuda_knows_the_address_of_a_block) {
  std::thread([] {
    mr::device_resource r;
    mr::pinned_resource staging;
    void* const host = staging.allocate_sync(1000);
    void* const block = r.allocate(legacy, 1000);
    for (void* const p : {host, block}) {
      cudaPointerAttributes is{};
      EXPECT_EQ(cudaPointerGetAttributes(&is, p), cudaSuccess);
      EXPECT_EQ(is.devicePointer, p);
    }
    r.deallocate(legacy, block, 1000);
    staging.deallocate_sync(host, 1000);
  }).join();
}

// CUDA gives the handle of a destroyed stream to a later one, and a tool (compute-sanitizer) may end a process
// that asks a destroyed one.
TEST_F(cuda_mr_gpu, streams_of_cuda_come_and_go) {
  int const many = runtime::current().get().options().nvtx_memory ? 200 : 10'000;
  constexpr size_t bytes = 100'000;
  mr::device_resource r;
  caching_device_allocator cub;
  std::set<cudaStream_t> handles;
  auto const lives = [&](int n) {
    auto const start = std::chrono::steady_clock::now();
    for (int i = 0; i < n; ++i) {
      cudaStream_t s{};
      ASSERT_EQ(cudaStreamCreate(&s), cudaSuccess);
      handles.insert(s);
      void *const p = r.allocate(cuda::stream_ref{s}, bytes), *q = nullptr;
      ASSERT_EQ(cub.DeviceAllocate(&q, bytes, s), cudaSuccess);
      ASSERT_EQ(cudaMemsetAsync(p, i, bytes, s), cudaSuccess);
      ASSERT_EQ(cudaMemcpyAsync(q, p, bytes, cudaMemcpyDeviceToDevice, s), cudaSuccess);
      r.deallocate(cuda::stream_ref{s}, p, bytes);
      ASSERT_EQ(cub.DeviceFree(q), cudaSuccess);
      ASSERT_EQ(cudaStreamDestroy(s), cudaSuccess);
    }
    std::chrono::duration<double, std::micro> const took = std::chrono::steady_clock::now() - start;
    std::cout << took.count() / n << " us a stream\n";
  };
  lives(many / 2);
  auto const reserved = memory_reserved();
  lives(many / 2);
  EXPECT_LE(memory_reserved(), reserved + 8_MiB);
  EXPECT_LE(memory_by_stream().size(), 64u);
  EXPECT_EQ(memory_allocated(), 0u);
  std::cout << handles.size() << " handles\n";
}

TEST_F(cuda_mr_gpu, a_stream_of_another_device_is_told_apart) {
  if (device_count() < 2)
    GTEST_SKIP() << "one GPU";
  cudaStream_t s{};
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  ASSERT_EQ(cudaStreamCreate(&s), cudaSuccess);
  mr::device_resource r(device(0));
  EXPECT_NE(test::refused([&] { (void)r.allocate(cuda::stream_ref(s), 100); }).find("another device"),
            std::string::npos);
  mr::device_resource any;
  EXPECT_EQ(any.device(), device(1)) << "cudaSetDevice is seen";
  for (int const current : {1, 0}) {
    ASSERT_EQ(cudaSetDevice(current), cudaSuccess);
    void* const p = any.allocate(cuda::stream_ref(s), 100);
    EXPECT_EQ(find_block(p)->on, device(1)) << "the stream's";
    any.deallocate(cuda::stream_ref(s), p, 100);
    void* const q = any.allocate_sync(100);
    EXPECT_EQ(find_block(q)->on, device(current));
    any.deallocate_sync(q, 100);
  }
  ASSERT_EQ(cudaStreamDestroy(s), cudaSuccess);
}

}  // namespace
}  // namespace weir
#endif
