// A slab cuts one run of an arena into equal slots. A slot's state is a byte (four above 1 KiB) and a bit on
// the host, and nothing on the device.
// Threads: the caller holds the lock of the stream_heap that owns it.
//
// Invariant: slots = free + live + pending + cached + gone, by their state bytes. A slab is listed exactly
// when it has a free slot. A slot is gone when the slab has lost a cell that the slot touches: cells in which
// no slot is in use may return to the arena. All work that used a free slot is ordered before the stamp
// (home, the slab's `freed`), as for a free block of the arena.
#pragma once
#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/memory/blocks/heap_block.h"

namespace weir::memory {

// Sizes of slots: steps of 16 B to 1 KiB, then 8 a doubling to 32 KiB.
struct size_classes {
  static constexpr int count = 64 + 5 * 8;
  static constexpr std::size_t largest = 32 << 10;
  static constexpr std::size_t bytes(int c) noexcept {
    if (c < 64)
      return static_cast<std::size_t>(c + 1) * 16;
    std::size_t const base = std::size_t{1024} << ((c - 64) / 8);
    return base + base / 8 * static_cast<std::size_t>((c - 64) % 8 + 1);
  }
  static constexpr int of(std::size_t bytes) noexcept {
    if (bytes <= 1024)
      return bytes == 0 ? 0 : static_cast<int>((bytes + 15) / 16) - 1;
    int const e = std::bit_width(bytes - 1) - 1;  // 2^e <= bytes - 1 < 2^(e + 1)
    std::size_t const step = (std::size_t{1} << e) / 8;
    return 64 + (e - 10) * 8 + static_cast<int>((bytes - (std::size_t{1} << e) + step - 1) / step) - 1;
  }
  static constexpr std::size_t step = 16;  // bytes: every size is a multiple of it
  // slab::lines of of(bytes), from a table. Requires: bytes <= largest
  static std::size_t lines_of(std::size_t bytes) noexcept;
  // The smallest class of at least `bytes` whose slots all have that alignment; -1: none.
  static constexpr int of(std::size_t bytes, std::size_t alignment) noexcept {
    if (bytes > largest || alignment > largest)
      return -1;
    for (int c = of(bytes); c < count; ++c)
      if (size_classes::bytes(c) % alignment == 0)
        return c;
    return -1;
  }
};

enum class slot : std::uint8_t {
  free = 0,
  live = 1,
  pending = 2,
  cached = 3,  // in a thread cache or its deferred frees
};

// A slot's byte: its state, whether it has a mark or a note, and size - requested, which large slots keep
// beside the byte. Only the holder of a slot changes it: with the lock or, if a thread cache has it, without.
// `exact` and `cached` are whole values of the byte; any other value needs a closer look.
using slot_byte = base::single_writer<std::uint8_t>;
struct slot_bits {
  // noted: in `users` or `notes`. A thread that sets it on a live slot changes no other bit
  static constexpr std::uint8_t state = 3, noted = 4, in_use = 7;
  static constexpr int unused_shift = 3;  // small: all of size - requested; large: whether there is any
  static constexpr std::uint8_t some_unused = 1 << 3;
  static constexpr std::uint8_t exact = 1;      // live, no note, requested == size
  static constexpr std::uint8_t gone = 1 << 3;  // the byte of no live and of no free slot
};
struct large_slot {
  slot_byte state;  // first member: byte(i) is the address of both
  base::single_writer<std::uint16_t> unused;
};
static_assert(std::is_standard_layout_v<large_slot> && sizeof(large_slot) == 4 && sizeof(slot_byte) == 1);

struct alignas(64) slab {
  static constexpr std::uint32_t small = 1024, most_in_byte = 31;
  // The first two streams that a slot is marked for, as their clocks' addresses; in the first word also whether
  // `notes` has more. Also set without the lock: two threads may read one block for two streams at once. Cleared by
  // the thread that frees the block, when no other thread marks it any more.
  using user_word = base::atomic<std::uintptr_t>;
  using first_users = std::array<user_word, 2>;
  static constexpr std::uintptr_t more = 1;
  struct note {                                 // what few slots need
    clock::stream_clock* home = nullptr;        // null: the slab's own stream
    std::shared_ptr<void const> home_lifetime;  // so that no other stream gets that object
    block_users users;                          // without the first two
    std::uint32_t unused = 0;                   // of a small slot, if the byte has no room for it
    void set_home(clock::stream_clock& t) noexcept { home = &t, home_lifetime = t.hold(); }
  };
  struct alignas(128) states {  // cache lines of their own: slabs of different streams share none
    std::array<unsigned char, 128> bytes{};
  };

  // The fields that a free without the lock reads come first, in one cache line.
  address base = 0;
  std::uint64_t reciprocal = 0;    // 2^64 / size, rounded up
  unsigned char* first = nullptr;  // the state byte of slot 0; one more behind the last slot's, never live
  stream_heap* owner = nullptr;
  std::uint32_t size = 0, slots = 0;
  std::uint16_t size_class = 0, bucket = 0;  // the bucket is where a thread finds its cache of this heap
  std::uint8_t byte_shift = 0;               // 0; of large slots 2
  bool listed = false;
  // Where a thread cache keeps slots of this size: offset from the smallest size, in cache lines of 64 bytes.
  static constexpr std::uint16_t lines_a_size = 17;
  std::uint16_t lines = 0;
  heap_block* run = nullptr;  // its lowest part; the others lie behind it
  std::uint32_t bytes = 0;    // of the run, with the cells that are gone
  std::uint32_t free = 0, pending = 0, gone = 0;
  std::uint32_t hint = 0;   // no word of free_bits below it has a bit
  std::uint64_t freed = 0;  // latest free stamp of a slot or of the run
  std::unique_ptr<states[]> known;
  std::unique_ptr<std::uint64_t[]> free_bits;  // a bit a slot
  slab* before = nullptr;
  slab* after = nullptr;
  std::map<std::uint32_t, note> notes;
  std::unique_ptr<first_users[]> users_storage;  // by slot; null until one is marked
  base::atomic<first_users*> users{nullptr};     // the same, for readers without the lock

  slot_byte& byte(std::uint32_t i) const noexcept {
    return *reinterpret_cast<slot_byte*>(first + (std::size_t{i} << byte_shift));
  }
  // Requires: size > small
  large_slot& large(std::uint32_t i) const noexcept {
    return *reinterpret_cast<large_slot*>(first + std::size_t{i} * sizeof(large_slot));
  }
  slot at(std::uint32_t i) const noexcept { return static_cast<slot>(byte(i).get() & slot_bits::state); }
  bool has_note(std::uint32_t i) const noexcept { return (byte(i).get() & slot_bits::noted) != 0; }
  // Which slot starts `offset` bytes behind `base`; index >= slots: none. With offset = k size + r the
  // product is k 2^64 + r 2^64 / size + less than the reciprocal. So the upper half is k, and the lower half
  // is below the reciprocal exactly when r = 0.
  [[gnu::always_inline]] bool starts(std::uint64_t offset, std::uint32_t& index) const noexcept {
    __extension__ using twice = unsigned __int128;
    twice const product = twice{offset} * reciprocal;
    index = static_cast<std::uint32_t>(product >> 64);
    return static_cast<std::uint64_t>(product) < reciprocal;
  }
  // Requires: live, `value` is its byte
  static std::uint32_t unused_of(slot_byte const& b, std::uint8_t value, std::uint32_t size) noexcept {
    if (size <= small)
      return value >> slot_bits::unused_shift;
    return value & slot_bits::some_unused ? reinterpret_cast<large_slot const&>(b).unused.get() : 0u;
  }
  static void set_live(slot_byte& b, std::uint32_t unused, std::uint32_t size) noexcept {  // Requires: fits_byte
    std::uint32_t const bits = size > small ? (unused ? 1u : 0u) : unused;
    if (size > small && unused)
      reinterpret_cast<large_slot&>(b).unused.set(static_cast<std::uint16_t>(unused));
    b.set(static_cast<std::uint8_t>(bits << slot_bits::unused_shift | static_cast<std::uint8_t>(slot::live)));
  }
  // Only a class raised for alignment leaves more of a small slot unused: a note has it, and may allocate.
  static bool fits_byte(std::uint32_t size, std::size_t requested) noexcept {
    return size > small || size - requested <= most_in_byte;
  }
  void set_live(std::uint32_t i, std::size_t requested) noexcept {
    set_live(byte(i), size - static_cast<std::uint32_t>(requested), size);
  }
  // Requires: s is not live; no note
  void set(std::uint32_t i, slot s) noexcept { byte(i).set(static_cast<std::uint8_t>(s)); }
  // >= slots: the unusable rest of the run
  std::uint32_t index(address a) const noexcept { return static_cast<std::uint32_t>((a - base) / size); }
  address start(std::uint32_t i) const noexcept { return base + std::size_t{i} * size; }
  std::size_t requested(std::uint32_t i) const noexcept {
    if (note const* const n = note_of(i); n && n->unused)
      return size - n->unused;
    return size - unused_of(byte(i), byte(i).get(), size);
  }
  note& noted_at(std::uint32_t i) {
    note& n = notes[i];
    say_more(i);
    byte(i).set(byte(i).get() | slot_bits::noted);
    return n;
  }
  using spare_note = std::map<std::uint32_t, note>::node_type;
  static spare_note make_note() {  // Throws: bad_alloc
    std::map<std::uint32_t, note> one;
    one[0];
    return one.extract(one.begin());
  }
  // The slot's home is `home`. The spare note serves a slot that has none.
  void set_home(std::uint32_t i, clock::stream_clock& home, spare_note spare) noexcept {
    if (note* const noted = note_of(i)) {
      noted->set_home(home);
      return;
    }
    spare.key() = i;
    spare.mapped().set_home(home);
    notes.insert(std::move(spare));
    say_more(i);
    byte(i).set(byte(i).get() | slot_bits::noted);
  }
  note* note_of(std::uint32_t i) noexcept {
    if (!has_note(i))
      return nullptr;
    auto const found = notes.find(i);
    return found == notes.end() ? nullptr : &found->second;
  }
  note const* note_of(std::uint32_t i) const noexcept { return const_cast<slab*>(this)->note_of(i); }
  static clock::stream_clock* clock_of(std::uintptr_t mark) noexcept {
    return reinterpret_cast<clock::stream_clock*>(mark & ~more);
  }
  template <class Do>
  void each_user(std::uint32_t i, Do act) const {
    if (has_note(i) && users_storage) {
      for (user_word const& word : users_storage[i]) {
        if (clock::stream_clock* const user = clock_of(word.load()))
          act(user);
      }
    }
    if (note const* const n = note_of(i)) {
      n->users.each(act);
    }
  }
  // Threads: any, with or without the lock. False: the slot has marks of two others.
  bool add_first_user(first_users* all, std::uint32_t i, clock::stream_clock& user) const noexcept {
    auto const as = reinterpret_cast<std::uintptr_t>(&user);
    // A failed exchange reads the mark again: another thread may have set it, or `more`.
    for (user_word& word : all[i]) {
      std::uintptr_t mark = word.load(base::memory_order_relaxed);
      while ((mark & ~more) == 0) {
        if (!word.compare_exchange(mark, mark | as))
          continue;
        byte(i).set(byte(i).get() | slot_bits::noted);
        return true;
      }
      if ((mark & ~more) == as)
        return true;
    }
    return false;
  }
  void forget_first_users(std::uint32_t i) noexcept {
    if (!users_storage)
      return;
    for (user_word& word : users_storage[i])
      word.store(0);
  }
  void record_use(std::uint32_t i, clock::stream_clock& user);  // Throws: bad_alloc
  void forget_user(std::uint32_t i, clock::stream_clock& user) noexcept;
  void say_more(std::uint32_t i) noexcept;  // `notes` has that slot
  void forget(std::uint32_t i) noexcept {
    if (!has_note(i))
      return;
    notes.erase(i);
    forget_first_users(i);
    byte(i).set(byte(i).get() & static_cast<std::uint8_t>(~slot_bits::noted));
  }
  bool empty() const noexcept { return free + gone == slots; }
  bool has_gone(std::uint32_t i) const noexcept { return byte(i).get() == slot_bits::gone; }
  std::uint32_t held() const noexcept { return slots - free - pending - gone; }  // slots that are live or cached
  heap_block* next_part(heap_block const& p) const noexcept {
    for (heap_block* n = p.after; n && n->at < base + bytes; n = n->after)
      if (n->in_slab == this)
        return n;
    return nullptr;
  }
  heap_block* part_at(address a) const noexcept {
    heap_block* p = run;
    while (p && a - p->at >= p->bytes)
      p = next_part(*p);
    return p;
  }
  // Each slot of which that part of the run has bytes, but for those that have gone: act(slab, index).
  template <class Do>
  void each_slot(heap_block const& part, Do act) const {
    for (std::uint32_t i = index(part.at); i < slots && start(i) < part.end(); ++i) {
      if (!has_gone(i))
        act(*this, i);
    }
  }
  // Likewise each live slot, once: with the first part.
  template <class Do>
  void each_live_slot(heap_block const& part, Do act) const {
    for (std::uint32_t i = 0; run == &part && i < slots; ++i) {
      if (at(i) == slot::live)
        act(*this, i);
    }
  }
};
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
static_assert(sizeof(slab) == 192 && offsetof(slab, first) == 16 && offsetof(slab, owner) == 24 &&
              offsetof(slab, bucket) == 42);
static_assert(offsetof(slab, byte_shift) == 44 && offsetof(slab, lines) == 46 && offsetof(slab, run) == 48 &&
              offsetof(slab, users) == 176);
#pragma GCC diagnostic pop

namespace detail {
struct lines_table {
  std::array<std::uint16_t, size_classes::largest / size_classes::step + 1> by_steps{};
  constexpr lines_table() {
    for (std::size_t n = 0; n < by_steps.size(); ++n)
      by_steps[n] = static_cast<std::uint16_t>(size_classes::of(n * size_classes::step) * slab::lines_a_size);
  }
};
inline constexpr lines_table lines_by_bytes;
}  // namespace detail
inline std::size_t size_classes::lines_of(std::size_t bytes) noexcept {
  return detail::lines_by_bytes.by_steps[(bytes + step - 1) / step];
}

struct cached_slot {
  address at;  // uninitialized: a refill makes 64 of them
  slot_byte* state;
};

class slabs {
 public:
  struct taken {
    slab* from = nullptr;
    std::uint32_t index = 0;
  };
  // from == null: no slab of this class has a free slot
  taken take(int size_class, std::size_t requested) noexcept(false);
  // live or pending -> free. Returns: true if the slab is empty and not kept, so its run may be returned.
  bool give(slab&, std::uint32_t index, std::uint64_t freed) noexcept;
  void hold(slab&, std::uint32_t index) noexcept;  // live -> pending
  // pending -> live, for the stream whose use it waits for. Requires: fits_byte
  void take_back(slab& s, std::uint32_t index, std::size_t requested) noexcept {
    WEIR_RULE(s.at(index) == slot::pending && s.pending > 0, "slots != free + live + pending + cached + gone");
    --s.pending;
    s.set_live(index, requested);
  }
  std::size_t take_for_cache(int size_class, std::span<cached_slot>) noexcept;  // free -> cached; Returns: how many
  // cached -> free; as give
  bool return_from_cache(slab& s, std::uint32_t index, std::uint64_t freed) noexcept {
    WEIR_RULE(s.at(index) == slot::cached, "a slot in a thread cache is not in state cached");
    return set_free(s, index, freed);
  }
  // A class with many slabs gets runs of up to a 40th of what they hold: each run costs some 700 B of host
  // memory. No run has more than most_slots: the first mark in a slab makes a word for each slot.
  static constexpr std::size_t most_run_bytes = 32 << 20, usual_run_bytes = 512 << 10, many_slabs = 192,
                               most_slots = 1 << 16;
  static std::size_t run_bytes(int size_class, std::size_t slabs_of_class) noexcept;
  static constexpr std::size_t run_alignment(int size_class) noexcept {  // slots are aligned as their size is
    std::size_t const size = size_classes::bytes(size_class);
    return std::max(cell, size & (~size + 1));
  }
  std::size_t next_run_bytes(int size_class) const noexcept {
    return run_bytes(size_class, counts_[static_cast<std::size_t>(size_class)]);
  }
  // The run size to use if no longer run is free, because free memory is used before the heap grows.
  std::size_t usual_next_run_bytes(int size_class) const noexcept {
    return run_bytes(size_class, std::min(counts_[static_cast<std::size_t>(size_class)], many_slabs - 1));
  }
  slab& add(heap_block& run, int size_class, stream_heap* owner = nullptr, std::size_t bucket = 0);
  // Requires: empty. `give(part)` returns each part of its run to the arena.
  template <class Give>
  void remove(slab& s, Give give) noexcept {
    heap_block* part = forget(s);
    while (part) {
      in_runs_ -= part->bytes;
      give(*std::exchange(part, s.next_part(*part)));
    }
    spare_.push_back(&s);
  }
  // Ensures: each cell of each run has a byte of a slot in use. `give(part, from, bytes)` returns other cells
  // to the arena and answers the part's remainder behind them, or null. `leave(slab)` gets each empty slab.
  // Throws: what `give` throws before it changes anything
  template <class Give, class Leave>
  void shed(Give give, Leave leave) {
    freed_ = 0, has_shed_ = true;
    for (std::size_t i = 0; i < all_.size(); ++i) {
      slab& s = *all_[i];
      if (!s.run)
        continue;
      if (s.empty()) {
        leave(s);
        continue;
      }
      heap_block* part = s.run;
      for (stretch now = next_idle(s, 0); now.slots; now = next_idle(s, now.first + now.slots))
        shed_cells(s, now, part, give);
      shed_cells(s, {s.slots, 0}, part, give);  // the rest behind the last slot
    }
  }
  // Much is free, and each slot freed since the last shed() pays for a scan of `words_a_slot` words.
  bool worth_shedding(std::size_t page_bytes) const noexcept {
    return free_bytes_ >= std::max(in_runs_ / 4, page_bytes) && freed_ >= words_ / words_a_slot;
  }
  bool has_shed() const noexcept { return has_shed_; }  // ever: there may be short free blocks
  void forget_stamps() noexcept {                       // Requires: all free slots are complete
    for (auto const& s : all_)
      s->freed = 0;
    newest_freed_ = 0;
  }
  std::uint64_t newest_freed() const noexcept { return newest_freed_; }  // no slot has a later free stamp
  slab* any_empty() noexcept;
  std::size_t in_runs() const noexcept { return in_runs_; }
  // now: the home's present number
  void validate(std::vector<std::string>& wrong, std::string const& subject,
                std::uint64_t now = ~std::uint64_t{0}) const;

 private:
  void list(slab&) noexcept;
  bool set_free(slab&, std::uint32_t index, std::uint64_t freed) noexcept;
  std::uint32_t take_bit(slab&) noexcept;
  void unlist(slab&) noexcept;
  heap_block* forget(slab&) noexcept;  // Returns: the lowest part of its run
  struct stretch {
    std::uint32_t first = 0, slots = 0;
  };
  // Free and gone slots, at least one of them free. None: slots == 0
  static stretch next_idle(slab const&, std::uint32_t from) noexcept;
  void drop(slab&, stretch, address from, address to) noexcept;  // slots that touch these cells are gone
  // Returns the whole cells of a stretch, with the rest of the run behind the last slot. part: no lower part
  // has a byte of it; afterwards, the first part behind what has gone.
  template <class Give>
  void shed_cells(slab& s, stretch idle, heap_block*& part, Give give) {
    address const end = idle.first + idle.slots == s.slots ? s.base + s.bytes : s.start(idle.first + idle.slots);
    address const to = round_down(end, cell);
    for (address a = round_up(s.start(idle.first), cell); part && part->at < to;
         a = std::max(a, part ? part->at : to)) {
      // A part that lies below `a` is left behind. To one that begins above it, `a` goes on.
      if (part->end() <= a || a < part->at) {
        if (part->end() <= a)
          part = s.next_part(*part);
        continue;
      }
      if (a >= to)  // the stretch has no whole cell
        break;
      address const upto = std::min(to, part->end());
      bool const run_begins_here = part == s.run && part->at == a;
      heap_block* const next = s.next_part(*part);
      heap_block* const rest = give(*part, a, upto - a);
      part = rest ? rest : next;
      if (run_begins_here)
        s.run = part;
      drop(s, idle, a, upto);
    }
  }
  std::array<slab*, size_classes::count> open_{};  // the listed slabs
  std::array<std::size_t, size_classes::count> counts_{};
  std::array<std::size_t, size_classes::count> empties_{};
  static constexpr std::size_t words_a_slot = 32, words_a_slab = 4;
  // words that shed() reads, and the cost of the slab itself
  static std::size_t words_of(slab const& s) noexcept { return s.slots / 64 + words_a_slab; }
  std::size_t in_runs_ = 0, free_bytes_ = 0;  // bytes: of all runs; of free slots
  std::size_t words_ = 0;                     // of all slabs
  std::size_t freed_ = 0;                     // slots freed since shed()
  std::uint64_t newest_freed_ = 0;
  bool has_shed_ = false;
  std::vector<std::unique_ptr<slab>> all_;  // descriptors are reused, never destroyed
  std::vector<slab*> spare_;
};

}  // namespace weir::memory
