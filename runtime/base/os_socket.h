// Messages and descriptors between processes:
// sockets that keep messages apart, and what the kernel says of a descriptor.
// Threads: any; of two threads that receive from one socket, each gets other messages.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "runtime/base/os.h"
#include "runtime/base/sync.h"

namespace weir::os {

class owned_file {
 public:
  owned_file() noexcept = default;
  explicit owned_file(int file) noexcept : file_(file) {}
  owned_file(owned_file&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  owned_file& operator=(owned_file&& other) noexcept {
    if (this != &other) close(), file_ = std::exchange(other.file_, -1);
    return *this;
  }
  ~owned_file() { close(); }
  int get() const noexcept { return file_; }
  bool is_open() const noexcept { return file_ >= 0; }
  void close() noexcept {
    if (file_ >= 0) close_file(std::exchange(file_, -1));
  }
  int release() noexcept { return std::exchange(file_, -1); }

 private:
  int file_ = -1;
};

inline constexpr std::size_t most_files = 4;  // that are kept of one message

int duplicate_file(int file) noexcept;  // closed on exec; -1: refused

// Memory files, for other processes to map ----
bool seal_size(int file) noexcept;      // nothing cuts it short, or lets it grow, from now on. false: refused
// Why a file of another process may not be mapped as that many bytes of memory; null: it may, and no access
// to it can fail, whatever the other process does.
char const* unfit_to_map(int file, std::uint64_t bytes) noexcept;
// Two descriptors of this process. The same:
// of one open file, passed on or duplicated. Unknown: the system does not say.
enum class sameness : std::uint8_t { same, different, unknown };
sameness same_open_file(int, int) noexcept;

// Two ends of one connection, for messages whole and in order; closed on exec. {-1, -1}: refused.
std::pair<int, int> make_sockets() noexcept;
bool is_message_socket(int file) noexcept;  // of this machine's processes, and keeps messages apart (SOCK_SEQPACKET)
bool has_hung_up(int socket) noexcept;      // the other end is closed; what it said before may still be there

enum class heard : std::uint8_t {
  message,   // of no length, too
  too_late,  // nothing within the limit
  closed,    // nobody has the other end any more
  refused,   // by the system
};
// Whole, or not at all. Waits while the other side's queue is full, for that long at most.
// No signal when it is closed.
heard send_message(int socket, std::span<std::byte const>, std::span<int const> files, base::time_limit) noexcept;
struct received {
  heard is = heard::refused;
  std::size_t bytes = 0;       // of the message, though it may be longer than there was room for
  std::array<owned_file, most_files> files{};  // the first of them; closed on exec
  std::size_t file_count = 0;  // that came; those beyond most_files are closed
  bool cut = false;            // more were sent: the process may not have more
};
// Waits for that long at most. Zero: what is there.
// What was said before the other end was closed is still heard.
received receive_message(int socket, std::span<std::byte> into, base::time_limit) noexcept;

}  // namespace weir::os
