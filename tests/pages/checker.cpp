// Around the code of docs/how-to/test-without-a-gpu.md: it reads too early, and the checker says so.
#include <cstdio>

#include "weir/copy.h"
#include "weir/observe.h"

int main() {
  weir::runtime rt{weir::simulated{.devices = 1, .schedule = weir::simulated::scheduling::seeded, .seed = 1},
                   {.check_races = true}};
  weir::runtime_guard const in{rt};
  std::size_t const bytes = 4096;
  weir::stream const s;
  weir::buffer const x(s, bytes);
  weir::buffer to = weir::pinned(bytes);
  weir::fill(s, x.data(), std::byte{0}, bytes);
#include <checker.1>
  static_cast<void>(first);
  copied.synchronize();
  auto const found = weir::race_reports();
  for (auto const& r : found)
    std::printf("%s\n", r.text.c_str());
  return found.size() == 1 && found[0].kind == "host too early" ? 0 : 1;
}
