// What happened to memory: every block taken and given back, with time, thread, stream and line.
// Off until somebody asks.
// Threads: any.
//
// A thread writes into a log of its own, without a lock. When a log is full, and when somebody reads, all
// logs are gathered: sorted by time into one bounded ring, each end paired with its beginning, sums kept for
// each line of the program. So what is live is known by line even after the ring has forgotten where it
// began.
// Invariant, under the lock: live blocks are those whose beginning was gathered and whose end was not;
// the sums of lines are theirs.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/sync.h"
#include "weir/types.h"

namespace weir::observe {

enum class action : std::uint8_t {
  alloc,
  free,
  out_of_memory,
  map,
  unmap,  // memory held of the driver
  free_pending,
  free_completed,  // a free block that another stream may still use (the event names that one), and when no more
};
inline constexpr int pinned_memory_place = -1;  // in place of a device

struct event {
  std::uint64_t ticks = 0;
  std::uintptr_t at = 0;
  std::uint64_t bytes = 0;     // as asked for; of a free, once it is paired
  std::uint64_t stream = 0;    // the block's home; 0: none
  char const* file = nullptr;  // the caller's line; null: not known
  char const* function = nullptr;
  std::uint32_t line = 0;
  std::uint32_t runtime = 0;
  std::uint32_t stack = 0;     // number of a stack; 0: none was taken
  std::uint32_t thread = 0;
  std::int16_t device = 0;
  action what = action::alloc;
};

struct line_sums {  // of one line of the program, for one device
  char const* file = nullptr;
  char const* function = nullptr;
  std::uint32_t line = 0;
  std::int64_t blocks = 0, bytes = 0;                    // live now
  std::int64_t blocks_at_peak = 0, bytes_at_peak = 0;    // when most bytes of the device were live
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
  static history& process() noexcept;  // never destroyed: threads write into it until the very end
  static bool on() noexcept { return on_.load(base::memory_order_relaxed); }

  void start(std::size_t events, bool stacks);  // what was written before is forgotten
  void stop() noexcept;                         // and stays to be read
  // Requires: of a block that is taken, after it was; of one that goes, before it does:
  // times of one address are then in order.
  void note(action, std::uintptr_t at, std::size_t bytes, std::uint64_t stream, std::uint32_t runtime, int device,
            source_location) noexcept;

  // Of one runtime's device. Each is what all threads had written when it was called.
  std::vector<event> events(std::uint32_t runtime, int device);
  std::vector<line_sums> lines(std::uint32_t runtime, int device);
  std::vector<live_block> live(std::uint32_t runtime, int device);
  struct time_scale {  // of ticks, as they are seen now
    std::uint64_t ticks = 0;
    std::int64_t ns = 0;
    double ns_a_tick = 0;
    std::int64_t operator()(std::uint64_t t) const noexcept {
      return ns + static_cast<std::int64_t>(static_cast<double>(static_cast<std::int64_t>(t - ticks)) * ns_a_tick);
    }
  };
  time_scale scale() const noexcept;                           // to base::now_ns(); one for all that is to be compared
  std::vector<void const*> stack(std::uint32_t number) const;  // return addresses, innermost first
  std::uint64_t forgotten();                                   // events that the ring had no room for any more

 private:
  struct log;    // of one thread
  struct book;   // what was gathered
  history();
  static void turn(bool on) noexcept;
  static log& mine() noexcept;
  void gather();  // Requires: lock_
  std::uint32_t number_of_stack() noexcept;

  inline static constinit base::atomic<bool> on_{false};
  mutable base::mutex lock_;
  std::vector<log*> logs_;
  std::unique_ptr<book> book_;
  base::atomic<bool> stacks_{false};
};

// On the ways that run often: one load and one branch while nobody asks.
inline void note(action what, void const* at, std::size_t bytes, std::uint64_t stream, std::uint64_t runtime,
                 int device, source_location from) noexcept {
  if (history::on()) [[unlikely]]
    history::process().note(what, reinterpret_cast<std::uintptr_t>(at), bytes, stream,
                            static_cast<std::uint32_t>(runtime), device, from);
}

}  // namespace weir::observe
