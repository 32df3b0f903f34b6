// A trace: the exact sequence in which a program took and gave back device memory.
// Text, plain or gzip, one operation a line:
//   a ID BYTES STREAM   takes BYTES on stream number STREAM; each ID is new
//   f ID                gives it back: reusable in stream order, at once
//   c ID                after its f: another stream had used it too, and was done with it only here
//   # began with BLOCKS blocks, BYTES bytes   the first of these were in use when the recording began, in the
//                       middle of the program: their order is not known, nor a peak before
//   # refused BYTES     an allocation that found no memory while the program was recorded
//   # WHERE, reserved BYTES bytes   PyTorch's own peak: the first line that tools/record_trace writes
//   # ...               a comment
// Threads: one.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace weir::tool {

struct trace {
  enum class kind : std::uint8_t {
    take,
    give,
    give_in_use,  // an f with a c behind it
    done,         // that c
  };
  struct operation {
    std::size_t bytes;     // take
    std::uint32_t block;   // 0, 1, 2, … in the order they are taken
    std::uint16_t stream;  // take: 0, 1, 2, … in the order of their numbers
    kind does;
  };
  std::vector<operation> operations;
  std::uint32_t blocks = 0, streams = 0;
  std::size_t peak_requested = 0;  // bytes in use at once, as asked; in use until its c where a block has one
  std::size_t peak_held = 0;       // the same, until its f: a program that waits for its other streams needs no less
  std::optional<std::size_t> of_torch{};  // bytes that PyTorch reserved at its peak, if the trace has them
  std::string where{};                    // "PyTorch 2.11.0 on NVIDIA H100", with them
  std::size_t began_with = 0;  // bytes in use when a recording began in the middle of its program; 0: it has all
  std::size_t refused = 0;     // bytes of the refused allocation that needed most; 0: none was refused
  std::size_t needed = 0;      // then the most in use at once until its f, with these: the program needs more
};

inline constexpr std::uint32_t most_streams = 65536;  // an operation has room for no more

// Throws: invalid_use naming the file and the line, and what is wrong with it.
trace read_trace(std::string const& path);

}  // namespace weir::tool
