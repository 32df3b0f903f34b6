// A ring of buffers in one process's device memory, written by that process and read in place by another.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "examples/share/words.h"

namespace share {

struct settings {
  std::size_t bytes = std::size_t{8} << 20;  // of a buffer
  int buffers = 4;
  std::uint64_t rounds = 100;
  std::chrono::milliseconds timeout{2000};   // how long either waits for the other
  enum class mishap : std::uint8_t { none, killed, stopped } meets = mishap::none;  // half way
};

struct outcome {
  checksum::result sum;
  double seconds = 0;  // from the first round to the last
};
// Both throw what weir throws when the other one is gone, or says nothing for the whole timeout.
outcome write(int socket, settings const&);
// after the last round compares with the writer's. Throws: std::runtime_error (they differ)
outcome read(int socket, settings const&);

}  // namespace share
