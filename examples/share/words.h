// Operations on a shared buffer: the writer fills it, and both processes compute its checksum.
#pragma once
#include <cstddef>
#include <cstdint>

#include "weir/memory.h"
#include "weir/stream.h"

namespace share {

// Fills each word with a number derived from its index and the round.
void fill(weir::stream_ref, std::uint64_t* words, std::size_t count, std::uint64_t round);

// An order-dependent checksum of every word of every round, and the number of wrong words. Kept on a device.
class checksum {
 public:
  checksum(weir::stream_ref, weir::device);
  void add(weir::stream_ref, std::uint64_t const* words, std::size_t count, std::uint64_t round);
  struct result {
    std::uint64_t sum = 0, wrong = 0;
  };
  result read(weir::stream_ref) const;

 private:
  weir::buffer lanes_;  // a result for each lane
};

}  // namespace share
