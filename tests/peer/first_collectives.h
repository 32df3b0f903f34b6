// The collectives for which NCCL connects all ranks, small and large.
// Threads: one for each rank.
#pragma once
#include "tests/peer/ranks.h"

namespace weir::test {

// Rank 0 calls `await` before each, and the others `came` after theirs.
template <class Await, class Came>
void call_first_collectives(communicator& c, Await await, Came came) {
  int const n = c.size();
  for (std::int64_t const count : {1, 1 << 10, 1 << 18}) {
    buffer const whole(static_cast<std::size_t>(count * n) * 4), part(static_cast<std::size_t>(count) * 4);
    device_span const all{whole.data(), count * n, int32}, own{part.data(), count, int32};
    for (int which = 0; which < 4; ++which) {
      if (c.rank() == 0)
        await();
      switch (which) {
        case 0: c.all_reduce(own); break;
        case 1: c.broadcast(own, 0); break;
        case 2: c.all_gather(all, own); break;
        default: c.reduce_scatter(own, all);
      }
      if (c.rank() != 0)
        came();
    }
    current_stream().synchronize();
  }
}

}  // namespace weir::test
