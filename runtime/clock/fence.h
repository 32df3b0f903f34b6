// A fence is an event recorded on a stream:
// it makes every stamp taken before it observable. Driver events are pooled.
// Threads: event_pool and pooled_event any; a fence is immutable but for `stale`;
// fence_list belongs to its timeline's lock.
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

// One driver event. Goes back to its pool with the last reference,
// so nobody can re-record it under a call that names it.
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
  // Its native handle was given away: whoever has it may record it,
  // so it is never handed out again and no fence relies on it.
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

// The driver events of one runtime, by device and kind.
// An event that outlives it is an empty shell: its handle is gone.
class event_pool : public std::enable_shared_from_this<event_pool> {
 public:
  event_pool(driver::driver&, int devices);
  driver::result<event_ref> take(int device, driver::event_kind);  // makes a driver call only when the pool is empty
  // one that is not recorded yet; its event orders only, and is its own: whoever has it has the fence
  driver::result<fence_ref> take_fence(int device);
  void close() noexcept;                                           // destroys every driver event, those in use too
  bool closed() const;

 private:
  friend class pooled_event;
  static constexpr int kinds = 4;
  static constexpr std::size_t kept = 1024;  // idle events of a device and kind
  driver::result<driver::event_handle> take_handle(int device, driver::event_kind);
  void give_back(int device, driver::event_kind, driver::event_handle, bool reusable) noexcept;
  struct one_device {
    std::vector<driver::event_handle> idle[kinds];
    std::vector<driver::event_handle> made;    // all that exist
    std::vector<driver::event_handle> doomed;  // to be destroyed by the next take: a destructor makes no driver call
  };
  struct contents {
    std::vector<one_device> devices;
    bool closed = false;
  };
  driver::driver& machine_;
  base::guarded<contents> contents_;
};

struct fence {
  std::uint64_t n = 0;   // covers the stamps (stream, 1..n)
  event_ref event;
  std::shared_ptr<void const> of;  // of somebody's event: its stream's object, see timeline::hold()
  snapshot seen;         // the frontier of the stream as it was before the record
  // recorded for a question or a wait, not with the work it is for:
  // all that was given until then stands before it
  bool asked = false;
  bool captured = false; // recorded inside a capture: it has no number, and only waits inside that capture are about it
  // the event has been, or may have been, recorded again: its answers are not about this fence
  base::atomic<bool> stale{false};
};

// The fences of a stream that are not known to be complete.
// Invariant: ascending and at most `most`; a fence that is left out is covered by a later one of the list.
class fence_list {
 public:
  static constexpr std::size_t most = 64;
  using dropped = std::vector<fence_ref>;  // let go of after the lock: the last reference may take another lock

  // Puts a recorded fence in its place. When there are too many, every other old one goes: O(1) amortized.
  void publish(fence_ref f, dropped&);
  // The oldest that covers n and is not stale: the one that waits for least. Null: none does.
  fence_ref covering(std::uint64_t n, dropped&);
  // Those newer than n, oldest first.
  std::vector<fence_ref> newer_than(std::uint64_t n) const;
  void drop_done(std::uint64_t done, dropped&);
  void clear(dropped&);
  std::deque<fence_ref> const& all() const noexcept { return list_; }

 private:
  std::deque<fence_ref> list_;
};

}  // namespace weir::clock
