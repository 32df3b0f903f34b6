// The message between two processes: one fixed shape, validated in full before any field is used.
// Threads: values.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "runtime/base/os_socket.h"

namespace weir::peer {

using os::owned_file;

enum class message_kind : std::uint32_t {
  number = 1,
  buffer = 2,
  // Of a ring, with a number and bytes (ring_link.h says of what)
  ring = 3,
  opened = 4,
  item = 5,
  released = 6,
  end = 7,
  dropped = 8,
  unclosed = 9,
};
constexpr bool is_of_ring(message_kind k) noexcept {
  return k >= message_kind::ring && k <= message_kind::unclosed;
}

// Native byte order: both processes run on one machine.
struct message {
  static constexpr std::uint64_t mark = 0x6572687372696577;  // "weirshre"
  static constexpr std::uint32_t this_version = 3;

  std::uint64_t magic = mark;
  std::uint32_t version = this_version;
  message_kind kind = message_kind::number;
  std::uint64_t number = 0;        // of message_kind::number, and of a ring
  std::uint64_t bytes = 0;         // of a ring; from here on of message_kind::buffer: as requested
  std::uint64_t handle_bytes = 0;  // whole pages
  std::uint64_t offset = 0;        // of the buffer in the handle, a multiple of `granule`
  std::uint64_t origin = 0;        // the owner's runtime
  // The owner's handle. A receiver looks it up by both numbers, and trusts only the descriptor.
  std::uint64_t serial = 0;
  std::array<char, 48> device{};  // UUID of the memory's device
  std::uint64_t checksum = 0;     // of all fields before
};
static_assert(sizeof(message) == 120);
inline constexpr std::size_t granule = 512;  // bytes: alignment of a buffer in a handle

std::uint64_t checksum_of(message const&) noexcept;
std::span<std::byte const> bytes_of(message const&) noexcept;
std::string uuid_of(message const&);
// Returns: the error; empty if valid. `bytes`, `files`: received; `cut`: more descriptors were sent.
std::string judge(message const&, std::size_t bytes, std::size_t files, bool cut);

}  // namespace weir::peer
