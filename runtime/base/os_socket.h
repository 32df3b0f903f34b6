// Messages and descriptors between processes, over sockets that keep message boundaries.
// Threads: any; each message goes to one receiver.
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
    if (this != &other)
      close(), file_ = std::exchange(other.file_, -1);
    return *this;
  }
  ~owned_file() { close(); }
  int get() const noexcept { return file_; }
  bool is_open() const noexcept { return file_ >= 0; }
  void close() noexcept {
    if (file_ >= 0)
      close_file(std::exchange(file_, -1));
  }
  int release() noexcept { return std::exchange(file_, -1); }

 private:
  int file_ = -1;
};

inline constexpr std::size_t most_files = 4;  // kept of one message

// What poll(2) takes for a wait of so many ns: rounded up, so that no wait ends early. Below 0: no wait.
int poll_ms(std::int64_t ns) noexcept;
inline constexpr int longest_poll_ms = 1'000'000'000;

int duplicate_file(int file) noexcept;  // closed on exec; -1: refused

// Memory files that other processes map
bool seal_size(int file) noexcept;  // the file can neither shrink nor grow from now on. False: refused
// Returns: why a file of another process cannot be mapped as that many bytes of memory. Null: it can, and no
// access to it can fail, whatever the other process does.
char const* unfit_to_map(int file, std::uint64_t bytes) noexcept;
// Whether two descriptors of this process refer to one open file. Unknown: the system does not say.
enum class sameness : std::uint8_t { same, different, unknown };
sameness same_open_file(int, int) noexcept;

// A connected pair that delivers whole messages in order; closed on exec. {-1, -1}: refused.
std::pair<int, int> make_sockets() noexcept;
bool is_message_socket(int file) noexcept;  // a local socket that keeps message boundaries (SOCK_SEQPACKET)
bool has_hung_up(int socket) noexcept;      // the other end is closed; earlier messages may still be unread

enum class heard : std::uint8_t {
  message,   // also an empty one
  too_late,  // timed out
  closed,    // no process has the other end
  refused,   // by the system
};
// Sends the whole message or nothing, without SIGPIPE. Blocks: while the receiver's queue is full.
heard send_message(int socket, std::span<std::byte const>, std::span<int const> files, base::time_limit) noexcept;
struct received {
  heard is = heard::refused;
  std::size_t bytes = 0;                       // of the message, even if it was longer than `into`
  std::array<owned_file, most_files> files{};  // closed on exec
  std::size_t file_count = 0;                  // that came; those beyond most_files are closed
  bool cut = false;                            // more were sent than this process may open
};
// Blocks: up to the limit. Messages that were sent before the other end was closed are still received.
received receive_message(int socket, std::span<std::byte> into, base::time_limit) noexcept;

}  // namespace weir::os
