// Around the code of docs/tutorial/overlap.md: a loop over a loader's batches.
#include <cstring>

#include "weir/copy.h"
#include "weir/pipeline.h"

int main() {
  weir::stream const work;
  constexpr std::size_t bytes = 4096;
  int trained = 0;
  auto const read = [](std::uint64_t n, std::span<std::byte> to) {
    std::memset(to.data(), static_cast<int>(n), to.size());
    return n < 10 ? to.size() : 0;
  };
  auto const train = [&](weir::stream_ref s, float* x) {
    weir::fill(s, x, std::byte{1}, bytes);
    ++trained;
  };
#include <loader.1>
  return trained == 10 ? 0 : 1;
}
