// A file through a device and into another file: read into pinned memory, copied in, scrambled, copied out,
// written, with several batches under way at once on three streams.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace pipeline {

enum class stage : std::uint8_t { read, copy_in, work, copy_out, write };
struct span {  // milliseconds since the first batch was given
  stage what;
  int batch;
  double from, to;
};

struct settings {
  std::filesystem::path input, output;
  std::size_t batch = std::size_t{4} << 20;  // bytes, a multiple of 8
  int depth = 4;                             // batches under way at most
  std::function<void(std::size_t done, std::size_t total)> progress{};
};
struct outcome {
  std::size_t bytes = 0;
  std::uint64_t checksum = 0;  // of the input, as it was read
  double ms = 0;
  std::vector<span> spans;
};

// Throws: std::runtime_error (a file that cannot be opened, ends early or takes no more, with the byte; an
// input that is no file of a known size; an output that is the input, by whatever name,
// or has no room for it), weir's errors.
outcome run(settings const&);
// Of what the output was before it was scrambled. Throws: as run
std::uint64_t checksum_of_restored(std::filesystem::path const& output);

// Throws: std::runtime_error, where the file's disk has less room than so many bytes,
// before one of them is written
void require_room(std::filesystem::path const& file, std::size_t bytes);

// What overlapped with what: a row a stage, a column a moment,
// in it the last digit of the batch that was there.
std::string picture(std::vector<span> const&, int columns = 64);

}  // namespace pipeline
