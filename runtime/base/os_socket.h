// Messages and descriptors between processes: sockets that keep messages apart, and what is known of a file.
// Threads: any; of two threads that receive from one socket, each gets other messages.
#pragma once
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace weir::os {

inline constexpr std::size_t most_files = 4;  // with one message

int duplicate_file(int file) noexcept;                      // closed on exec; -1: refused
std::uint64_t bytes_of_memory_file(int file) noexcept;      // 0: no file without a name

// Two ends of one connection, for messages whole and in order; closed on exec. {-1, -1}: refused.
std::pair<int, int> make_sockets() noexcept;
bool is_message_socket(int file) noexcept;                  // of this machine's processes, and keeps messages apart (SOCK_SEQPACKET)

enum class heard : std::uint8_t {
  message,
  too_late,  // nothing within the limit
  closed,    // nobody has the other end any more
  refused,   // by the system
};
// Whole, or not at all. Waits while the other side's queue is full, for `limit` at most. No signal when it is closed.
heard send_message(int socket, std::span<std::byte const>, std::span<int const> files, std::chrono::nanoseconds limit) noexcept;
struct received {
  heard is = heard::refused;
  std::size_t bytes = 0;                  // of the message, though it may be longer than there was room for
  std::array<int, most_files> files{};    // the receiver's to close; closed on exec
  std::size_t file_count = 0;
  bool cut = false;                       // there were more files than these; or the process may not have more
};
// Waits for `limit` at most. Zero: what is there. What was said before the other end was closed is still heard.
received receive_message(int socket, std::span<std::byte> into, std::chrono::nanoseconds limit) noexcept;

}  // namespace weir::os
