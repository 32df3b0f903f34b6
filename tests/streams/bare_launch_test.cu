// A launch without a stream between two launches on a stream of either flags. A kernel that spins forces the order.
// Threads: one.
#include <gtest/gtest.h>

#include "weir/copy.h"
#include "weir/runtime.h"

namespace {

using namespace weir;

#ifdef __CUDACC__
__global__ void write_late(int* x, int value) {
  unsigned long long from = 0, now = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(from));
  do
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  while (now - from < 60'000'000);  // ns
  *x = value;
}
__global__ void add_one(int* y, int const* x) {
  *y = *x + 1;
}
__global__ void times_ten(int* z, int const* y) {
  *z = *y * 10;
}

struct values {
  int x = 0, y = 0, z = 0;
};
values one_launch_without_a_stream(stream_ref s) {
  buffer const all(s, 3 * sizeof(int));
  int* const x = all.data<int>();
  CUstream_st* const on = s.native();
  auto const run = [&](int value) {
    fill(s, x, std::byte{0}, all.size());
    synchronize(0);
    write_late<<<1, 1, 0, on>>>(x, value);
    add_one<<<1, 1>>>(x + 1, x);
    times_ten<<<1, 1, 0, on>>>(x + 2, x + 1);
    synchronize(0);
  };
  run(1);  // loads the kernels
  run(7);
  values v;
  copy(s, &v, x, sizeof v);
  return v;
}

// The pattern of a program that was written with cudaStreamCreate.
TEST(bare_launch, is_ordered_with_blocking_streams_alone) {
  if (runtime::current().is_simulated())
    GTEST_SKIP() << "needs a GPU; tests/check/legacy_test.cpp is its like";
  stream const blocking(0, stream_flags::blocking), apart(0);
  for (stream_ref const s : {blocking.ref(), default_stream(0)}) {
    values const v = one_launch_without_a_stream(s);
    EXPECT_EQ(v.x, 7);
    EXPECT_EQ(v.y, 8);
    EXPECT_EQ(v.z, 80);
  }
  values const early = one_launch_without_a_stream(apart);
  EXPECT_EQ(early.x, 7);
  EXPECT_EQ(early.y, 1) << "it ran before the writer";
}
#else
TEST(bare_launch, is_ordered_with_blocking_streams_alone) {
  GTEST_SKIP() << "compiled without nvcc";
}
#endif

}  // namespace
