// A block of a random program with its pattern of four bytes: what writes the pattern, and what compares it.
// Threads: any; one at a time for a block.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace weir::tests {

struct piece_of_memory {
  unsigned char* at;
  std::size_t bytes;
  std::uint32_t pattern;
  int home;
  int ordered;               // the stream that wrote it last
  std::vector<int> readers;  // streams that may still read it: ordered behind the write, not before the next one
};

inline unsigned char byte_of(std::uint32_t pattern, std::size_t i) {
  return static_cast<unsigned char>(pattern >> (i % 4 * 8));
}
inline void paint(unsigned char* at, std::size_t bytes, std::uint32_t pattern) {
  for (std::size_t i = 0; i < std::min<std::size_t>(bytes, 4); ++i)
    at[i] = byte_of(pattern, i);
  for (std::size_t done = 4; done < bytes; done *= 2)
    std::memcpy(at + done, at, std::min(done, bytes - done));
}
inline bool painted(unsigned char const* at, std::size_t bytes, std::uint32_t pattern) {
  for (std::size_t i = 0; i < std::min<std::size_t>(bytes, 4); ++i) {
    if (at[i] != byte_of(pattern, i))
      return false;
  }
  return bytes <= 4 || std::memcmp(at, at + 4, bytes - 4) == 0;
}

// Sizes of all kinds, up to a third of the device; of capacity 0 a few small ones. below(n): a number from 0 to n - 1.
template <class Below>
std::size_t some_size(Below const& below, std::size_t capacity) {
  if (capacity == 0)
    return std::size_t{64} << 2 * below(3);  // few sizes, so that a freed block soon serves again
  switch (below(8)) {
    case 0: return static_cast<std::size_t>(below(64));
    case 1:
    case 2: return static_cast<std::size_t>(below(4096));
    case 3: return static_cast<std::size_t>(below(40 << 10));
    case 4:
    case 5: return capacity / 16 + static_cast<std::size_t>(below(static_cast<int>(capacity / 16)));
    case 6: return static_cast<std::size_t>(below(static_cast<int>(capacity / 3)));
    default: return static_cast<std::size_t>(1 + below(8)) << 14;
  }
}

}  // namespace weir::tests
