// What goes over a line between two processes: one message of one shape, judged in full before anything of it is believed.
// Threads: values.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "runtime/base/os.h"

namespace weir::peer {

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
    if (file_ >= 0) os::close_file(std::exchange(file_, -1));
  }
  int release() noexcept { return std::exchange(file_, -1); }

 private:
  int file_ = -1;
};

enum class said : std::uint32_t { number = 1, buffer = 2 };

// Integers as this machine has them: both processes are on it.
struct message {
  static constexpr std::uint64_t mark = 0x6572687372696577;  // "weirshre"
  static constexpr std::uint32_t this_version = 2;

  std::uint64_t magic = mark;
  std::uint32_t version = this_version;
  said kind = said::number;
  std::uint64_t number = 0;        // said::number
  std::uint64_t bytes = 0;         // said::buffer from here: as requested
  std::uint64_t handle_bytes = 0;  // whole pages
  std::uint64_t offset = 0;        // of the buffer in them
  std::uint64_t origin = 0;        // the runtime that made the memory: a number not to be repeated
  std::uint64_t serial = 0;        // of that handle among its
  std::uint64_t turn = 0;          // the so-manieth time something of it was sent: a message that comes again is known by it
  std::array<char, 48> device{};   // whose memory: its UUID
  std::uint64_t checksum = 0;      // of all before
};
static_assert(sizeof(message) == 128);

std::uint64_t checksum_of(message const&) noexcept;
std::span<std::byte const> bytes_of(message const&) noexcept;
std::string uuid_of(message const&);
// What is wrong with it, in words; empty: nothing. `bytes`: how long what came was; `files`: with it.
std::string judge(message const&, std::size_t bytes, std::size_t files, bool cut);

}  // namespace weir::peer
