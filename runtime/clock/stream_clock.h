// A timeline is one stream seen by the clocks: its stamps, its fences and its frontier.
// Threads: any. Reading a stamp and asking for completion are wait-free; everything else takes this
// timeline's lock for a moment, never two timelines' at once, and never over a driver call.
//
// A fence k of stream s is an event recorded on s; fences count 1, 2, 3, … A stamp (s, n) taken when n - 1
// fences had been begun is covered by every fence k >= n: all work given to s before the stamp was read is
// before that fence. What must hold, in the words of validate() and of the tests:
//   1. a record increments next before the driver call
//   2. a waiter merges only after the driver's wait returned
//   3. a fence carries the frontier as it was before its record
//   4. done only grows and names fences that were begun
//   5. completion is transitive: a complete fence completes all that it was ordered after
// The frontier of s: frontier[t] >= n only if everything stamped (t, n) is ordered before whatever s is given
// next. A fence whose record the driver refused is a number that is never used: stamps up to it are covered
// by the next fence. A stream under capture is neither polled nor recorded by weir itself, and no fence comes
// of what somebody records inside: calls that would answer not_permitted, without a driver call that could
// spoil the capture. What was known to be ordered before the stream's next work is not ordered before a graph
// that may be launched anywhere: only completion counts there.
#pragma once
#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/sync.h"
#include "runtime/clock/fence.h"
#include "runtime/core/parts.h"
#include "runtime/driver/driver.h"

namespace weir::clock {

struct stamp {
  std::uint64_t stream = 0;  // id of a timeline; 0: no stream, always complete and ordered before everything
  std::uint64_t n = 0;
  friend bool operator==(stamp const&, stamp const&) = default;
};

enum class life : std::uint8_t {
  own,      // weir's: fenced lazily
  foreign,  // somebody's, while registered: fenced eagerly when memory is freed on it
  retired,  // its registration has ended: no driver call is made on it any more
};

// A tenure in one word: whether a registration has ended, an id, a count of leases and a device.
struct tenure_word {
  static constexpr std::uint64_t ended = std::uint64_t{1} << 63, one_lease = 1 << 6,
                                 leases = ((1 << 17) - 1) * one_lease;
  static constexpr std::uint64_t make(std::uint64_t id, int device) noexcept {
    return (id << 23 & ~ended) | static_cast<std::uint64_t>(device & 63);
  }
  static constexpr std::uint64_t next(std::uint64_t t) noexcept { return (t & ~leases) | ((t + one_lease) & leases); }
  static constexpr std::uint64_t id(std::uint64_t t) noexcept { return (t & ~ended) >> 23; }
  static constexpr int device(std::uint64_t t) noexcept { return static_cast<int>(t & 63); }
};

class stream_clock;
class clocks;
stream_clock* find(std::uint64_t id) noexcept;

class alignas(64) stream_clock final {  // a free without a lock reads `next_`: no other stream's words share its line
 public:
  std::uint64_t id() const noexcept { return id_.get(); }  // process-wide, never 0, never reused
  int device() const noexcept { return device_; }
  driver::stream_handle handle() const noexcept { return handle_.get(); }
  weir::runtime::impl& owner() const noexcept { return runtime_; }
  life alive() const noexcept { return life_.load(base::memory_order_acquire); }
  // Who may use the stream now: its id, its device and how often it was given back.
  // A handle keeps the tenure of its making.
  std::uint64_t tenure() const noexcept { return tenure_.load(base::memory_order_acquire); }
  // Threads: one, who gives it back
  void end_tenure() noexcept { tenure_.store(tenure_word::next(tenure()), base::memory_order_release); }

  // All work given to this stream up to here. No driver call. Ensures:
  // read after whatever the caller did before (acquire).
  stamp now() const noexcept { return {id(), next_.load(base::memory_order_acquire)}; }
  // Its registration has ended and all its work is complete: what is noted of it says nothing any more.
  bool is_over() const noexcept {
    return alive() == life::retired && is_complete_up_to(last_.load(base::memory_order_acquire));
  }
  // While a copy of this is held the object of an ended registration is no other one's.
  // Null for weir's own streams, which never end.
  std::shared_ptr<void const> hold() const noexcept { return held_; }
  // Records a fence: makes every stamp taken so far observable. One event record.
  driver::result<stamp> fence();
  // The same with somebody's event (weir::event), which that somebody may record again: `before` is the fence
  // of its last record, or null; it is stale from the moment this is called, and when the driver refuses it
  // is as it was. Inside a capture the fence is a captured one, good for wait() alone, and has another event
  // where others may still ask about this one: go on with its.
  driver::result<fence_ref> record(event_ref const&, fence_ref const& before = nullptr);

  // Is this stream captured now? One driver call. seen:
  // as it was when last asked, which every record and wait does; no driver call.
  driver::result<bool> captured() const;
  bool seen_captured() const noexcept { return seen_captured_.load(base::memory_order_relaxed); }
  // All that `from` was given inside its capture comes before what this is given from now on;
  // so this is captured with it.
  // not_permitted: `from` is not captured.
  driver::status join(stream_clock& from);

  // Is everything stamped `s` ordered before whatever this stream is given next?
  // From knowledge alone: no driver call.
  bool covers(stamp s) const;
  // The same for who has many stamps of one stream to judge:
  // (of, n) is covered or complete for every n up to this one.
  std::uint64_t covers_up_to(stream_clock const& of) const;
  // The oldest recorded fence that covers the stamp (this, n), which a wait for it would be for; 0: it would
  // have to record one. No driver call.
  std::uint64_t fence_covering(std::uint64_t n);
  void rely_on(stream_clock const* other) const;  // covers() was asked on behalf of the program, and that was enough
  void know_complete() const;                 // the same of this stream's completion
  // Makes it so: nothing when covered, else (a fence on s.stream if none covers s yet, and)
  // one device wait. Merges s.stream's frontier.
  // Answers: lost when the work will never run, invalid for a stream of another runtime or a retired one.
  // Says whether the fence was recorded only for a question, or this wait:
  // all that s.stream had been given by then is waited for.
  driver::status wait(stamp s, bool* behind_all = nullptr);
  // The same through the fence of somebody's event, as record() answered it. not_ready: the event was
  // recorded again meanwhile, by another thread.
  // An event whose native handle was given away is waited for, and nothing is concluded.
  driver::status wait(fence_ref const&, stream_clock& recorded_on);

  // Remembers the device as lost when that says so. Returns: the same. Requires: the answer of a call that
  // concerns this stream's device alone.
  driver::status note(driver::status) const noexcept;

  driver::result<bool> query();      // is all work given so far complete? One driver call
  driver::status synchronize();      // Blocks: until it is

  // A stream that carries work which waits for other ranks (collectives):
  // weir never inserts a wait of its own between two such streams.
  void set_carries_collectives(bool yes) noexcept { carries_collectives_.store(yes, base::memory_order_release); }
  bool carries_collectives() const noexcept { return carries_collectives_.load(base::memory_order_acquire); }
  void count_collective() noexcept { collectives_.fetch_add(1); }  // about to be given one
  std::uint64_t collectives() const noexcept { return collectives_.load(); }

 private:
  friend class clocks;
  struct common;  // what the timelines of one runtime share
  stream_clock(std::uint64_t id, int device, driver::stream_handle h, life l, weir::runtime::impl& r,
           std::shared_ptr<common> c)
      : id_(id),
        device_(device),
        handle_(h),
        runtime_(r),
        common_(std::move(c)),
        held_(l == life::foreign ? std::make_shared<char>() : nullptr),
        tenure_(tenure_word::make(id, device)),
        life_(l) {}

  struct begun {  // a number taken for a fence, and the frontier as it was then
    std::uint64_t n = 0;
    snapshot seen;
  };
  begun begin();
  bool knows(stamp s) const;                          // covers(), the part under the lock
  snapshot knowledge() const;                         // the frontier of now
  bool is_complete_up_to(std::uint64_t n) const noexcept;        // is (this, n) known to be complete?
  std::uint64_t last_wanted(std::uint64_t n) const noexcept;  // a retired stream has no stamp beyond its last fence
  driver::status open_for_work() const;               // it has not ended, its device is not lost
  driver::result<fence_ref> record_inside(event_ref const&, fence_ref const& before);
  driver::status record_outside(clock::fence&, fence_ref const& before);
  driver::status wait_inside(driver::event_handle, stream_clock& from);
  driver::status usable() const;  // open for work and not captured: may a record or a wait be given to this stream?
  driver::result<fence_ref> fence_for(std::uint64_t n);  // one that covers n; records it when there is none
  driver::result<fence_ref> record_fence(bool asked);
  void publish(fence_ref const&);                     // now others find it
  // whether it is covered or not. Requires: one runtime, not a captured fence
  driver::status wait_for(fence_ref const&, stream_clock& recorded_on);
  // a question about its event was answered so: is it worth nothing?
  static bool in_vain(clock::fence&, driver::status answer);
  void merge(stream_clock const& from, clock::fence const&);
  void observe(std::uint64_t n, snapshot const&);     // a fence n with that frontier was seen complete
  // is this fence complete? One driver call. not_ready: the fence went stale meanwhile
  driver::result<bool> ask(fence_ref const&);
  driver::result<bool> poll(std::uint64_t n);
  driver::status synchronize(std::uint64_t n);
  std::vector<std::string> validate() const;

  // The two that change when the object of a registration that is over becomes the next one's.
  // Its numbers go on from where they were.
  base::single_writer<std::uint64_t> id_;
  int const device_;
  base::single_writer<driver::stream_handle> handle_;
  weir::runtime::impl& runtime_;
  std::shared_ptr<common> const common_;
  std::shared_ptr<void const> const held_;
  base::atomic<std::uint64_t> next_{1};  // number of the next fence
  base::atomic<std::uint64_t> done_{0};  // the stamps (id, 1..done) are complete
  base::atomic<std::uint64_t> tenure_;
  base::atomic<life> life_;
  base::atomic<std::uint64_t> last_{0};  // retired: the number of the last fence
  base::atomic<bool> carries_collectives_{false};
  base::atomic<std::uint64_t> collectives_{0};  // given so far
  void note_captured(bool yes) const noexcept {  // nobody takes memory on a captured stream the short way
    seen_captured_.store(yes, base::memory_order_relaxed);
    invalidate_fast_paths();
  }

  mutable base::atomic<bool> seen_captured_{false};
  mutable base::mutex lock_;
  snapshot frontier_;        // under lock_
  fence_list fences_;        // under lock_
  stream_clock* after_ = nullptr;  // of the next that ended, see clocks::chain
};

// The timelines of one runtime: a part.
class clocks {
 public:
  explicit clocks(weir::runtime::impl&);
  // Blocks: no. Stamps of its streams are complete from now on:
  // whoever ends a runtime has its streams drained before
  ~clocks();
  stream_clock& make(int device, driver::stream_handle, life);  // own or foreign
  std::uint64_t number_of(stream_clock const&) const noexcept;  // in reports: counted in each runtime from 1
  // the end of a registration: a last fence, then no more driver calls on its stream. The object stays, as
  // long as the runtime; when its work is complete and `kept_ended` more have ended it may be another
  // registration's
  void retire(stream_clock&);
  static constexpr std::size_t kept_ended = 256;
  bool any_ended() const noexcept;  // registrations, ever
  // somebody's stream: made, or the one that this handle has already
  stream_clock& enrol(int device, driver::stream_handle);
  void leave(stream_clock&);                               // ends what one enrol() began; the last one retires it
  driver::result<event_ref> take_event(int device, driver::event_kind);  // for somebody's event
  // known to be complete; no driver call. Never true for work that a lost device did not do
  bool complete(stamp) const noexcept;
  driver::result<bool> poll(stamp);   // the same after asking the driver (a fence is recorded if none covers the stamp)
  driver::status synchronize(stamp);  // Blocks: until complete
  // The same while ranks may be waiting for each other, and one of them for this very thread: it asks again
  // and again. Blocks: for 2 s at most; where nothing moves by itself, for 64 questions.
  // not_ready: not complete by then
  driver::status ask_for_a_while(stamp);
  bool have_passed(std::vector<stamp>&);           // drops those that are complete, or of a lost device: none is left
  driver::status synchronize_device(int device);   // Blocks: until all streams of the device are done, foreign ones too
  // somebody saw the event of this fence complete; nothing is concluded when it is stale or given away
  void note_complete(stream_clock&, fence_ref const&);
  std::vector<stamp> collectives_given() const;    // of every stream that carries them and is not known to be done
  bool lost(int device) const noexcept;            // a call on that device answered lost
  void note(int device, driver::status) noexcept;  // remembers that a call that names this device alone answered lost
  struct counts { std::uint64_t fences = 0, waits = 0, polls = 0; };
  counts counted() const noexcept;
  std::vector<std::string> validate() const;       // which invariants (above) do not hold; empty: all hold

 private:
  void end(stream_clock&);
  stream_clock* take_over(int device, driver::stream_handle, std::uint64_t id);  // null: none is over for long enough
  void let_go_of_ended(stream_clock& last) noexcept;
  class chain;
  struct state;
  std::unique_ptr<state> state_;
};

// The timelines of this process by id, in chunks that never move.
namespace detail {
inline constexpr int chunks = 42;
inline constexpr std::uint64_t first_chunk = 64;
inline constexpr std::uint64_t most_ids = first_chunk << (chunks - 1);
extern base::atomic<base::atomic<stream_clock*>*> directory[chunks];
struct place_of {
  int chunk;
  std::uint64_t index;
};
constexpr place_of place(std::uint64_t id) noexcept {
  std::uint64_t const v = id - 1 + first_chunk;
  int const chunk = static_cast<int>(std::bit_width(v)) - static_cast<int>(std::bit_width(first_chunk));
  return {chunk, v - (first_chunk << chunk)};
}
}  // namespace detail

// Of any runtime of this process; null: its runtime is gone, everything stamped there is complete.
// Threads: any, while that runtime is not being destroyed.
inline stream_clock* find(std::uint64_t id) noexcept {
  if (id - 1 >= detail::most_ids) return nullptr;  // 0 too
  auto const at = detail::place(id);
  auto* chunk = detail::directory[at.chunk].load(base::memory_order_acquire);
  return chunk ? chunk[at.index].load(base::memory_order_acquire) : nullptr;
}

inline std::uint64_t stream_clock::last_wanted(std::uint64_t n) const noexcept {
  if (life_.load(base::memory_order_acquire) != life::retired) return n;
  std::uint64_t const last = last_.load(base::memory_order_acquire);
  return n < last ? n : last;
}

inline bool stream_clock::is_complete_up_to(std::uint64_t n) const noexcept {
  std::uint64_t const done = done_.load(base::memory_order_acquire);
  return done >= n || done >= last_wanted(n);
}

inline bool stream_clock::covers(stamp s) const {
  if (s.stream == id()) return true;
  stream_clock const* const there = find(s.stream);
  if (!there || there->is_complete_up_to(s.n)) return true;
  if (seen_captured()) return false;
  // Asked again last: what was seen complete since is no longer kept among what is known to be ordered.
  return knows({s.stream, there->last_wanted(s.n)}) || there->is_complete_up_to(s.n);
}

inline std::uint64_t stream_clock::covers_up_to(stream_clock const& of) const {
  constexpr std::uint64_t all = ~std::uint64_t{0};
  if (&of == this) return all;
  std::uint64_t known = 0;
  if (!seen_captured()) {
    base::lock_guard const hold(lock_);
    if (frontier_) known = frontier_->of(of.id());
  }
  std::uint64_t const n = std::max(known, of.done_.load(base::memory_order_acquire));  // read last, see covers()
  return of.last_wanted(all) <= n ? all : n;
}

}  // namespace weir::clock
