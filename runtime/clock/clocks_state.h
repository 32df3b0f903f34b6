// What the stream clocks of one runtime consist of: streams, registrations, captures, and what has ended.
// Threads: any; each part has a lock.
//
// Invariant: a stream that has ended is in one chain, and in it once.
#pragma once
#include <map>
#include <utility>

#include "runtime/clock/shared_state.h"

namespace weir::clock {

// First in, first out, linked through the objects: retire() may run without host memory.
class clocks::chain {
 public:
  void add(stream_clock& t) noexcept {
    t.after_ = nullptr;
    if (last_)
      last_->after_ = &t;
    else
      first_ = &t;
    last_ = &t;
    ++size_;
  }
  // Requires: not empty.
  stream_clock& take_first() noexcept {
    stream_clock& t = *first_;
    first_ = t.after_;
    if (!first_)
      last_ = nullptr;
    --size_;
    return t;
  }
  std::size_t size() const noexcept { return size_; }

 private:
  stream_clock *first_ = nullptr, *last_ = nullptr;
  std::size_t size_ = 0;
};

struct clocks::state {
  state(weir::runtime::impl& r, std::uint64_t ids_before)
      : runtime(r),
        shared(std::make_shared<stream_clock::common>(r.machine(), r.device_count())),
        before(ids_before),
        reusable(static_cast<std::size_t>(r.device_count())) {}
  weir::runtime::impl& runtime;
  std::shared_ptr<stream_clock::common> shared;
  std::uint64_t const before;  // ids used by other runtimes
  base::guarded<std::vector<std::unique_ptr<stream_clock>>> lines;
  base::atomic<bool> any_ended{false};
  base::guarded<chain> ended;  // retired, not known to be done; each keeps its last event
  // by device: retired and done, in the order of completion
  std::vector<base::guarded<chain>> reusable;
  base::guarded<chain>& reusable_on(int device) { return reusable[static_cast<std::size_t>(device)]; }
  struct registration {
    stream_clock* stream = nullptr;
    std::size_t times = 0;  // that the program registered it; of weir's own streams perhaps never
  };
  using registrations = std::map<std::pair<int, driver::stream_handle>, registration>;
  base::guarded<registrations> registered;
  enum class left : std::uint8_t { none, one, last };
  // Ends one registration of that stream. last: the caller finishes the stream, and no other call does
  static left end_one(registrations&, stream_clock&);
  base::guarded<std::map<std::uint64_t, std::vector<stream_clock*>>> captures;  // lanes, by the capture's number
  base::guarded<std::map<int, stream_clock*>> rests;                            // by device

  // A wait for a device: what it waits for, and who keeps it from one.
  struct awaited {
    stream_clock* stream;
    stream_clock::begun begun;
  };
  std::vector<awaited> begin_on(int device);         // of every stream there. Throws: bad_alloc
  std::vector<stream_clock*> living_on(int device);  // Throws: bad_alloc
  bool is_any_captured(std::span<stream_clock* const>);
  std::vector<stream_clock*> take_lanes(std::uint64_t capture) noexcept;
  // That capture is over: its borrowed streams are no longer seen as captured, unless they are in another one.
  // Requires: captures
  static void note_end(std::span<stream_clock* const> lanes, stream_clock const* in_another = nullptr) noexcept;
  void ask_the_captured() noexcept;  // those that were captured when they were last asked
};

}  // namespace weir::clock
