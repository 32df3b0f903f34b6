// Work of the simulated machine: operations in streams, events, gates.
// Threads: under the machine's lock, except the bytes and user work of a running operation.
//
// Host memory that work needs is taken before it is enqueued: a stream moves without any.
#pragma once
#include <algorithm>
#include <boost/intrusive/list.hpp>
#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/call_site.h"
#include "runtime/base/room.h"
#include "simulator/machine/callers.h"
#include "simulator/machine/freedoms.h"
#include "simulator/machine/memory.h"
#include "simulator/threads/thread_scheduler.h"

namespace weir::driver::sim {

struct stream;
struct capture;
struct words;

struct event {
  int device = 0;
  event_kind kind{};
  std::shared_ptr<stream> on;  // of the last record; null: never recorded
  std::uint64_t position = 0;  // complete when on->done >= position
  std::int64_t at_ns = 0;      // timing kinds: the time of the record
  // set if the last record was in this capture: after `position` steps of `lane`; then `on` is null
  std::shared_ptr<sim::capture> captured{};
  std::size_t lane = 0;
  bool timed() const noexcept { return kind == event_kind::timing || kind == event_kind::timing_blocking_sync; }
  bool complete() const noexcept;
};

struct gate {
  int device = 0;
  bool open = false;
  std::weak_ptr<stream> held;
  std::uint64_t number = 0;
};

struct operation {
  enum class kind : std::uint8_t { work, host, copy, fill, record, wait, gate };
  enum class phase : std::uint8_t { queued, running, written };  // written: completion is not visible yet

  kind what{};
  phase at = phase::queued;
  std::uint8_t pattern_bytes = 0;
  std::int8_t dst_device = 0, src_device = 0;  // of a copy: the device that must reach each side
  std::uint32_t pattern = 0;
  void* dst = nullptr;
  void const* src = nullptr;
  std::size_t bytes = 0;
  work job{};
  std::vector<touch> touches{};
  std::shared_ptr<void> other{};   // wait: the stream; record: the timing event; gate: the gate
  std::uint64_t position = 0;      // wait: the awaited position; record: the event's
  std::uint64_t turn = 0;          // the order of enqueue, over all streams
  std::uint64_t blocks_ended = 0;  // number of blocks freed before the enqueue
  base::site site{};               // wait: the program's source line, with a checker
  std::vector<use> reached{};      // its uses, for the worker that runs it: make_room() has made the room

  stream& awaited() const noexcept { return *static_cast<stream*>(other.get()); }
  gate& held() const noexcept { return *static_cast<gate*>(other.get()); }
  void uses(int device, std::vector<use>& into) const;  // allocates nothing in `reached` after make_room()
  void make_room() { reached.reserve(std::max<std::size_t>(2, touches.size() + 1)); }
  void run() noexcept;   // copies, fills or runs the work. Requires: its uses were begun
  void drop() noexcept;  // drops its work, if still there
};

using operations = std::list<operation>;  // one that is appended moves no other, and needs no memory

// Lists of objects that others own: an entry needs no memory, and leaves its lists when it is destroyed.
template <class List>
using listed = boost::intrusive::list_base_hook<boost::intrusive::tag<List>,
                                                boost::intrusive::link_mode<boost::intrusive::auto_unlink>>;
template <class T, class List>
using list_of =
    boost::intrusive::list<T, boost::intrusive::base_hook<listed<List>>, boost::intrusive::constant_time_size<false>>;

struct host_waiter : listed<host_waiter> {
  explicit host_waiter(std::uint64_t p) : position(p) {}
  std::uint64_t position;
  base::condition wake{};
};

// The lists that a stream may be in, once each.
struct to_settle;       // it may proceed now
struct before_unready;  // its front is work that is not ready
struct of_engine;       // its front will be run next
struct followers;       // its front waits for another stream

// A queue of operations; the front is next. Invariants: given = done + queue.size(); one in a list is among the live.
struct stream : std::enable_shared_from_this<stream>,
                listed<to_settle>,
                listed<before_unready>,
                listed<of_engine>,
                listed<followers> {
  int device = 0;
  int priority = 0;
  stream_kind kind{};
  std::uint64_t id = 0;
  std::uint64_t number = 0;  // in reports; 0: its id
  // a lane of a graph: the stream of the launch. id 0: not a lane
  struct launched {
    std::uint64_t id = 0;
    int device = 0;
  } from{};
  std::uint64_t given = 0, done = 0;
  operations queue{};
  bool busy = false;  // a worker has the front, or will take it
  bool destroyed = false;
  bool permanent = false;         // the legacy stream, or a thread's
  std::shared_ptr<capture> in{};  // the capture that records its work
  std::size_t lane = 0;           // in that capture's graph
  // legacy order: number of operations of the legacy stream that this blocking stream follows, and vice versa
  std::uint64_t saw_legacy = 0, legacy_saw = 0;
  static constexpr std::uint32_t alone = ~0u;
  std::uint32_t connection = 0;     // the shared connection, if any
  std::uint32_t rank = 0;           // for ranked schedules
  mutable std::uint64_t asked = 0;  // the last question of hopeless() that came here
  list_of<stream, followers> followed_by{};
  std::uint64_t follows_until = 0;  // in `followed_by` of another: that one's position
  list_of<host_waiter, host_waiter> hosts{};

  template <class List>
  bool is_in() const noexcept {
    return static_cast<listed<List> const&>(*this).is_linked();
  }
  template <class List>
  void leave() noexcept {
    static_cast<listed<List>&>(*this).unlink();
  }
};

template <class List>
void add(list_of<stream, List>& all, stream& s) noexcept {
  if (!s.is_in<List>())
    all.push_back(s);
}
template <class List>
std::shared_ptr<stream> take_from(stream& s) noexcept {
  s.leave<List>();
  return s.shared_from_this();
}

inline bool event::complete() const noexcept {
  return !on || on->done >= position;
}

// Objects by handle: index + 1, with the slot's generation in the high bits unless handles are reused at
// once.
template <class T>
class handle_table {
 public:
  enum class reuse : std::uint8_t { told_apart, at_once };
  explicit handle_table(reuse r) : reuse_(r) {}
  std::uint64_t add(std::shared_ptr<T> what) {
    std::uint32_t index;
    if (free_.empty()) {
      index = static_cast<std::uint32_t>(all_.size());
      base::make_room(free_, all_.size() + 1);
      all_.emplace_back();
    } else {
      index = free_.back();
      free_.pop_back();
      if (reuse_ == reuse::at_once)
        ++came_back_;
    }
    all_[index].what = std::move(what);
    return handle(index);
  }
  std::shared_ptr<T> const& find(std::uint64_t h) const {
    static std::shared_ptr<T> const none;
    auto const index = static_cast<std::uint32_t>(h) - 1;
    return index < all_.size() && handle(index) == h ? all_[index].what : none;
  }
  void remove(std::uint64_t h) {
    auto const index = static_cast<std::uint32_t>(h) - 1;
    all_[index].what.reset();
    ++all_[index].turn;
    free_.push_back(index);  // there is room
  }
  std::uint64_t came_back() const noexcept { return came_back_; }  // number of reused handles
  template <class F>
  void each(F visit) const {
    for (std::uint32_t i = 0; i < all_.size(); ++i)
      if (all_[i].what)
        visit(handle(i), *all_[i].what);
  }

 private:
  struct slot {
    std::shared_ptr<T> what;
    std::uint32_t turn = 0;
  };
  std::uint64_t handle(std::uint32_t index) const {
    return (reuse_ == reuse::at_once ? 0 : static_cast<std::uint64_t>(all_[index].turn) << 32) | (index + 1);
  }
  reuse reuse_;
  std::uint64_t came_back_ = 0;
  std::vector<slot> all_;
  std::vector<std::uint32_t> free_;
};

// The state under the machine's lock, and the steps that all schedules share.
class queues {
 public:
  queues(int devices, freedoms&, memory&);

  mutable base::mutex mutex{base::quiet};
  std::vector<base::atomic<std::size_t>> uploading;  // bytes of each device's room that are taken; outlives all work
  handle_table<stream> streams;
  handle_table<event> events;
  handle_table<gate> gates;
  struct device_state {
    bool open = false, lost = false;
    bool failing = false;  // its work has failed and nothing runs; not reported yet
    int closed_gates = 0;
    std::vector<std::shared_ptr<stream>> live;  // streams with a handle or with work
  };
  std::vector<device_state> devices;
  auto live() const { return devices | std::views::transform(&device_state::live) | std::views::join; }  // of all
  memory& bytes;
  freedoms& takes;
  std::uint32_t connections = 0;       // per device, shared by its streams; 0: one per stream
  std::uint32_t calls_to_failure = 0;  // until failing devices are lost
  std::uint64_t next_stream = 1, next_gate = 1, next_turn = 1;
  bool any_lost = false;
  operations dropped;                       // their work is to be dropped after the lock is released
  std::function<std::int64_t()> clock;      // in ns, for timing events
  std::function<void(stream&)> abandon;     // called when a walk will never finish its half-done front
  base::thread_scheduler* hosts = nullptr;  // the host threads, if the machine schedules them
  std::function<bool()> spreads;            // does a fault of work lose the other devices? Empty: never

  void give(stream&, operations&&) noexcept;  // all, to the end of its queue
  // Streams on one connection begin their work in the order of enqueue. Returns: the stream whose work must
  // begin before this one's front, or null. None share while a gate holds one: gate tests must not depend on
  // connections.
  stream* ahead_of(stream const&) const;

  // Completes the front. `freed` gets the streams whose front waited for it.
  void retire(stream&, list_of<stream, to_settle>& freed);
  // A sticky error: nothing on the device runs any more. A busy stream's front stays with its worker.
  void lose(int device);
  // The same, caused by work: other open devices may be lost too, and all may surface some calls later (F5).
  void fault(int device);
  void surface();  // failing devices are lost now
  // changes bytes that it carried over corrupt links. Requires: it ran
  void distort(operation const&, std::span<use const>);
  void call_on(int device);    // counts a call that names the device: the failure may surface
  void forget_queue(stream&);  // moves its work to `dropped`; a busy stream keeps its front
  void unlock_and_drop(base::unique_lock&);
  void forget_if_finished(stream&);  // removes a destroyed stream without work from `live`
  // Returns whether `position` of s is unreachable because it waits for a lost device.
  bool hopeless(stream const& s, std::uint64_t position) const;
  // The reason why s does not move, followed to its end, as text.
  std::string why_not(stream const& s) const;
  // A host waits for a stream: lets other host threads run. Releases the lock. false: none can run.
  bool wait_for_hosts(base::unique_lock&, stream const&);
  bool has_hosts() const noexcept { return hosts && hosts->active(); }
  // The same where the system schedules the host threads: waits until another one moves something. Releases the lock.
  // false: all threads that have called the machine wait and no other one comes in time, or none moves anything.
  static constexpr std::chrono::seconds for_a_first_call{10}, for_a_move{30};
  bool wait_for_callers(base::unique_lock&);
  std::optional<callers> who_calls;  // none: this machine does not count them
  void wake_hosts() const;           // that wait for a stream
  void tell_hosts() {
    ++moves_;
    if (waiting_hosts_ + waiting_callers_ > 0)
      moved_.notify_all();
    waiting_callers_ = 0;
  }
  void note_finding(std::string) const;
  std::vector<std::string> findings() const;
  std::string why_stuck() const;  // the last finding, if it is a circle
  void census(std::vector<std::string>&) const;

 private:
  bool hopeless_in(stream const&, std::uint64_t position) const;
  stream const* why_not_ready(operation const&, std::string& text) const;
  stream const* stream_with_awaited(operation const& waits, words const&, work& found) const;  // null: none
  mutable std::uint64_t questions_ = 0;                                                        // of hopeless()
  base::guarded<std::vector<std::string>> findings_;
  base::condition moved_;
  int waiting_hosts_ = 0;    // for moved_
  int waiting_callers_ = 0;  // likewise, since the last move
  std::uint64_t moves_ = 0, given_up_ = 0;
};

void drop_all(operations&) noexcept;
operation wait_for(stream&, std::uint64_t position);

}  // namespace weir::driver::sim
