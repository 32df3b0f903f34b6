// The patterns of `weir bench alloc` on PyTorch's own allocator, in the same form: a line of JSON a pattern.
// Threads: one; some patterns start more. Built by tools/figures against an installed PyTorch, never by the
// library's build. PYTORCH_CUDA_ALLOC_CONF chooses the kind of its allocator, the first argument names it.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/os_numa.h"
#include "tools/weir/patterns.h"

namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;
namespace patterns = weir::tool::patterns;

struct of_torch {
  c10::cuda::CUDAStream on;
  void* take(size_t bytes) const { return allocator::raw_alloc_with_stream(bytes, on.stream()); }
  void give(void* p) const { allocator::raw_delete(p); }
  void give_after_use(void* p) const { allocator::raw_delete(p); }
};

constexpr int rounds = 7;

void print(char const* pattern, char const* name, int threads, patterns::measured& run) {
  std::vector<double> ns;
  for (int i = 0; i < rounds; ++i)
    ns.push_back(run.round());
  std::nth_element(ns.begin(), ns.begin() + rounds / 2, ns.end());
  double const median = ns[rounds / 2];
  std::printf("{\"pattern\": \"%s\", \"allocator\": \"%s\", \"ns\": %.2f, \"mpairs_per_s\": %.4f}\n", pattern, name,
              median, threads * 1e3 / median);
  std::fflush(stdout);
}

}  // namespace

int main(int count, char** arguments) {
  char const* const name = count > 1 ? arguments[1] : "PyTorch";
  allocator::init(c10::cuda::device_count());
  std::vector<c10::cuda::CUDAStream> streams;
  for (int i = 0; i < 16; ++i)
    streams.push_back(c10::cuda::getStreamFromPool());
  auto const make = [&](int t) { return of_torch{streams[static_cast<size_t>(t)]}; };
  auto const one = make(0);
  constexpr size_t ki = 1024, mi = ki * ki;
  auto const pairs = [&](char const* pattern, size_t bytes) {
    patterns::pairs<of_torch> run(one, bytes);
    print(pattern, name, 1, run);
  };
  auto const churn = [&](char const* pattern, int live, size_t least, size_t most) {
    patterns::churn<of_torch> run(one, live, least, most);
    print(pattern, name, 1, run);
    allocator::emptyCache();
  };
  pairs("pair512", 512);
  pairs("pair64K", 64 * ki);
  pairs("pair8M", 8 * mi);
  churn("churn16-4K", 1000, 16, 4 * ki);
  churn("churn512-1M", 1000, 512, mi);
  churn("churn64K-64M", 200, 64 * ki, 64 * mi);
  patterns::threads<decltype(make)> together(make, weir::os::processors_of_cores(), 16,
                                             patterns::threads_work::together);
  print("threads16", name, 16, together);
  patterns::handoff<decltype(make)> handoff(make);
  print("handoff", name, 1, handoff);
}
