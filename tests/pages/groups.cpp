// Around the group of docs/reference/collectives.md: a machine of one rank keeps the sums it had.
#include <cstdio>
#include <vector>

#include "weir/array.h"
#include "weir/collective.h"
#include "weir/stream.h"

int main() {
  struct tensor {
    weir::array<float> shard, gradient;
  };
  std::vector<weir::device> const devices{0};
  auto communicators = weir::communicator::create_all(devices);
  weir::communicator& ranks = communicators[0];
  weir::stream s;
  weir::stream_guard const on(s);
  std::vector<tensor> tensors;
  for (float const value : {3.f, 4.f})
    tensors.push_back({weir::array<float>(s, std::vector<float>{0}), weir::array<float>(s, std::vector<float>{value})});
#include <groups.1>
  done.synchronize();
  return tensors[0].shard.element(0) == 3 && tensors[1].shard.element(0) == 4 ? 0 : 1;
}
