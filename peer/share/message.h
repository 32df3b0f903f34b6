// What goes over a line between two processes:
// one message of one shape, judged in full before anything of it is believed.
// Threads: values.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "runtime/base/os_socket.h"

namespace weir::peer {

using os::owned_file;

enum class said : std::uint32_t { number = 1, buffer = 2 };

// Integers as this machine has them: both processes are on it.
struct message {
  static constexpr std::uint64_t mark = 0x6572687372696577;  // "weirshre"
  static constexpr std::uint32_t this_version = 3;

  std::uint64_t magic = mark;
  std::uint32_t version = this_version;
  said kind = said::number;
  std::uint64_t number = 0;        // said::number
  std::uint64_t bytes = 0;         // said::buffer from here: as requested
  std::uint64_t handle_bytes = 0;  // whole pages
  std::uint64_t offset = 0;        // of the buffer in them, a multiple of `granule`
  std::uint64_t origin = 0;        // how its owner names the handle: a number of its runtime,
  // and one of the handle. A receiver looks under these names first, and believes the descriptor
  std::uint64_t serial = 0;
  std::array<char, 48> device{};   // whose memory: its UUID
  std::uint64_t checksum = 0;      // of all before
};
static_assert(sizeof(message) == 120);
inline constexpr std::size_t granule = 512;  // bytes: where buffers of a handle begin

std::uint64_t checksum_of(message const&) noexcept;
std::span<std::byte const> bytes_of(message const&) noexcept;
std::string uuid_of(message const&);
// What is wrong with it, in words; empty:
// nothing. `bytes`: how long what came was; `files`: how many came with it;
// `cut`: of more that were sent.
std::string judge(message const&, std::size_t bytes, std::size_t files, bool cut);

}  // namespace weir::peer
