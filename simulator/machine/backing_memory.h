// A bank is the physical memory of one simulated device: ranges of an anonymous file as large as the device.
// Threads: not thread-safe; the lock of the owning memory protects it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

namespace weir::driver::sim {

enum class fresh_bytes : std::uint8_t {
  zero,       // the system's: a page costs memory from first touch until it is returned
  arbitrary,  // chosen by a seed; the process's next machine reuses the file, so that machines are cheap
};

class backing_memory {
 public:
  backing_memory(std::size_t capacity, fresh_bytes, std::uint64_t seed);
  ~backing_memory();
  backing_memory(backing_memory const&) = delete;

  // Returns: the offset in the file, or none if the device or the system has no memory.
  std::optional<std::uint64_t> take(std::size_t bytes);
  void give_back(std::uint64_t offset, std::size_t bytes);
  bool count(std::size_t bytes) noexcept;  // counts bytes that are stored elsewhere as used. false: not enough room
  void uncount(std::size_t bytes) noexcept;
  bool map(void* at, std::uint64_t offset, std::size_t bytes);  // replaces the mapping there
  void consume_memory(std::size_t bytes);  // simulates another process that allocates as much of the free bytes
  void others_leave(std::size_t bytes);    // the other process frees them
  std::size_t free_bytes() const noexcept;

 private:
  struct file {
    int number = -1;
    std::uint64_t end = 0;         // bytes
    void* window = nullptr;        // the first bytes of the file, mapped as long as the file lives: for the poison
    std::uint64_t generation = 0;  // os::fork_generation() of the process that made it
  };
  struct shelf;
  static shelf& kept() noexcept;
  bool open();
  void fill(std::uint64_t offset, std::size_t bytes, int value);

  std::size_t const capacity_;
  fresh_bytes const fresh_;
  std::uint64_t const seed_;
  std::uint64_t takes_ = 0;
  file file_;
  std::uint64_t end_ = 0;                         // end of the highest range ever taken
  std::map<std::uint64_t, std::uint64_t> holes_;  // below end_: offset -> bytes
  std::size_t used_ = 0, others_ = 0;             // bytes; used + others <= capacity
};

}  // namespace weir::driver::sim
