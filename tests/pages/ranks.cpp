// Around the code of docs/how-to/several-processes.md.
#include <cstdio>
#include <vector>

#include "weir/collective.h"

int main() {
  std::vector<weir::device> const devices{0, 1};
#include <ranks.1>
  std::printf("%zu ranks\n", ranks.size());
  return ranks.size() == 2 && ranks[1].rank() == 1 ? 0 : 1;
}
