// Around the code of docs/how-to/several-processes.md.
#include <cstdio>
#include <thread>
#include <vector>

#include "weir/collective.h"
#include "weir/device.h"
#include "weir/memory.h"

int main() {
  std::vector<weir::device> const devices{0, 1};
#include <ranks.1>
  std::printf("%zu ranks\n", ranks.size());
  std::vector<std::thread> threads;
  for (weir::communicator& rank : ranks)
    threads.emplace_back([&rank] {
#include <ranks.2>
    });
  for (std::thread& t : threads)
    t.join();
  return ranks.size() == 2 && ranks[1].rank() == 1 ? 0 : 1;
}
