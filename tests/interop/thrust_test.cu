// Thrust's vectors and temporary memory on weir: on GPUs their results, on simulated devices their memory.
// Threads: one.
#if defined(__CUDACC__)
#include "weir/thrust.h"

#include <thrust/fill.h>
#include <thrust/functional.h>
#include <thrust/reduce.h>
#include <thrust/scan.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>

#include <cub/util_allocator.cuh>
#include <vector>

#include "tests/interop/cub_user.h"
#include "tests/interop/where.h"
#include "tests/support/refused.h"
#include "weir/copy.h"
#include "weir/launch.h"

namespace weir {
namespace {

using thrust_memory = test::on_simulated;
using thrust_gpu = test::on_gpus;
using caching_allocator_gpu = test::on_gpus;

TEST_F(thrust_memory, an_allocator_is_bound_to_its_stream) {
  stream s{device(1)};
  thrust_allocator<int> on(s);
  auto const p = on.allocate(1000);
  auto const block = find_block(p.get());
  ASSERT_TRUE(block);
  EXPECT_EQ(block->home, s.ref());
  EXPECT_EQ(block->bytes, 4000u);
  on.deallocate(p, 1000);
  EXPECT_EQ(memory_allocated(1), 0u);
  stream_guard const in(s);
  EXPECT_EQ(thrust_allocator<double>().stream(), s.ref()) << "by default the current one";
}

TEST_F(thrust_memory, allocators_of_one_stream_are_equal) {
  stream s{device(0)};
  thrust_allocator<int> const a(s), b(s), other(default_stream());
  thrust_allocator<char> const rebound(a);
  EXPECT_TRUE(a == b && a == rebound);
  EXPECT_FALSE(a == other);
}

TEST_F(thrust_memory, temporaries_of_any_size_are_aligned) {
  thrust_allocator<std::byte> on(default_stream());
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{17}, size_t{1000}, size_t{100000}}) {
    std::vector<thrust_allocator<std::byte>::pointer> all;
    for (int i = 0; i < 5; ++i)
      all.push_back(on.allocate(bytes));
    for (auto p : all) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p.get()) % 256, 0u);
      on.deallocate(p, bytes);
    }
  }
}

TEST_F(thrust_memory, bad_sizes_and_pointers_are_refused) {
  thrust_allocator<double> on(default_stream());
  test::refused([&] { (void)on.allocate(static_cast<size_t>(-1) / 8); });
  EXPECT_THROW((void)on.allocate(size_t{1} << 50), std::bad_alloc);
  double mine = 0;
  test::refused([&] { on.deallocate(thrust::device_ptr<double>(&mine), 1); });
  auto const p = on.allocate(1 << 20);
  on.deallocate(p, 1 << 20);
  test::refused([&] { on.deallocate(p, 1 << 20); });
  EXPECT_THROW((void)on.system(), not_supported) << "a simulated device runs no kernel of Thrust";
  EXPECT_THROW((void)par_nosync(default_stream()), not_supported);
}

TEST_F(thrust_gpu, a_vector_lives_on_weir) {
  stream s;
  {
    device_vector<int> v(1000, 7, thrust_allocator<int>(s));
    ASSERT_TRUE(find_block(thrust::raw_pointer_cast(v.data())));
    EXPECT_EQ(find_block(thrust::raw_pointer_cast(v.data()))->home, s.ref());
    EXPECT_EQ(thrust::reduce(v.begin(), v.end()), 7000);
    v.resize(2000, 1);
    v.push_back(5);
    EXPECT_EQ(thrust::reduce(v.begin(), v.end()), 8005);
    std::vector<int> const host{3, 1, 2};
    device_vector<int> w(host.begin(), host.end());
    w = v;
    EXPECT_EQ(w.size(), 2001u);
    EXPECT_EQ(w[2000], 5);
    device_vector<int> moved;
    moved = std::move(v);
    EXPECT_EQ(moved.get_allocator().stream(), s.ref()) << "the stream goes with the memory";
    moved.swap(w);
    EXPECT_EQ(w.get_allocator().stream(), s.ref());
  }
  EXPECT_EQ(memory_allocated(), 0u);
}

// The block that temporary memory comes from is the stream's, and is there again for the next algorithm.
TEST_F(thrust_gpu, temporary_memory_comes_from_weir) {
  stream s;
  size_t const n = 1 << 20;
  buffer const keys(s, n * sizeof(int));
  thrust::device_ptr<int> const first(keys.data<int>());
  thrust::sequence(par_nosync(s), first, first + n, static_cast<int>(n), -1);
  reset_peak_memory_stats();
  size_t const before = memory_allocated();
  thrust::sort(par_nosync(s), first, first + n);
  EXPECT_EQ(memory_allocated(), before);
  EXPECT_GT(max_memory_allocated(), before + n) << "a sort needs room";
  size_t const reserved = memory_reserved();
  for (int i = 0; i < 10; ++i)
    thrust::sort(par_nosync(s), first, first + n, thrust::greater<int>());
  EXPECT_EQ(memory_reserved(), reserved);
  thrust::sort(par_nosync(s), first, first + n);
  std::vector<int> host(n);
  copy(s, host.data(), keys.data(), keys.size());
  for (size_t i = 0; i < n; ++i)
    ASSERT_EQ(host[i], static_cast<int>(i) + 1);
}

TEST_F(thrust_gpu, a_policy_returns_before_its_work_is_done) {
  stream s;
  size_t const n = 1 << 26;
  buffer const values(s, n * sizeof(int));
  thrust::device_ptr<int> const first(values.data<int>());
  s.synchronize();
  for (int i = 0; i < 20; ++i)
    thrust::fill(par_nosync(s), first, first + n, i);
  EXPECT_FALSE(s.query()) << "5 GiB cannot have been written yet";
  EXPECT_EQ(thrust::reduce(par_nosync(s), first, first + n, 0L, thrust::plus<long>()), 19L * static_cast<long>(n));
}

TEST_F(caching_allocator_gpu, both_are_used_alike) {
  cub::CachingDeviceAllocator theirs(8, 3, 7, 6 << 20);
  caching_device_allocator ours(8, 3, 7, 6 << 20);
  test::use_as_cub_does(theirs);
  test::use_as_cub_does(ours);
}

}  // namespace
}  // namespace weir
#endif
