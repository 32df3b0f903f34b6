// A slab is one run of an arena cut into equal slots; its state is a byte a slot on the host, nothing on the device.
// Threads: the caller holds the lock of the stream_memory it belongs to.
//
// Invariant: slots = free + live + pending, by counting the state bytes; a slab is listed exactly when it has a free slot.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/memory/piece.h"

namespace weir::memory {

// Sizes of slots: 16 B steps to 1 KiB, then 8 a doubling to 32 KiB.
struct size_classes {
  static constexpr int count = 64 + 5 * 8;
  static constexpr std::size_t largest = 32 << 10;
  static constexpr std::size_t bytes(int c) noexcept {
    if (c < 64) return static_cast<std::size_t>(c + 1) * 16;
    std::size_t const base = std::size_t{1024} << ((c - 64) / 8);
    return base + base / 8 * static_cast<std::size_t>((c - 64) % 8 + 1);
  }
  static constexpr int of(std::size_t bytes) noexcept {
    if (bytes <= 1024) return bytes == 0 ? 0 : static_cast<int>((bytes + 15) / 16) - 1;
    int const e = std::bit_width(bytes - 1) - 1;  // 2^e <= bytes - 1 < 2^(e + 1)
    std::size_t const step = (std::size_t{1} << e) / 8;
    return 64 + (e - 10) * 8 + static_cast<int>((bytes - (std::size_t{1} << e) + step - 1) / step) - 1;
  }
  // The smallest class of at least `bytes` whose slots are all aligned so; -1: none.
  static constexpr int of(std::size_t bytes, std::size_t alignment) noexcept {
    if (bytes > largest || alignment > largest) return -1;
    for (int c = of(bytes); c < count; ++c) {
      if (size_classes::bytes(c) % alignment == 0) return c;
    }
    return -1;
  }
};

enum class slot : std::uint8_t { free = 0, live = 1, pending = 2 };

struct slab {
  static constexpr std::uint8_t noted = 0x80;  // the slot has an entry in `notes`
  struct note {  // what few slots need
    clock::timeline* home = nullptr;           // null: the slab's own stream
    std::vector<clock::timeline*> marks;
  };

  piece* run = nullptr;
  address base = 0;
  std::uint32_t size = 0, slots = 0, free = 0, pending = 0, hint = 0;  // no slot below `hint` is free
  int size_class = 0;
  bool listed = false;
  slab* before = nullptr;
  slab* after = nullptr;
  std::unique_ptr<std::uint8_t[]> states;
  std::unique_ptr<std::uint16_t[]> unused;     // size - requested, a slot
  std::map<std::uint32_t, note> notes;

  slot at(std::uint32_t i) const noexcept { return static_cast<slot>(states[i] & ~noted); }
  void set(std::uint32_t i, slot s) noexcept { states[i] = static_cast<std::uint8_t>((states[i] & noted) | static_cast<std::uint8_t>(s)); }
  std::uint32_t index(address a) const noexcept { return static_cast<std::uint32_t>((a - base) / size); }  // >= slots: the unusable rest of the run
  address start(std::uint32_t i) const noexcept { return base + std::size_t{i} * size; }
  std::size_t requested(std::uint32_t i) const noexcept { return size - unused[i]; }
  note& noted_at(std::uint32_t i) {
    note& n = notes[i];
    states[i] |= noted;
    return n;
  }
  note* note_of(std::uint32_t i) noexcept {
    if (!(states[i] & noted)) return nullptr;
    return &notes.find(i)->second;
  }
  void forget(std::uint32_t i) noexcept {
    if (states[i] & noted) notes.erase(i), states[i] &= static_cast<std::uint8_t>(~noted);
  }
  bool empty() const noexcept { return free == slots; }
};

// The slabs of one stream.
class slabs {
 public:
  struct taken {
    slab* from = nullptr;
    std::uint32_t index = 0;
  };
  taken take(int size_class, std::size_t requested) noexcept;  // from == null: no slab of this class has a free slot
  // live -> free, or pending -> free. Ensures: true when the slab is empty now and is more than its class keeps: the caller may return its run.
  bool give(slab&, std::uint32_t index) noexcept;
  void hold(slab&, std::uint32_t index) noexcept;              // live -> pending
  static std::size_t run_bytes(int size_class, std::size_t slabs_of_class) noexcept;
  std::size_t next_run_bytes(int size_class) const noexcept { return run_bytes(size_class, counts_[static_cast<std::size_t>(size_class)]); }
  slab& add(piece& run, int size_class);                       // the run's piece becomes `slab`
  piece& remove(slab&) noexcept;                               // Requires: empty. Ensures: the run, whose piece is `live` again, so that it can be given
  slab* any_empty() noexcept;
  void validate(std::vector<std::string>& wrong, std::string const& who) const;

 private:
  void list(slab&) noexcept;
  void unlist(slab&) noexcept;
  std::array<slab*, size_classes::count> open_{};              // listed: at least one free slot
  std::array<std::size_t, size_classes::count> counts_{};
  std::array<std::size_t, size_classes::count> empties_{};
  std::vector<std::unique_ptr<slab>> all_;                     // descriptors are used again, never freed
  std::vector<slab*> spare_;
};

}  // namespace weir::memory
