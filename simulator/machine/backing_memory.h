// A bank is one simulated device's physical memory:
// ranges of a file without a name, as many bytes as the device has.
// Threads: none of its own; under the lock of the memory it belongs to.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

namespace weir::driver::sim {

enum class fresh_bytes : std::uint8_t {
  zero,       // the system's: a page costs when it is touched, and nothing once it is given back
  arbitrary,  // chosen by a seed; the file is kept for the process's next machine, which makes machines cheap
};

class bank {
 public:
  bank(std::size_t capacity, fresh_bytes, std::uint64_t seed);
  ~bank();
  bank(bank const&) = delete;

  // Returns: the offset in the file; none: the device is full, or the system is.
  std::optional<std::uint64_t> take(std::size_t bytes);
  void give_back(std::uint64_t offset, std::size_t bytes);
  bool count(std::size_t bytes) noexcept;    // as used, though they lie elsewhere. false: there is no room
  void uncount(std::size_t bytes) noexcept;
  bool map(void* at, std::uint64_t offset, std::size_t bytes);  // in place of what was there
  void consume_memory(std::size_t bytes);  // another process takes as much of what is left
  void others_leave(std::size_t bytes);  // and gives it back
  std::size_t free_bytes() const noexcept;

 private:
  struct file {
    int number = -1;
    std::uint64_t end = 0;            // bytes
    void* window = nullptr;  // the first bytes of the file, mapped for as long as it lives: poison goes through here
    std::uint64_t generation = 0;     // of the process that made it
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
  std::uint64_t end_ = 0;                          // bytes of the file that were ever taken
  std::map<std::uint64_t, std::uint64_t> holes_;   // below end_: offset -> bytes
  std::size_t used_ = 0, others_ = 0;              // bytes; used + others <= capacity
};

}  // namespace weir::driver::sim
