// Around the code of docs/how-to/pools.md.
#include <cstdio>
#include <vector>

#include "weir/collective.h"
#include "weir/copy.h"
#include "weir/pool.h"

using namespace weir::literals;

namespace {

bool two_models() {
  weir::stream const stream;
  weir::buffer weights;
  std::size_t const bytes = 4_MiB;
#include <pools.1>
  weir::fill(stream, weights.data(), std::byte{7}, bytes);
  weir::pool other("other");
  weir::buffer theirs;
  {
    weir::pool_guard const here(other);
    theirs = weir::buffer(stream, bytes);
  }
  other.sleep();
#include <pools.2>
  bool const turned = model.is_asleep() && !other.is_asleep();
  model.wake();
  weir::buffer back = weir::pinned(bytes);
  weir::copy(stream, back.data(), weights.data(), bytes);
  weir::deallocate(p);
  return turned && back.host<unsigned char>()[bytes - 1] == 7;
}

bool three_layers() {
  weir::pool layer0("layer0"), layer1("layer1"), layer2("layer2");
  std::vector<weir::buffer> memory;
  weir::set_memory_limit(48_MiB, 0);
#include <pools.3>
  for (weir::pool* const layer : {&layer0, &layer1, &layer2}) {
    weir::pool_guard const here(*layer);
    memory.emplace_back(20_MiB);
  }
  return layer0.is_asleep() && !layer2.is_asleep();  // two of three fit
}

bool registered_pool() {
  std::vector<weir::device> const one{1};
  std::vector<weir::communicator> ranks = weir::communicator::create_all(one);
  weir::communicator& rank = ranks.front();
  weir::device_guard const on{1};
#include <pools.4>
  return gradients.statistics().reserved == 2_GiB;
}

}  // namespace

int main() {
  bool const as_said[] = {two_models(), three_layers(), registered_pool()};
  std::printf("%d%d%d\n", as_said[0], as_said[1], as_said[2]);
  return as_said[0] && as_said[1] && as_said[2] ? 0 : 1;
}
