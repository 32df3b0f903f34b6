// A thread's deferred frees: slots of one heap, freed as used on one or two other streams, to become pending together.
// Threads: as thread_cache.h, which it is a part of; a function that needs the heap's lock says so.
//
// Invariant: every slot in it was freed when each of its users stood at its one stamp, so all wait for exactly what
// each alone would wait for. Such a slot is in no cache, its state is `cached`, and it counts as pending.
#pragma once
#include "runtime/memory/blocks/pending_queue.h"

namespace weir::memory {

class deferred_frees {
 public:
  static constexpr std::uint32_t most_slots = 64;
  static constexpr std::uint8_t first_limit = 4;  // slots, until it is found full
  static constexpr std::int64_t most_bytes = 128 << 10;
  static_assert(most_slots <= pending_queue::most_together);
  struct users {  // two different streams, or one
    clock::stream_clock const* one = nullptr;
    clock::stream_clock const* other = nullptr;
  };
  static_assert(sizeof(users) / sizeof(clock::stream_clock const*) == pending_queue::most_awaited);

  // Owner only. False: nothing has changed. The slot also waits for all work so far of `home`, the heap's
  // stream. unused: is raised by the slot's bytes that were not requested.
  // Requires: `was` is the state of that slot, live and without a note.
  [[gnu::always_inline]] bool put(users by, slab& from, std::uint32_t index, slot_byte& state, std::uint8_t was,
                                  base::single_writer<std::int64_t>& unused, clock::stream_clock const* home) noexcept {
    std::uint64_t const head = head_.begin();
    std::uint64_t const n = head & count_bits;
    // Full or shut; of other streams, or of a later stamp; perhaps captured; too many bytes.
    if (n >= most_.load(base::memory_order_relaxed) || !is_at_stamps(by) || held_bytes() + from.size > most_bytes)
        [[unlikely]] {
      head_.end(head);
      return false;
    }
    bytes_.add(from.size);
    if (was != slot_bits::exact)
      unused.add(slab::unused_of(state, was, from.size));
    state.set(static_cast<std::uint8_t>(slot::cached));
    slots_[n] = {&from, index};
    since_ = home->now().n;
    head_.end(head + one_given + 1);
    return true;
  }

  // Owner only, with the heap's lock.
  void open() noexcept;
  bool is_for(std::span<clock::stamp const> its) const noexcept { return std::ranges::equal(its, stamps()); }
  // From now on takes slots that these used up to their stamps, in this order. Requires: empty, open.
  // Throws: bad_alloc; it takes none then
  void gather(users by, std::span<clock::stamp const> its, bool was_full);

  // Any thread, with the heap's lock.
  void set_revoked() noexcept { most_.store(0, base::memory_order_relaxed); }
  void wait_for_end() const noexcept { head_.wait_for_end(); }
  std::uint32_t count() const noexcept { return taken_ ? 0 : static_cast<std::uint32_t>(head_.get() & count_bits); }
  // Requires: shut, or the owner's call
  std::span<slabs::taken const> slots() const noexcept { return {slots_.data(), count()}; }
  // of its users, which its slots wait for
  std::span<clock::stamp const> stamps() const noexcept { return {stamps_.data(), stamps_of(users_)}; }
  // the home's number at the last free. Requires: as slots(), not empty
  std::uint64_t since() const noexcept { return since_; }
  pending_queue::spare_node& spare() noexcept { return spare_; }
  void set_taken() noexcept {  // slots() are pending now. Requires: as slots()
    gone_bytes_ = bytes_.get();
    published_here_ = {};
    taken_ = true;
  }
  std::int64_t held_bytes() const noexcept { return bytes_.get() - gone_bytes_; }
  // Slots put in with the lock are counted by the heap's counters, as freed and as pending; the others here.
  struct sums {
    std::int64_t slots = 0, bytes = 0;
    friend sums operator+(sums a, sums b) noexcept { return {a.slots + b.slots, a.bytes + b.bytes}; }
  };
  void note_published(std::int64_t bytes) noexcept {
    ++published_.slots, published_.bytes += bytes, ++published_here_.slots, published_here_.bytes += bytes;
  }
  sums unpublished() const noexcept {  // since forget()
    return {static_cast<std::int64_t>(head_.get() / one_given) - published_.slots, bytes_.get() - published_.bytes};
  }
  sums unpublished_here() const noexcept {
    return {static_cast<std::int64_t>(count()) - published_here_.slots, held_bytes() - published_here_.bytes};
  }
  void end() noexcept {  // releases its host memory. Requires: shut, empty
    users_ = {};
    spare_ = {};
  }
  void forget() noexcept;  // clears all counts, for another heap. Requires: shut, empty

 private:
  static constexpr std::uint64_t count_bits = 0x7f, one_given = 0x100;
  static std::size_t stamps_of(users by) noexcept { return std::size_t{by.one != nullptr} + (by.other != nullptr); }
  // Requires: the same number of users
  bool is_at_stamps(users by) const noexcept {
    auto const is_at = [](clock::stream_clock const* user, clock::stream_clock const* its, clock::stamp s) {
      return user == its && user->now().n == s.n && !user->seen_captured();
    };
    if (!by.other) [[likely]]
      return is_at(by.one, users_.one, stamps_[0]);
    if (by.one != users_.one)
      std::swap(by.one, by.other);
    return is_at(by.one, users_.one, stamps_[0]) && is_at(by.other, users_.other, stamps_[1]);
  }
  base::bias_word head_;                          // its count of slots, and from bit 8 on how many were ever put in
  sums published_;                                // put in with the lock: ever
  base::atomic<std::uint8_t> most_{0};            // the sign: a put needs fewer slots than this
  std::uint8_t limit_ = first_limit;              // `most_` while it is open
  bool taken_ = false;                            // slots() are gone: the owner sets the count to 0 when it opens
  users users_;                                   // none: takes none
  std::array<clock::stamp, 2> stamps_{};          // of these
  std::uint64_t since_ = 0;                       // the home's number at the last put
  base::single_writer<std::int64_t> bytes_;       // ever put in
  std::int64_t gone_bytes_ = 0;                   // of these, gone; written with the lock and the owner kept out
  sums published_here_;                           // put in with the lock, and still here
  pending_queue::spare_node spare_;               // so that its slots can always become pending
  std::array<slabs::taken, most_slots> slots_{};  // the first count() of them
};

}  // namespace weir::memory
