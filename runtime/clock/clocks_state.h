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

// Streams that are retired and done, in the order of completion, and apart from them those that something held when
// they were looked at. Those are looked at again after as many calls: a call looks at few of them on average.
class clocks::reusable_streams {
 public:
  void add(stream_clock& t) noexcept { done_.add(t); }
  // One that nothing holds, with `kept_ended` others behind it. Null: there is none
  stream_clock* take() noexcept {
    ++since_held_;
    if (since_held_ > held_.size())
      look_at_held();
    while (done_.size() > kept_ended) {
      stream_clock& t = done_.take_first();
      if (!is_held(t))
        return &t;
      held_.add(t);
    }
    return nullptr;
  }

 private:
  static bool is_held(stream_clock const& t) noexcept { return t.held_.use_count() > 1; }
  void look_at_held() noexcept {
    since_held_ = 0;
    for (std::size_t left = held_.size(); left > 0; --left) {
      stream_clock& t = held_.take_first();
      chain& to = is_held(t) ? held_ : done_;
      to.add(t);
    }
  }

  chain done_, held_;
  std::size_t since_held_ = 0;  // calls
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
  base::guarded<chain> ended;                             // retired, not known to be done; each keeps its last event
  std::vector<base::guarded<reusable_streams>> reusable;  // by device
  base::guarded<reusable_streams>& reusable_on(int device) { return reusable[static_cast<std::size_t>(device)]; }
  struct registration {
    stream_clock* stream = nullptr;
    std::size_t times = 0;  // that the program registered it; of weir's own streams perhaps never
  };
  using registrations = std::map<std::pair<int, driver::stream_handle>, registration>;
  base::guarded<registrations> registered;
  enum class left : std::uint8_t { none, one, last };
  // Ends one registration of that stream. last: the caller finishes the stream, and no other call does
  static left end_one(registrations&, stream_clock&);
  struct open_capture {
    std::vector<stream_clock*> lanes;
    launch_listeners listeners{};
  };
  base::guarded<std::map<std::uint64_t, open_capture>> captures;  // by number
  base::guarded<std::map<int, stream_clock*>> rests;              // by device

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
