// What a program is told by weir without simulator/. tests/tools/without_simulator_test.sh runs it.
// Threads: one.
#include <cstdio>

#include "runtime/core/parts.h"

namespace {

template <class Ask>
void tell(Ask ask) {
  try {
    ask();
    std::puts("no error");
  } catch (weir::not_supported const& e) {
    std::puts(e.what());
  }
}

}  // namespace

int main() {
  tell([] { weir::runtime const asked{weir::simulated{.devices = 2, .memory = size_t{64} << 20}}; });
  tell([] { (void)weir::with_checker(nullptr, weir::source_location::current()); });
}
