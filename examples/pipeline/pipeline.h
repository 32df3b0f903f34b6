// Streams a file through a device: read into pinned memory, copy in, scramble, copy out, write. Several
// batches are in flight at once on three streams.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace pipeline {

enum class stage : std::uint8_t { read, copy_in, work, copy_out, write };
struct span {  // milliseconds since the start of the first batch
  stage what;
  int batch;
  double from, to;
};

struct settings {
  std::filesystem::path input, output;
  std::size_t batch = std::size_t{4} << 20;  // bytes, a multiple of 8
  int depth = 4;                             // most batches in flight
  std::function<void(std::size_t done, std::size_t total)> progress{};
};
struct outcome {
  std::size_t bytes = 0;
  std::uint64_t checksum = 0;  // of the input as read
  double ms = 0;
  std::vector<span> spans;
};

// Throws: weir's errors; std::runtime_error with the byte offset if a file cannot be opened, ends early or is
// full. Also std::runtime_error if the input has no known size, or if the output is the input or its disk has
// too little room.
outcome run(settings const&);
// Returns: the checksum of the output's words before they were scrambled. Throws: as run()
std::uint64_t checksum_of_restored(std::filesystem::path const& output);

// Throws: std::runtime_error if the file's disk has less than `bytes` of room. Checked before any write.
void require_room(std::filesystem::path const& file, std::size_t bytes);

// Returns: a text that shows which stages overlapped: a row per stage, a column per time step, and in each
// cell the last digit of the active batch.
std::string picture(std::vector<span> const&, int columns = 64);
// Returns: how many stages ran at a time in the mean, from the first begin to the last end. 1: none overlapped.
double at_a_time(std::vector<span> const&);

}  // namespace pipeline
