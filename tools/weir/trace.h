// A trace: the exact sequence in which a program took and gave back device memory.
// Text, plain or gzip, one operation a line:
//   a ID BYTES STREAM   takes BYTES on stream number STREAM; each ID is new
//   f ID                gives it back: reusable in stream order, at once
//   c ID                after its f: another stream had used it too, and was done with it only here
//   # refused BYTES     an allocation that found no memory while the program was recorded
//   # WHERE, reserved BYTES bytes   a first line of tools/record_trace: PyTorch's own peak
//   # ...               a comment
// Threads: one.
#pragma once
#include <cstdint>
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
  std::size_t of_torch = 0;        // bytes that PyTorch reserved at its peak; 0: the trace does not tell
  std::string where{};             // "PyTorch 2.11.0 on NVIDIA H100"
  std::size_t refused = 0;         // bytes of the refused allocation that needed most; 0: none was refused
  std::size_t needed = 0;          // with these, bytes in use at once until their f: the program needs more than this
};

inline constexpr std::uint32_t most_streams = 65536;  // an operation has room for no more

// Throws: invalid_use naming the file and the line, and what is wrong with it.
trace read_trace(std::string const& path);

}  // namespace weir::tool
