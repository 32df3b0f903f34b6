// A record of every allocation and free, with time, thread, stream and line. Off by default.
// Threads: any.
//
// Each thread writes into its own log, without a lock. When a log is full, or on reading, all logs are
// gathered: sorted by time into one bounded ring, paired, and summed by line. So live blocks are known by
// line even after the ring has dropped their beginning.
// Invariant, under the lock: a live block has a gathered beginning and no gathered end; sums of lines match.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/base/sync.h"
#include "weir/types.h"

namespace weir::observe {

enum class action : std::uint8_t {
  alloc,
  free,
  out_of_memory,
  map,
  unmap,  // memory held from the driver
  free_pending,
  free_completed,  // a freed block that another stream (named by the event) may still use, and the end of that
};
inline constexpr int pinned_memory_place = -1;  // instead of a device

struct event {
  std::uint64_t ticks = 0;
  std::uintptr_t at = 0;
  std::uint64_t bytes = 0;     // requested
  std::uint64_t stream = 0;    // the block's home; 0: none
  char const* file = nullptr;  // the caller's line; null: not known
  char const* function = nullptr;
  std::uint32_t line = 0;
  std::uint32_t runtime = 0;
  std::uint32_t stack = 0;  // number of a stack; 0: none was recorded
  std::uint32_t thread = 0;
  std::int16_t device = 0;
  action what = action::alloc;
};

struct line_sums {  // of one line of the program and one device
  char const* file = nullptr;
  char const* function = nullptr;
  std::uint32_t line = 0;
  std::int64_t blocks = 0, bytes = 0;                  // live now
  std::int64_t blocks_at_peak = 0, bytes_at_peak = 0;  // when the device's live bytes were at their peak
  std::int64_t total_blocks = 0, total_bytes = 0, given_blocks = 0, given_bytes = 0;
};
struct live_block {
  std::uintptr_t at = 0;
  std::uint64_t bytes = 0, ticks = 0, stream = 0;
  std::uint32_t thread = 0, stack = 0;
  source_location from{nullptr, nullptr, 0};
};

class history {
 public:
  // Never destroyed: threads write into it until the process ends. Throws: bad_alloc, at the process's first call
  static history& process();
  static bool on() noexcept { return on_.load(base::memory_order_relaxed); }

  void start(std::size_t events, bool stacks);         // clears earlier events
  void start_if_off(std::size_t events, bool stacks);  // no effect while it is on
  void stop() noexcept;                                // events stay readable
  // Requires: called after an allocation and before a free, so that the times of one address are in order.
  void note(action, std::uintptr_t at, std::size_t bytes, std::uint64_t stream, std::uint32_t runtime, int device,
            source_location) noexcept;

  // This thread's last event, a free of that address, did not happen. No effect if a reader has seen it.
  void take_back(std::uintptr_t at) noexcept;

  // Of one runtime's device: all that threads had written when it was called.
  std::vector<event> events(std::uint32_t runtime, int device);
  std::vector<line_sums> lines(std::uint32_t runtime, int device);
  std::vector<live_block> live(std::uint32_t runtime, int device);
  struct time_scale {  // converts ticks, calibrated now
    std::uint64_t ticks = 0;
    std::int64_t ns = 0;
    double ns_a_tick = 0;
    std::int64_t operator()(std::uint64_t t) const noexcept {
      return ns + static_cast<std::int64_t>(static_cast<double>(static_cast<std::int64_t>(t - ticks)) * ns_a_tick);
    }
  };
  time_scale scale() const noexcept;                           // to base::now_ns(); use one for all compared times
  std::vector<void const*> stack(std::uint32_t number) const;  // return addresses, innermost first
  std::uint64_t forgotten();                                   // events dropped from the ring

 private:
  struct log;   // of one thread
  struct book;  // the gathered events
  history();
  void start_afresh(std::size_t events, bool stacks);  // Requires: lock_
  static void turn(bool on) noexcept;                  // Requires: lock_, so that turns alternate
  static log& mine();                                  // Throws: bad_alloc, at the thread's first event
  void gather();                                       // Requires: lock_
  std::uint32_t number_of_stack();                     // Throws: bad_alloc

  inline static constinit base::atomic<bool> on_{false};
  mutable base::mutex lock_;
  std::vector<log*> logs_;
  std::unique_ptr<book> book_;
  base::atomic<bool> stacks_{false};
};

// For fast paths: one load and one branch while the history is off.
inline void note(action what, void const* at, std::size_t bytes, std::uint64_t stream, std::uint64_t runtime,
                 int device, source_location from) noexcept {
  if (history::on()) [[unlikely]]
    history::process().note(what, reinterpret_cast<std::uintptr_t>(at), bytes, stream,
                            static_cast<std::uint32_t>(runtime), device, from);
}

}  // namespace weir::observe
