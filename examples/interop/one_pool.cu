// Thrust, CUB and cuda::mr on weir's pool: keys are made, sorted and counted on one stream, with temporary
// memory of weir. Thrust runs on GPUs alone.
// Threads: one.
#include <cstdio>
#include <exception>

#include "examples/ending.h"
#if defined(__CUDACC__)
#include "weir/cuda_mr.h"  // before Thrust's headers
#include "weir/thrust.h"

#include <thrust/iterator/constant_iterator.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/reduce.h>
#include <thrust/sort.h>
#include <thrust/transform.h>

#include <cub/device/device_scan.cuh>
#include <vector>

#include "weir/copy.h"
#include "weir/observe.h"

namespace {

struct key_of {  // each of 0 … 1022 about equally often, in no order
  __host__ __device__ unsigned operator()(unsigned i) const { return (i * 2654435761u >> 8) % 1023; }
};

bool count_keys() {
  unsigned const n = 1 << 22, kinds = 1023;
  weir::stream s;
  auto const policy = weir::par_nosync(s);
  thrust::counting_iterator<unsigned> const numbers(0);

  weir::device_vector<unsigned> keys(n, 0u, weir::thrust_allocator<unsigned>(s));
  weir::device_vector<unsigned> kind(kinds, 0u, keys.get_allocator()), count(kinds, 0u, keys.get_allocator());
  thrust::transform(policy, numbers, numbers + n, keys.begin(), key_of());
  thrust::sort(policy, keys.begin(), keys.end());
  thrust::reduce_by_key(policy, keys.begin(), keys.end(), thrust::constant_iterator<unsigned>(1), kind.begin(),
                        count.begin());

  // A library that takes a memory resource and a stream: here CUB, whose temporary memory is asked for.
  weir::mr::device_resource memory;
  size_t bytes = 0;
  unsigned* const sums = thrust::raw_pointer_cast(count.data());
  cub::DeviceScan::InclusiveSum(nullptr, bytes, sums, sums, int(kinds), s.native());
  void* const temporary = memory.allocate(cuda::stream_ref(s.native()), bytes);
  cub::DeviceScan::InclusiveSum(temporary, bytes, sums, sums, int(kinds), s.native());
  memory.deallocate(cuda::stream_ref(s.native()), temporary, bytes);  // its work may still run

  std::vector<unsigned> expected(kinds), got(kinds);
  for (unsigned i = 0; i < n; ++i)
    ++expected[key_of()(i)];
  for (unsigned k = 1; k < kinds; ++k)
    expected[k] += expected[k - 1];
  weir::copy(s, got.data(), sums, kinds * sizeof(unsigned));
  std::printf("%u keys of %u kinds, sorted and counted: the counts are %s; %zu MiB reserved for all of it\n", n, kinds,
              got == expected ? "right" : "WRONG", weir::memory_reserved() >> 20);
  return got == expected;
}

}  // namespace

int main() try {
  if (weir::runtime::current().is_simulated()) {
    std::printf("Thrust runs on GPUs alone; here are %s\n", weir::runtime::current().description().c_str());
    return examples::ending("one_pool", 0);
  }
  return examples::ending("one_pool", count_keys() ? 0 : 1);
} catch (std::exception const& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
#else
int main() {
  std::printf("This program was built without a CUDA toolkit, which Thrust comes with\n");
  return examples::ending("one_pool", 0);
}
#endif
