// What the two processes do with a buffer on their devices: one fills it, both sum it up.
#pragma once
#include <cstddef>
#include <cstdint>

#include "weir/memory.h"
#include "weir/stream.h"

namespace share {

// Every word becomes a number that hangs on its place and the round.
void fill(weir::stream_ref, std::uint64_t* words, std::size_t count, std::uint64_t round);

// A checksum of every word of every round, in their order, kept on a device;
// and how many words were not what fill() writes.
class checksum {
 public:
  checksum(weir::stream_ref, weir::device);
  void add(weir::stream_ref, std::uint64_t const* words, std::size_t count, std::uint64_t round);
  struct result {
    std::uint64_t sum = 0, wrong = 0;
  };
  result read(weir::stream_ref) const;

 private:
  weir::buffer lanes_;  // a result for every lane
};

}  // namespace share
