// Bytes that tell one place, and one copy, from another. Compiled with the library's optimisation, which tests' own code is not.
// Threads: any.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace weir::test {

using bytes_of_host = std::vector<std::byte>;

// n bytes that follow from `salt` alone.
bytes_of_host pattern(std::size_t n, std::uint64_t salt);

}  // namespace weir::test
