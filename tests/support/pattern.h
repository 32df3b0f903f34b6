// Bytes that tell one place, and one copy, from another.
// Compiled with the library's optimisation, which tests' own code is not.
// Threads: any.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace weir::test {

// A vector of std::byte is compared byte by byte, which takes long where nothing is optimised.
struct bytes_of_host : std::vector<std::byte> {
  using std::vector<std::byte>::vector;
  friend bool operator==(bytes_of_host const& a, bytes_of_host const& b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
  }
};

// n bytes that follow from `salt` alone.
bytes_of_host pattern(std::size_t n, std::uint64_t salt);

}  // namespace weir::test
