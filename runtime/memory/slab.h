// A slab is one run of an arena cut into equal slots; its state is a byte (a word from 1 KiB up) and a bit a slot on the host, nothing on the device.
// Threads: the caller holds the lock of the stream_memory it belongs to.
//
// Invariant: slots = free + live + pending + cached, by counting the state bytes; a slab is listed exactly when it has a free slot.
#pragma once
#include <map>
#include <memory>
#include <span>
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

enum class slot : std::uint8_t {
  free = 0,
  live = 1,
  pending = 2,
  cached = 3,  // given back, or never handed out, and held by a thread's cache
};

// What is known of a slot: its state, whether it has an entry in `notes`, and size - requested. A byte for small slots, a word for others.
// Whoever holds a slot changes it, with the lock or, where a thread's cache has it, without; nobody else does.
struct slot_word {
  static constexpr std::uint32_t state_bits = 3, noted = 4, in_use_bits = 7;
  static constexpr int unused_shift = 3;
};
using small_word = base::single_writer<std::uint8_t>;
using large_word = base::single_writer<std::uint32_t>;

struct slab {
  static constexpr std::uint32_t small = 1024, most_in_byte = 31;
  struct note {  // what few slots need
    clock::timeline* home = nullptr;           // null: the slab's own stream
    std::vector<clock::timeline*> marks;
    std::uint32_t unused = 0;                  // of a small slot, where the byte has no room for it
  };

  piece* run = nullptr;
  address base = 0;
  std::uint32_t size = 0, slots = 0;
  std::uint32_t reciprocal = 0;                              // 2^32 / size, rounded up: an offset times this is its index, exactly so at a slot's start
  std::uint16_t size_class = 0, way = 0;                     // way: where a thread finds its cache of this memory
  stream_memory* owner = nullptr;
  std::unique_ptr<small_word[]> bytes;                       // one of these two, by size
  std::unique_ptr<large_word[]> words;
  std::unique_ptr<std::uint64_t[]> free_bits;                // a bit a slot
  std::uint32_t free = 0, pending = 0;
  std::uint32_t hint = 0;                                    // no word of free_bits below it has a bit
  bool listed = false;
  slab* before = nullptr;
  slab* after = nullptr;
  std::map<std::uint32_t, note> notes;

  std::uint32_t word(std::uint32_t i) const noexcept { return size > small ? words[i].get() : bytes[i].get(); }
  void set_word(std::uint32_t i, std::uint32_t value) noexcept { size > small ? words[i].set(value) : bytes[i].set(static_cast<std::uint8_t>(value)); }
  void* word_at(std::uint32_t i) noexcept { return size > small ? static_cast<void*>(&words[i]) : &bytes[i]; }
  slot at(std::uint32_t i) const noexcept { return static_cast<slot>(word(i) & slot_word::state_bits); }
  bool has_note(std::uint32_t i) const noexcept { return (word(i) & slot_word::noted) != 0; }
  // Only a promotion by alignment leaves more than most_in_byte of a small slot: that takes a note and may allocate.
  static bool fits_byte(std::uint32_t size, std::size_t requested) noexcept { return size > small || size - requested <= most_in_byte; }
  void set_live(std::uint32_t i, std::size_t requested) noexcept {  // Requires: fits_byte
    set_word(i, (size - static_cast<std::uint32_t>(requested)) << slot_word::unused_shift | static_cast<std::uint32_t>(slot::live));
  }
  void set(std::uint32_t i, slot s) noexcept { set_word(i, static_cast<std::uint32_t>(s)); }  // any but live; Requires: no note
  std::uint32_t index(address a) const noexcept { return static_cast<std::uint32_t>((a - base) / size); }  // >= slots: the unusable rest of the run
  address start(std::uint32_t i) const noexcept { return base + std::size_t{i} * size; }
  std::size_t requested(std::uint32_t i) const noexcept {
    if (has_note(i)) {
      if (std::uint32_t const left = notes.find(i)->second.unused) return size - left;
    }
    return size - (word(i) >> slot_word::unused_shift);
  }
  note& noted_at(std::uint32_t i) {
    note& n = notes[i];
    set_word(i, word(i) | slot_word::noted);
    return n;
  }
  note* note_of(std::uint32_t i) noexcept {
    if (!has_note(i)) return nullptr;
    return &notes.find(i)->second;
  }
  void forget(std::uint32_t i) noexcept {
    if (!has_note(i)) return;
    notes.erase(i);
    set_word(i, word(i) & ~slot_word::noted);
  }
  bool empty() const noexcept { return free == slots; }
};

// A slot as a thread's cache holds it.
struct cached_slot {
  address at = 0;
  void* word = nullptr;  // a small_word or a large_word
};

// The slabs of one stream.
class slabs {
 public:
  struct taken {
    slab* from = nullptr;
    std::uint32_t index = 0;
  };
  taken take(int size_class, std::size_t requested) noexcept(false);  // from == null: no slab of this class has a free slot
  // live -> free, or pending -> free. Ensures: true when the slab is empty now and is more than its class keeps: the caller may return its run.
  bool give(slab&, std::uint32_t index) noexcept;
  void hold(slab&, std::uint32_t index) noexcept;              // live -> pending
  std::size_t lend(int size_class, std::span<cached_slot>) noexcept;  // free -> cached; how many there were
  bool take_back(slab& s, std::uint32_t index) noexcept { return set_free(s, index); }  // cached -> free; as give
  static std::size_t run_bytes(int size_class, std::size_t slabs_of_class) noexcept;
  std::size_t next_run_bytes(int size_class) const noexcept { return run_bytes(size_class, counts_[static_cast<std::size_t>(size_class)]); }
  slab& add(piece& run, int size_class, stream_memory* owner = nullptr, std::size_t way = 0);                       // the run's piece becomes `slab`
  piece& remove(slab&) noexcept;                               // Requires: empty. Ensures: the run, whose piece is `live` again, so that it can be given
  slab* any_empty() noexcept;
  void validate(std::vector<std::string>& wrong, std::string const& who) const;

 private:
  void list(slab&) noexcept;
  bool set_free(slab&, std::uint32_t index) noexcept;
  std::uint32_t take_bit(slab&) noexcept;
  void unlist(slab&) noexcept;
  std::array<slab*, size_classes::count> open_{};              // listed: at least one free slot
  std::array<std::size_t, size_classes::count> counts_{};
  std::array<std::size_t, size_classes::count> empties_{};
  std::vector<std::unique_ptr<slab>> all_;                     // descriptors are used again, never freed
  std::vector<slab*> spare_;
};

}  // namespace weir::memory
