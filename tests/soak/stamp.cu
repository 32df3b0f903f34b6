// The kernels of the soak: each lane waits, then writes or reads every lanes-th word of a block.
// Threads: any.
#include "tests/soak/stamp.h"

#include <algorithm>

namespace weir::soak {
namespace {

constexpr std::size_t most_lanes = 8192;

WEIR_HOST_DEVICE inline void add(unsigned long long* to, unsigned long long n) {
#if defined(__CUDA_ARCH__)
  atomicAdd(to, n);
#else
  __atomic_fetch_add(to, n, __ATOMIC_RELAXED);
#endif
}

WEIR_HOST_DEVICE inline void pause(unsigned cycles, std::size_t lane) {
#if defined(__CUDA_ARCH__)
  long long const from = clock64();
  while (clock64() - from < cycles) {}
  (void)lane;
#else
  if (lane != 0)
    return;  // a simulated device runs its lanes one after the other
  for (unsigned n = 0; n < cycles; ++n)
    asm volatile("");
#endif
}

struct stamper {
  std::uint32_t* words;
  std::size_t count, lanes;
  std::uint64_t id;
  unsigned delay;
  WEIR_HOST_DEVICE void operator()(std::size_t lane) const {
    pause(delay, lane);
    for (std::size_t i = lane; i < count; i += lanes)
      words[i] = stamped(id, i);
  }
};

struct verifier {
  std::uint32_t const* words;
  std::size_t count, lanes;
  std::uint64_t id;
  unsigned delay;
  tally* to;
  WEIR_HOST_DEVICE void operator()(std::size_t lane) const {
    pause(delay, lane);
    unsigned long long wrong = 0;
    for (std::size_t i = lane; i < count; i += lanes) {
      std::uint32_t const found = words[i];
      if (found == stamped(id, i))
        continue;
      ++wrong;
      to->expected = id, to->found = found, to->word = i;
    }
    if (wrong)
      add(&to->mismatches, wrong);
    if (lane == 0)
      add(&to->reported, 1);
  }
};

}  // namespace

void stamp(stream_ref s, void* p, std::size_t bytes, std::uint64_t id, unsigned delay) {
  std::size_t const count = bytes / 4, lanes = std::min(count, most_lanes);
  parallel_for(s, lanes, {writes(p, bytes)}, stamper{static_cast<std::uint32_t*>(p), count, lanes, id, delay});
}

void verify(stream_ref s, void const* p, std::size_t bytes, std::uint64_t id, unsigned delay, tally* to) {
  std::size_t const count = bytes / 4, lanes = std::min(count, most_lanes);
  parallel_for(s, lanes, {reads(p, bytes), updates(to, sizeof(tally))},
               verifier{static_cast<std::uint32_t const*>(p), count, lanes, id, delay, to});
}

}  // namespace weir::soak
