// Both ends of a ring of slots in device memory: one process writes it, another reads it in place.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "examples/share/words.h"

namespace share {

struct settings {
  std::size_t bytes = std::size_t{8} << 20;  // per slot
  int buffers = 4;                           // slots of the ring
  std::uint64_t rounds = 100;
  std::chrono::milliseconds timeout{2000};  // longest wait for the other process
  enum class mishap : std::uint8_t { none, killed, stopped } meets = mishap::none;  // a fault halfway
};

struct outcome {
  checksum::result sum;
  double seconds = 0;  // from the first round to the last
};
// Throws: peer_disconnected; timed_out after settings.timeout; weir's other errors.
outcome write(int socket, settings const&);
// Compares its checksum with the writer's. Throws: as write(); std::runtime_error if the checksums differ
outcome read(int socket, settings const&);

}  // namespace share
