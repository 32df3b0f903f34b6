// A thread's cache of small blocks of one stream's memory: no lock and no driver call between a block given back and the next one taken.
// Threads: a cache belongs to one thread; whoever holds the lock of its memory may empty it from outside, also while the thread is
// parked somewhere, by shutting its gate.
//
// Invariant: a slot is in at most one cache, and its state is `cached` exactly then.
// What a cache may hold: at most `most_bytes` over all sizes, so the memory of a device is at most threads × streams × most_bytes
// above what its blocks and the slabs' own rounding need.
#pragma once
#include <array>
#include <cstdint>
#include <span>

#include "runtime/base/process.h"
#include "runtime/memory/page.h"
#include "runtime/memory/slab.h"
#include "runtime/observe/counters.h"

namespace weir::memory {

class thread_cache {
 public:
  static constexpr std::uint32_t most_slots = 64;                 // of a size
  static constexpr std::size_t most_bytes = 2 << 20;              // over all sizes
  static constexpr std::uint32_t first_limit = 2;                 // slots of a size, until it is seen to need more

  // The owner's side. A call that answers null or false has changed nothing: the way with the lock is to be taken.
  [[gnu::always_inline]] void* take(int size_class, std::uint32_t size, std::size_t requested) noexcept {
    if (!gate_.enter()) [[unlikely]] return nullptr;
    void* out = nullptr;
    magazine& m = magazines_[static_cast<std::size_t>(size_class)];
    if (std::uint32_t const n = m.count.get(); n != 0) [[likely]] {
      cached_slot const s = slots_[static_cast<std::size_t>(size_class)][n - 1];
      m.count.set(n - 1);
      requested_taken_.add(static_cast<std::int64_t>(requested));
      std::uint32_t const word = (size - static_cast<std::uint32_t>(requested)) << slot_word::unused_shift | static_cast<std::uint32_t>(slot::live);
      if (size > slab::small) {
        static_cast<large_word*>(s.word)->set(word);
      } else {
        static_cast<small_word*>(s.word)->set(static_cast<std::uint8_t>(word));
      }
      out = reinterpret_cast<void*>(s.at);  // NOLINT(performance-no-int-to-ptr)
    }
    gate_.leave();
    return out;
  }
  [[gnu::always_inline]] bool give(slab& from, std::uint32_t index, std::uint32_t word, address at) noexcept {  // Requires: `word` is the slot's, live and without a note, of this cache's memory
    if (!gate_.enter()) [[unlikely]] return false;
    std::size_t const c = from.size_class;
    magazine& m = magazines_[c];
    std::uint32_t const n = m.count.get();
    bool const room = n < m.limit;
    if (room) [[likely]] {
      requested_given_.add(from.size - (word >> slot_word::unused_shift));
      void* slots_word;
      if (from.size > slab::small) {
        large_word& w = from.words[index];
        w.set(static_cast<std::uint32_t>(slot::cached));
        slots_word = &w;
      } else {
        small_word& w = from.bytes[index];
        w.set(static_cast<std::uint8_t>(slot::cached));
        slots_word = &w;
      }
      slots_[c][n] = {at, slots_word};
      m.count.set(n + 1);
      m.given.add(1);
    }
    gate_.leave();
    return room;
  }
  // How many more of this size it would like, now that it has none; and where to put them. 0: none, or it is shut.
  std::uint32_t wants(int size_class) noexcept;
  std::size_t put(int size_class, std::span<cached_slot const>) noexcept;  // how many it took
  std::size_t spill(int size_class, std::span<cached_slot>) noexcept;      // the oldest half of a full size, for the slabs

  // From outside, with the lock of its memory held.
  bool is_shut() const noexcept { return gate_.is_shut(); }
  void shut() noexcept { gate_.shut(); }
  void open() noexcept { gate_.open(); }
  template <class Do>
  void empty(Do act) noexcept {  // Requires: shut
    for (int c = 0; c < size_classes::count; ++c) {
      magazine& m = magazines_[static_cast<std::size_t>(c)];
      for (std::uint32_t i = 0; i < m.count.get(); ++i) act(slots_[static_cast<std::size_t>(c)][i]);
      m.lent.add(-static_cast<std::int64_t>(m.count.get()));
      m.count.set(0);
    }
  }
  template <class Do>
  void each(Do act) const {  // Requires: shut
    for (std::size_t c = 0; c < slots_.size(); ++c) {
      for (std::uint32_t i = 0; i < magazines_[c].count.get(); ++i) act(slots_[c][i]);
    }
  }
  observe::lent_slots counted() const noexcept;

  base::atomic<stream_memory*> of{nullptr};  // null: of none any more; written with its lock and that of the registry

 private:
  friend class thread_caches;
  struct magazine {
    base::single_writer<std::uint32_t> count;
    std::uint32_t limit = first_limit;
    std::uint32_t spare = 0;
    base::single_writer<std::int64_t> given, lent;  // ever: given back by the thread; put in from the slabs, less what went back there
  };
  void raise_limit(int size_class) noexcept;
  void forget() noexcept;  // all counts, for another memory

  base::owners_gate gate_;
  std::size_t granted_ = 0;  // bytes: the sum of limits above the first ones
  base::single_writer<std::int64_t> requested_taken_, requested_given_;
  std::array<magazine, size_classes::count> magazines_{};
  std::array<std::array<cached_slot, most_slots>, size_classes::count> slots_{};
};

// The caches of one thread, found by stream and by memory.
class thread_caches {
 public:
  static constexpr std::size_t ways = 16;
  struct entry {
    void const* key = nullptr;                        // a stream, or its memory
    thread_cache* cache = nullptr;                    // shut when its memory has ended
  };
  struct stretch {  // of addresses, where blocks were found last
    address base = 0;
    std::size_t bytes = 0;
    slab* const* slabs = nullptr;                     // by granule
  };
  entry const& of_line(clock::timeline const* line) const noexcept { return by_line_[reinterpret_cast<std::uintptr_t>(line) / 64 % ways]; }
  entry const& of_memory(std::size_t way) const noexcept { return by_memory_[way]; }
  stretch last;
  bool holds() const noexcept { return world_ == world_version(); }  // what is remembered here; asked before anything else
  void forget() noexcept;
  // The calling thread's cache of that memory, made when there is none. Null: no host memory for one.
  static thread_cache* make(clock::timeline const&, stream_memory&) noexcept;
  static thread_caches* mine() noexcept { return static_cast<thread_caches*>(base::thread_pointer<thread_caches>::value); }
  ~thread_caches();  // what its caches hold goes back to the slabs

  // A memory ends: its caches are emptied, and none is entered again. Requires: no lock of any memory held
  static void close(stream_memory&) noexcept;

 private:
  std::uint64_t world_ = 0;  // world_version() when the tables below were last empty
  std::array<entry, ways> by_line_{}, by_memory_{};
  std::vector<thread_cache*> all_;
};

// Which addresses of the process are device memory that maps, for the way without a lock.
class mapped_spaces {
 public:
  static constexpr std::size_t most = 64;
  static void enter(address base, std::size_t bytes, address_space const&) noexcept;  // beyond `most`: blocks there take the way with the lock
  static void leave(address base) noexcept;
  static region const* find(address) noexcept;

 private:
  struct place {
    base::atomic<address> base{0};
    base::atomic<std::size_t> bytes{0};
    base::atomic<address_space const*> space{nullptr};
  };
  static base::atomic<std::size_t> used_;
  static std::array<place, most> places_;
};

// The ways without a lock. Null or false: it must be asked with one.
[[gnu::always_inline]] inline void* quick_allocate(clock::timeline const* line, std::size_t bytes, std::size_t alignment) noexcept {
  thread_caches const* const mine = thread_caches::mine();
  if (!mine || bytes > size_classes::largest || !mine->holds()) [[unlikely]] return nullptr;
  auto const& e = mine->of_line(line);
  if (e.key != line || !line) [[unlikely]] return nullptr;
  int const size_class = size_classes::of(bytes);
  auto const size = static_cast<std::uint32_t>(size_classes::bytes(size_class));
  if (alignment && ((alignment & (alignment - 1)) || (size & (alignment - 1)))) [[unlikely]] return nullptr;
  return e.cache->take(size_class, size, bytes);
}

void remember_stretch(thread_caches&, void const* of) noexcept;  // so that the next block near this one is found without a search

[[gnu::always_inline]] inline bool quick_deallocate(void* p) noexcept {
  thread_caches* const mine = thread_caches::mine();
  if (!mine || !mine->holds()) [[unlikely]] return false;
  auto const a = reinterpret_cast<address>(p);
  auto const& near = mine->last;
  if (a - near.base >= near.bytes) [[unlikely]] {
    remember_stretch(*mine, p);
    if (a - near.base >= near.bytes) return false;
  }
  slab* const s = near.slabs[(a - near.base) / granule];
  if (!s) return false;
  std::uint64_t const offset = a - s->base;
  auto const i = static_cast<std::uint32_t>(offset * s->reciprocal >> 32);
  if (i >= s->slots || std::uint64_t{i} * s->size != offset) [[unlikely]] return false;
  std::uint32_t const word = s->word(i);
  if ((word & slot_word::in_use_bits) != static_cast<std::uint32_t>(slot::live)) [[unlikely]] return false;
  auto const& e = mine->of_memory(s->way);
  return e.key == s->owner && e.cache->give(*s, i, word, a);
}

}  // namespace weir::memory
