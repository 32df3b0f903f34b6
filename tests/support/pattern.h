// Bytes that distinguish places and copies. Compiled with the library's optimisation, unlike the tests.
// Threads: any.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace weir::test {

// Compares with memcmp, because vector's byte-wise comparison is slow without optimisation.
struct bytes_of_host : std::vector<std::byte> {
  using std::vector<std::byte>::vector;
  friend bool operator==(bytes_of_host const& a, bytes_of_host const& b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
  }
};

// n bytes determined by `salt`.
bytes_of_host pattern(std::size_t n, std::uint64_t salt);

}  // namespace weir::test
