// A thread's cache of one heap's small blocks: frees and allocations without a lock or a driver call.
// Threads: a cache belongs to one thread, its owner. The holder of its heap's lock may shut and empty it,
// also while the owner is blocked elsewhere. Only the owner opens it again, with that lock.
//
// Invariant: a slot is in at most one cache or list of deferred frees, and its state is `cached` exactly
// then. A cache holds at most `most_bytes` over all sizes, and its deferred frees deferred_frees::most_bytes.
// So a device's memory exceeds what blocks and the rounding of slabs need by at most threads x streams x both.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/memory/heap/deferred_frees.h"
#include "runtime/observe/device_counters.h"

namespace weir::memory {

class stream_heap;

class thread_cache {
 public:
  static constexpr std::uint32_t most_slots = 64;        // of a size
  static constexpr std::size_t most_bytes = 2 << 20;     // over all sizes
  static constexpr std::size_t always_raised = 1 << 10;  // bytes: the limit of such a size always rises
  static constexpr std::uint8_t first_limit = 2;         // slots of a size, until it needs more

  // Owner only. Null or false: nothing has changed, take the locked path. lines: see slab::lines.
  [[gnu::always_inline]] void* take(std::size_t lines, std::size_t requested) noexcept {
    magazine& m = magazine_at(lines);
    std::uint64_t const head = m.head.begin();
    std::uint64_t const n = head & magazine::count_bits;
    // Empty, or shut.
    if (n <= m.least.load(base::memory_order_relaxed)) [[unlikely]] {
      m.head.end(head);
      return nullptr;
    }
    cached_slot const s = m.slots[n - 1];
    auto const unused = static_cast<std::uint32_t>(m.size - requested);
    std::uint64_t cost = m.cost;
    if (unused) {
      cost -= unused;
      unused_taken_.add(unused);
      slab::set_live(*s.state, unused, m.size);
    } else {
      s.state->set(slot_bits::exact);
    }
    if (unpublished_.took(cost)) [[unlikely]]
      return reinterpret_cast<void*>(publish_and_end(m.head, head - 1, s.at));
    m.head.end(head - 1);
    return reinterpret_cast<void*>(s.at);  // NOLINT(performance-no-int-to-ptr)
  }
  // Requires: `was` is the state of a slot of this cache's heap, live and without a note.
  [[gnu::always_inline]] bool give(slab const& from, slot_byte& state, std::uint8_t was, address at) noexcept {
    magazine& m = magazine_at(from.lines);
    std::uint64_t const head = m.head.begin();
    std::uint64_t const n = head & magazine::count_bits;
    // Full, or shut.
    if (n >= m.most.load(base::memory_order_relaxed)) [[unlikely]] {
      m.head.end(head);
      return false;
    }
    std::uint64_t cost = m.cost;
    if (was != slot_bits::exact) {
      std::uint32_t const unused = slab::unused_of(state, was, from.size);
      unused_given_.add(unused);
      cost -= unused;
    }
    m.freed.set(static_cast<std::uint32_t>(home->number()));
    state.set(static_cast<std::uint8_t>(slot::cached));
    m.slots[n] = {at, &state};
    if (unpublished_.gave(cost)) [[unlikely]]
      return publish_and_end(m.head, head + magazine::one_given + 1, at) != 0;
    m.head.end(head + magazine::one_given + 1);
    return true;
  }

  // As give(), for a slot that other streams have used: its free is deferred.
  [[gnu::always_inline]] bool give_used(deferred_frees::users by, slab& from, std::uint32_t index, slot_byte& state,
                                        std::uint8_t was) noexcept {
    if (by.other)
      return outs[1].put(by, from, index, state, was, unused_deferred_, home);
    return outs[0].put({by.one}, from, index, state, was, unused_deferred_, home);
  }
  deferred_frees& out_for(deferred_frees::users by) noexcept { return outs[by.other != nullptr]; }

  // Owner only, with the heap's lock.
  void open(clock::stream_clock const& home) noexcept;
  // How many more slots of this size it wants, now that it has none. Requires: open
  std::uint32_t wants(std::uint32_t size_class) noexcept;
  void put(std::uint32_t size_class, std::span<cached_slot const>) noexcept;  // Requires: no more than it wants
  // takes out the oldest half of a full size, for the slabs
  std::size_t spill(std::uint32_t size_class, std::span<cached_slot>) noexcept;

  // Any thread, with the heap's lock.
  void revoke() noexcept;  // Blocks: until its owner, if in one of the calls above, has left it
  template <class Do>
  void each(Do act) const {  // Requires: shut
    if (emptied_)
      return;
    each_used([&](std::uint32_t c) {
      magazine const& m = magazines_[c];
      for (std::uint32_t i = 0; i < m.count(); ++i)
        act(m.slots[i]);
    });
  }
  void empty() noexcept;  // the slots of each() have been taken. Requires: shut
  // The home's number, at most `now`, at the last free of that size here; slabs have the stamps of slots they
  // lent. Only the lower half is stored; the upper is the latest possible, so the result is never too small.
  // Requires: shut, or the owner's call
  std::uint64_t freed(std::uint32_t size_class, std::uint64_t now) const noexcept {
    return now - static_cast<std::uint32_t>(now - magazines_[size_class].freed.get());
  }
  // Reports allocations and frees here to the heap's counters. Requires: the lock, and shut or the owner's call
  void publish(observe::heap_counters&) noexcept;
  // No report until the next publish(). Requires: likewise
  void publish_freely() noexcept { unpublished_.allow_all(); }
  bool has_unpublished() const noexcept {
    return unpublished_.granted() || unpublished_deferred().slots != published_deferred_.blocks;
  }
  // A slot was freed here at that number of the home. The owner may be about to free another.
  bool has_freed_at(std::uint64_t now) const noexcept;
  observe::cached_slots counted() const noexcept;

  base::atomic<stream_heap*> of{nullptr};     // null: none any more; written with its lock and the registry's
  base::bias_word own;                        // the owner holds the heap's lock by it, without a locked instruction
  clock::stream_clock const* home = nullptr;  // of the heap, at the last open(). Owner only

 private:
  observe::unpublished unpublished_;
  observe::change published_deferred_;  // deferred frees that publish() has reported

 public:
  // of slots that wait for one stream, and for two; shut and opened with the cache
  std::array<deferred_frees, 2> outs;

 private:
  friend class stream_heap;  // enlists it
  friend class thread_caches;
  // The slots of one size; the count and the first slots share a cache line. All zeros: empty and shut
  struct alignas(64) magazine {
    static constexpr std::uint64_t count_bits = 0x7f, one_given = 0x100;
    base::bias_word head;                       // its count of slots, and from bit 8 on how many were ever freed here
    std::uint16_t size;                         // bytes
    base::atomic<std::uint8_t> least, most;     // the sign: a take needs more than `least`, a give less than `most`
    base::single_writer<std::uint32_t> freed;   // the home's number at the last free here, its lower half
    std::uint64_t cost;                         // unpublished::cost of `size`
    std::array<cached_slot, most_slots> slots;  // the first count() of them
    std::uint32_t count() const noexcept { return static_cast<std::uint32_t>(head.get() & count_bits); }
  };
  static_assert(sizeof(cached_slot) == 16 && offsetof(magazine, slots) == 24);
  static_assert(offsetof(magazine, head) == 0 && offsetof(magazine, least) == 10 && offsetof(magazine, most) == 11);
  static_assert(offsetof(magazine, freed) == 12 && offsetof(magazine, cost) == 16);
  static_assert(sizeof(magazine) == std::size_t{64} * slab::lines_a_size);
  magazine& magazine_at(std::size_t lines) noexcept {
    return *reinterpret_cast<magazine*>(reinterpret_cast<unsigned char*>(magazines_.data()) + lines * 64);
  }
  deferred_frees::sums unpublished_deferred() const noexcept { return outs[0].unpublished() + outs[1].unpublished(); }
  observe::change newly_deferred() noexcept;  // deferred since the last call
  // a call that has used up its grant
  [[gnu::noinline]] address publish_and_end(base::bias_word& head, std::uint64_t to, address answer) noexcept;
  template <class Do>
  void each_used(Do act) const {
    for (std::uint32_t w = 0; w < used_.size(); ++w) {
      for (std::uint64_t left = used_[w]; left; left &= left - 1)
        act(w * 64 + static_cast<std::uint32_t>(std::countr_zero(left)));
    }
  }
  void use(std::uint32_t size_class) noexcept;  // for its first use
  void set_sign(std::uint32_t size_class) noexcept;
  enum class met : std::uint8_t { nothing, empty, full };
  void missed(std::uint32_t size_class, met) noexcept;
  void raise_limit(std::uint32_t size_class) noexcept;
  void forget() noexcept;  // clears all counts, for another heap

  // bytes ever: size - requested of what was taken, freed here, deferred
  base::single_writer<std::int64_t> unused_taken_, unused_given_, unused_deferred_;
  bool revoked_ = true, emptied_ = true;
  std::array<std::uint64_t, (size_classes::count + 63) / 64> used_{};  // a bit a size that has been used
  std::array<std::uint8_t, size_classes::count> limits_{};
  std::array<met, size_classes::count> last_{};
  std::array<std::int64_t, size_classes::count> from_slabs_{};  // ever put in from the slabs, less those returned there
  std::size_t granted_ = 0;                                     // bytes: the sum of limits above the first ones
  union {
    std::array<magazine, size_classes::count> magazines_;  // pages of zeros until they are used
  };

 public:
  thread_cache() noexcept {}  // Requires: zeroed memory
};

}  // namespace weir::memory
