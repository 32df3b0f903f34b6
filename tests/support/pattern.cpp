// Bytes of a multiplicative generator: equal for equal salts on every machine.
#include "tests/support/pattern.h"

namespace weir::test {

bytes_of_host pattern(std::size_t n, std::uint64_t salt) {
  bytes_of_host out(n);
  std::uint64_t x = salt * 0x9e3779b97f4a7c15u + 1;
  for (auto& b : out) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    b = static_cast<std::byte>(x >> 56);
  }
  return out;
}

}  // namespace weir::test
