// What all objects of one device's memory share: its driver, clocks, addresses, counters and options.
// Threads: any. The members synchronise themselves.
#pragma once
#include <cstddef>
#include <cstdint>

#include "runtime/base/call_site.h"
#include "runtime/clock/stream_clock.h"
#include "runtime/core/parts.h"
#include "runtime/memory/blocks/block_ref.h"
#include "runtime/memory/space/address_space.h"
#include "runtime/observe/device_counters.h"
#include "runtime/observe/history.h"

namespace weir::memory {

class allocator;

struct device_context {
  // entry: the owner of the objects; null in tests of one of them.
  // Throws: driver_error, if the device or its address space cannot be opened
  device_context(weir::runtime::impl&, int device, allocator* entry, source_location const&);

  bool lost() const noexcept { return clocks.lost(device); }
  std::uint64_t own_bit() const noexcept { return std::uint64_t{1} << (device & 63); }
  // bytes of a handle that other devices may use
  std::size_t open_bytes(handle const& h) const noexcept { return !h.asleep && (h.readers & ~own_bit()) ? h.bytes : 0; }
  // Whether all work before `s` is complete, or ordered before the next work of `by`.
  bool ordered_or_complete(clock::stream_clock& by, clock::stamp s) const { return clocks.complete(s) || by.covers(s); }
  // As above. since: raised to the present number of `by` if only `by` may rely on it
  bool ordered_or_complete(clock::stream_clock& by, clock::stamp s, std::uint64_t& since) const {
    if (clocks.complete(s))
      return true;
    if (!by.covers(s))
      return false;
    since = by.now().n;
    return true;
  }
  // Whether the host waits for work first, so that what is complete decides nothing. Not while ranks may wait for it
  bool waits_for_all() const { return deterministic && clocks.collectives_given().empty(); }
  bool is_complete(clock::stamp);                                          // asks the driver if unknown
  void note_status(driver::status s) noexcept { clocks.note(device, s); }  // of a call on this device alone
  void count_search(std::size_t n) noexcept { searched.fetch_add(n, base::memory_order_relaxed); }
  // How much of `bytes` may be taken from the device so that driver_reserve stays free there, in pages. Asks the
  // driver when half of what was free at the last answer is used up: others take memory, too.
  std::size_t may_take(std::size_t bytes);
  // Whether weir has reserved nearly all of the device, or the driver had no memory when it was last asked for some.
  // Without a driver_reserve one refusal stays known: nothing asks later.
  bool is_nearly_full() const;
  void note_full() noexcept { found_full_.store(true, base::memory_order_relaxed); }
  // For the history: a block became pending, or is pending no more.
  void record_pending(observe::action, address, std::size_t bytes, std::uint64_t user) const noexcept;
  // Throws: invalid_use, naming what lies at the address instead
  region* must_find(void const*, char const* operation, source_location) const;
  // Requires: the heap's lock
  block_ref must_locate(void const*, region*, char const* operation, source_location) const;

  weir::runtime::impl& runtime;
  driver::driver& machine;
  clock::clocks& clocks;
  int const device;
  allocator* const entry;
  bool const announced;  // options::nvtx_memory
  address_space space;
  double const epsilon, widest_epsilon;  // options
  bool const polls;                      // options::poll_on_miss
  bool const deterministic;
  options::wait_policy const waits;
  std::size_t const fence_interval;         // bytes; 0: as stream_heap::fence_after() says
  std::size_t const streams_with_pages;     // options::streams_with_pages
  std::size_t driver_reserve = 0;           // bytes; set once
  base::guarded<std::size_t> unasked;       // bytes that may be taken before the driver is asked, which holds this lock
  base::atomic<std::uint64_t> searched{0};  // blocks and streams examined for reuse, without those found
  observe::device_counters counts;

 private:
  base::atomic<bool> found_full_{false};
};

}  // namespace weir::memory
