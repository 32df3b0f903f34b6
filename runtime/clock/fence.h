// An event recorded on a stream, which makes every earlier stamp observable. Driver events are pooled.
// Threads: any for event_pool and pooled_event; fence_list: under its stream clock's lock. A fence is
// immutable except `stale`.
#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "runtime/base/sync.h"
#include "runtime/clock/frontier.h"
#include "runtime/driver/driver.h"

namespace weir::clock {

class event_pool;
struct fence;
using fence_ref = std::shared_ptr<fence>;

// One driver event. It returns to its pool with the last reference: no thread records it during a call on it.
class pooled_event {
 public:
  pooled_event(std::shared_ptr<event_pool> pool, int device, driver::event_kind kind, driver::event_handle h) noexcept
      : pool_(std::move(pool)), device_(device), kind_(kind), handle_(h) {}
  ~pooled_event();
  pooled_event(pooled_event const&) = delete;
  pooled_event& operator=(pooled_event const&) = delete;
  int device() const noexcept { return device_; }
  driver::event_kind kind() const noexcept { return kind_; }
  driver::event_handle handle() const noexcept { return handle_; }
  // The program got its native handle and may record it. So it is never reused, and no fence relies on it.
  void give_away() noexcept { given_away_.store(true); }
  bool given_away() const noexcept { return given_away_.load(); }

 private:
  std::shared_ptr<event_pool> pool_;
  int device_;
  driver::event_kind kind_;
  driver::event_handle handle_;
  base::atomic<bool> given_away_{false};
};
using event_ref = std::shared_ptr<pooled_event>;

// The driver events of one runtime, by device and kind. close() invalidates the pooled events still in use.
class event_pool : public std::enable_shared_from_this<event_pool> {
 public:
  event_pool(driver::driver&, int devices);
  driver::result<event_ref> take(int device, driver::event_kind);  // a driver call only if the pool is empty
  // Returns: a fence not yet recorded, with an order_only event inside the same object.
  driver::result<fence_ref> take_fence(int device);
  void close() noexcept;  // destroys every driver event, also those in use
  bool closed() const;

 private:
  friend class pooled_event;
  static constexpr int kinds = 4;
  static constexpr std::size_t kept = 1024;  // idle events per device and kind
  driver::result<driver::event_handle> take_handle(int device, driver::event_kind);
  // Requires: take_handle() has entered a place for it
  driver::result<driver::event_handle> make_in_place(int device, driver::event_kind);
  void give_back(int device, driver::event_kind, driver::event_handle, bool reusable) noexcept;
  struct one_device {
    std::vector<driver::event_handle> idle[kinds];
    std::vector<driver::event_handle> made;    // all that exist
    std::vector<driver::event_handle> doomed;  // destroyed by the next take: a destructor makes no driver call
  };
  struct contents {
    std::vector<one_device> devices;
    bool closed = false;
  };
  driver::driver& machine_;
  base::guarded<contents> contents_;
};

struct fence {
  std::uint64_t n = 0;  // covers the stamps (stream, 1..n)
  event_ref event;
  std::shared_ptr<void const> of;  // keeps the stream object of a weir::event's fence, see stream_clock::hold()
  snapshot seen;                   // the stream's frontier before the record
  // Recorded for a question or a wait: it covers all work up to that time, not just the work it is for.
  bool asked = false;
  bool captured = false;   // recorded inside a capture, good only for waits in that capture
  std::uint64_t lane = 0;  // captured: the lane that n and seen are of; 0: unknown
  // The event was or may have been recorded again: its answers are not about this fence.
  base::atomic<bool> stale{false};
};

// The fences of a stream that are not known to be complete.
// Invariant: ascending, at most `most`; a later fence in the list covers each one left out.
class fence_list {
 public:
  static constexpr std::size_t most = 64;
  using dropped = std::vector<fence_ref>;  // released after the lock: the last reference may take another lock

  // Inserts a recorded fence. If there are too many, drops every other one of the older half: O(1) amortized.
  void publish(fence_ref f, dropped&);
  // The oldest fence that covers n and is not stale, so that a wait covers the least work. Null: none.
  fence_ref covering(std::uint64_t n, dropped&);
  // Fences after n, oldest first.
  std::vector<fence_ref> newer_than(std::uint64_t n) const;
  void drop_done(std::uint64_t done, dropped&);
  void clear(dropped&) noexcept;
  std::deque<fence_ref> const& all() const noexcept { return list_; }

 private:
  std::deque<fence_ref> list_;
};

}  // namespace weir::clock
