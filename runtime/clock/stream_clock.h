// One stream as the clocks see it: its stamps, fences and frontier.
// Threads: any. Reading a stamp and checking completion are wait-free. Everything else briefly takes this
// stream clock's lock, never two of these locks at once, and never during a driver call.
//
// Fence k of stream s is an event recorded on s; fences count 1, 2, 3, … A stamp (s, n) taken when n - 1
// fences had been begun is covered by every fence k >= n: all work enqueued on s before the stamp was read
// runs before that fence. Invariants, in the words of validate() and of the tests:
//   1. a record increments next before the driver call
//   2. a waiter merges only after the driver's wait returned
//   3. a fence carries the frontier as it was before its record
//   4. done only grows and names fences that were begun
//   5. completion is transitive: a complete fence completes all that it was ordered after
// In the frontier of s, frontier[t] >= n only if everything stamped (t, n) is ordered before the next work of
// s. If the driver refuses a record, its number is never used, and the next fence covers its stamps.
// weir neither polls nor records a stream under capture, because the driver call could spoil the capture:
// such calls answer not_permitted. Records inside a capture yield no fence. The graph may be launched on any
// stream, so that inside a capture only completion counts, not the frontier.
//
// The order inside a capture is that of its lanes. A lane is the clock of one stream in one capture. It
// counts the records that weir makes there, and its frontier names lanes of its capture alone. It makes no
// driver call. Its stamps are complete once the capture has ended, because all of its work joins.
#pragma once
#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/sync.h"
#include "runtime/clock/fence.h"
#include "runtime/core/parts.h"
#include "runtime/driver/driver.h"

namespace weir::clock {

struct stamp {
  std::uint64_t stream = 0;  // id of its stream clock; 0: no stream, always complete and ordered
  std::uint64_t n = 0;
  friend bool operator==(stamp const&, stamp const&) = default;
};

enum class life : std::uint8_t {
  own,       // weir's: fenced lazily
  foreign,   // external, while registered: its owner keeps it, so that it is fenced lazily, too
  borrowed,  // external, and exists only while a call names it: fenced inside such calls (streams/stream/borrowed.h)
  captured,  // a lane: a stream in a capture
  retired,   // the registration or the capture has ended: no driver call uses the stream
};

// One use of a stream object in one word: whether its registration has ended, an id, a lease count, a device.
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

class alignas(64) stream_clock final {  // a free without a lock reads `next_`: no other object shares its line
 public:
  std::uint64_t id() const noexcept { return id_.get(); }  // process-wide, never 0, never reused
  int device() const noexcept { return device_; }
  driver::stream_handle handle() const noexcept { return handle_.get(); }
  weir::runtime::impl& owner() const noexcept { return runtime_; }
  life alive() const noexcept { return life_.load(base::memory_order_acquire); }
  // The current use of the stream: its id, device and number of leases so far. A handle keeps its own.
  std::uint64_t tenure() const noexcept { return tenure_.load(base::memory_order_acquire); }
  // Threads: only the one that returns the stream
  void end_tenure() noexcept { tenure_.store(tenure_word::next(tenure()), base::memory_order_release); }

  // The stamp of all work so far. No driver call. Ensures: read after the caller's earlier actions (acquire).
  stamp now() const noexcept { return {id(), number()}; }
  std::uint64_t number() const noexcept { return next_.load(base::memory_order_acquire); }  // of that stamp
  std::uint64_t newest_number() const noexcept { return next_.seen(); }                     // the same, for rules
  // The registration has ended and all work is complete: records about this stream have no meaning any more.
  bool is_over() const noexcept {
    return alive() == life::retired && is_complete_up_to(last_.load(base::memory_order_acquire));
  }
  // A held copy prevents reuse of the object after its registration. Null for weir's own streams.
  std::shared_ptr<void const> hold() const noexcept { return held_; }
  // Records a fence, which covers every stamp taken so far. One event record. not_permitted: a borrowed
  // stream that no call of this thread names now.
  driver::result<stamp> fence();
  // The same with the event of a weir::event, which may be recorded again. `before` is the fence of its last
  // record, or null; this call makes it stale, but a refused call changes nothing. Inside a capture the fence
  // is good for wait() alone, and may have another event if others may still query this one: continue with
  // that.
  driver::result<fence_ref> record(event_ref const&, fence_ref const& before = nullptr);

  // Counted of a borrowed stream. What no fence covers can only be waited for with the whole device.
  void note_block(int more) noexcept {  // `more` blocks have it as their home
    if (alive() == life::borrowed) [[unlikely]]
      live_blocks_.fetch_add(more, base::memory_order_relaxed);
  }
  void note_mark() noexcept {  // it uses another stream's block
    if (alive() == life::borrowed) [[unlikely]]
      marked_.store(true, base::memory_order_relaxed);
  }
  // Counts a free of so many bytes that waits for this stream. True: a fence is due
  bool count_free(std::size_t bytes) noexcept;
  bool owes_fence() const noexcept { return unfenced_.load(base::memory_order_relaxed) >= free_batch; }
  bool has_blocks() const noexcept { return live_blocks_.load(base::memory_order_relaxed) > 0; }
  bool may_be_forgotten() const noexcept {  // nothing will be freed that it uses
    return !marked_.load(base::memory_order_relaxed) && !has_blocks();
  }
  bool is_fenced() const noexcept { return !unfenced_.load(base::memory_order_relaxed); }  // all that was freed
  // Of a keeper, or of the home of memory that streams share: nothing is enqueued there.
  bool has_no_stream() const noexcept { return handle() == driver::stream_handle::none; }
  // Counts a block that this stream took from pages that it shares. Returns: how many it has taken
  std::uint32_t count_shared() noexcept { return shared_.fetch_add(1, base::memory_order_relaxed) + 1; }
  void saw_captured(bool yes) const noexcept {  // the driver's answer just now
    // Until it is noted, by this thread or by another.
    while (seen_captured() != yes && !note_captured(yes, capture_seen_.load(base::memory_order_relaxed))) {}
  }

  // A call that asks the driver about a stream that it was not given. Its stream exists to the end of this object: the
  // end of its registration waits for that.
  class stay {
   public:
    explicit stay(stream_clock const& s) noexcept : in_(s) { in_.callers_.fetch_add(1); }
    ~stay() { in_.callers_.fetch_sub(1); }
    stay(stay const&) = delete;
    // False: it is gone, or may go. Borrowed streams exist in calls that name them.
    explicit operator bool() const noexcept { return in_.life_.load() != life::retired; }

   private:
    stream_clock const& in_;
  };
  // Whether this stream is under capture. captured() makes one driver call; seen_captured() makes none and
  // returns the last known answer, which every record and wait updates.
  driver::result<bool> captured() const;
  bool seen_captured() const noexcept { return capture_seen_.load(base::memory_order_relaxed) & 1; }
  // Whether an allocation asks first: other code can capture a registered stream, but not the legacy stream, and
  // without a call only one whose captures are not announced.
  // weir begins or joins the captures of its own streams, and a borrowed stream was asked when it was named.
  bool is_asked() const noexcept { return may_be_captured_elsewhere() && !announces_.load(base::memory_order_relaxed); }
  // A registered stream whose program promised to call captured() first in each capture that weir does not begin: one
  // driver call looks whether it broke that. Throws: invalid_use
  void hold_to_promise(std::string_view operation, source_location const& at) const {
    if (may_be_captured_elsewhere() && announces_.load(base::memory_order_relaxed) && !seen_captured()) [[unlikely]]
      refuse_unannounced(operation, at);
  }
  // All work that `from` was given inside its capture comes before the next work of this stream, which joins
  // the capture. not_permitted: `from` is not under capture.
  driver::status join(stream_clock& from);
  // The lane of this stream in its capture; null: it is not captured. One driver call. not_permitted: a
  // spoiled capture. Throws: bad_alloc
  driver::result<stream_clock*> lane();
  // The same without a driver call, as last known; null also if no lane was asked for yet.
  stream_clock* known_lane() const noexcept {
    return seen_captured() ? lane_.load(base::memory_order_acquire) : nullptr;
  }
  // Of a lane: the number of its capture (driver::capture_of), and its stream. 0 and null for others.
  std::uint64_t capture() const noexcept { return capture_.load(base::memory_order_acquire); }
  stream_clock* stands_for() const noexcept { return stands_for_.load(base::memory_order_acquire); }
  // Whose stamps cover later work of a stream that was marked by this name: after a capture the stream's, of one
  // that was set aside those of its device.
  stream_clock& of_marks() noexcept {
    stream_clock* const later = alive() == life::retired ? stands_for() : nullptr;
    return later ? *later : *this;
  }

  // Whether `s` is known to be ordered before the next work of this stream. No driver call.
  bool covers(stamp s) const;
  // The same for many stamps of one stream: (of, n) is covered or complete for every n up to this number.
  std::uint64_t covers_up_to(stream_clock const& of) const;
  // The oldest recorded fence that covers the stamp (this, n). 0: none is recorded. No driver call.
  std::uint64_t fence_covering(std::uint64_t n);
  void rely_on(stream_clock const* other) const;  // tells the observer that the program relied on covers()
  void know_complete() const;                     // the same of this stream's completion
  // Orders this stream after `s`. No call if covered; else one device wait, after a fence on s.stream if none
  // covers s. Merges s.stream's frontier. lost: the work will never run. invalid: another runtime, or a
  // retired stream.
  // behind_all: set to true if the fence was recorded by a question or by this wait; then the wait covers all
  // work that s.stream had at that time.
  driver::status wait(stamp s, bool* behind_all = nullptr);
  // The same through a fence of record(). not_ready: another thread recorded the event again meanwhile. If
  // the event's native handle was given away, the wait is made and nothing is concluded.
  driver::status wait(fence_ref const&, stream_clock& recorded_on);

  // Remembers a lost device. Returns: its argument. Requires: the answer of a call on this device alone.
  driver::status note(driver::status) const noexcept;

  driver::result<bool> query();  // is all work so far complete? One driver call
  driver::status synchronize();  // Blocks: until it is complete

  // For streams with collectives, which wait for other ranks: weir inserts no wait between two of them.
  void set_carries_collectives(bool yes) noexcept { carries_collectives_.store(yes, base::memory_order_release); }
  bool carries_collectives() const noexcept { return carries_collectives_.load(base::memory_order_acquire); }
  void count_collective() noexcept { collectives_.fetch_add(1); }  // called before one is enqueued
  std::uint64_t collectives() const noexcept { return collectives_.load(); }

 private:
  friend class clocks;
  struct common;  // what the clocks of one runtime share
  stream_clock(std::uint64_t id, int device, driver::stream_handle h, life l, weir::runtime::impl& r,
               std::shared_ptr<common> c)
      : id_(id),
        device_(device),
        handle_(h),
        runtime_(r),
        common_(std::move(c)),
        held_(l == life::own ? nullptr : std::make_shared<char>()),
        tenure_(tenure_word::make(id, device)),
        life_(l) {}

  bool claim_end() noexcept { return !end_claimed_.exchange(true); }
  void refuse_unannounced(std::string_view operation, source_location const& at) const;
  driver::result<bool> captured(std::uint64_t& ended) const;  // ended: the capture that is over by the answer; else 0
  bool may_be_captured_elsewhere() const noexcept {
    return life_.load(base::memory_order_relaxed) == life::foreign && handle() != driver::stream_handle::legacy;
  }
  struct begun {  // the number of a new fence, and the frontier at that time
    std::uint64_t n = 0;
    snapshot seen;
  };
  begun begin();
  bool knows(stamp s) const;                                  // the part of covers() under the lock
  snapshot knowledge() const;                                 // the current frontier
  bool is_complete_up_to(std::uint64_t n) const noexcept;     // is (this, n) known to be complete?
  std::uint64_t last_wanted(std::uint64_t n) const noexcept;  // a retired stream has no stamps after its last fence
  driver::status open_for_work() const;                       // not retired, device not lost
  // Whether a fence can be recorded as far as the stream's life says: it exists now, and is no lane.
  bool may_be_fenced() const noexcept;
  driver::result<fence_ref> record_inside(event_ref const&, fence_ref const& before);
  driver::status record_outside(clock::fence&, fence_ref const& before);
  driver::status wait_inside(clock::fence const&, stream_clock& from);
  stream_clock* lane_or_none() noexcept;                 // null also without host memory
  std::uint64_t last_capture() const noexcept;           // in which it was last seen; 0: none
  driver::status usable() const;                         // open for work and not under capture
  driver::result<fence_ref> fence_for(std::uint64_t n);  // a fence that covers n; recorded if there is none
  driver::result<fence_ref> record_fence(bool asked);
  void publish(fence_ref const&);  // lists the fence for others
  // Waits even if it is covered. Requires: one runtime, not a captured fence
  driver::status wait_for(fence_ref const&, stream_clock& recorded_on);
  // Whether this answer to a query of the event makes the fence worthless: then marks it stale.
  static bool mark_if_in_vain(clock::fence&, driver::status answer);
  void merge(stream_clock const& from, clock::fence const&);
  void observe(std::uint64_t n, snapshot const&);  // the fence n with that frontier is complete
  // Whether the fence is complete. One driver call. not_ready: the fence became stale meanwhile
  driver::result<bool> ask(fence_ref const&);
  void ask_newer(std::uint64_t than);  // for the newest complete fence
  driver::result<bool> poll(std::uint64_t n);
  driver::status synchronize(std::uint64_t n);
  std::vector<std::string> validate() const;

  // id_ and handle_ change when the object of an ended registration is reused. The fence numbers continue.
  base::single_writer<std::uint64_t> id_;
  int const device_;
  base::single_writer<driver::stream_handle> handle_;
  weir::runtime::impl& runtime_;
  std::shared_ptr<common> const common_;
  std::shared_ptr<void const> const held_;
  base::atomic<std::uint64_t> next_{1};  // number of the next fence
  base::atomic<std::uint64_t> done_{0};  // stamps (id, 1..done) are complete
  base::atomic<std::uint64_t> tenure_;
  base::atomic<life> life_;
  base::atomic<bool> end_claimed_{false};  // one call retires it
  // Bit 0: the last answer. Bit 1: fast paths were closed since it changed. Above: the number of answers noted
  static constexpr std::uint32_t told_all = 2;
  mutable base::atomic<std::uint32_t> capture_seen_{told_all};
  base::atomic<std::uint64_t> last_{0};  // retired: the number of the last fence
  base::atomic<bool> carries_collectives_{false};
  base::atomic<bool> announces_{false};         // foreign: as all its registrations promise
  base::atomic<std::uint64_t> collectives_{0};  // enqueued so far
  static constexpr std::uint32_t free_batch = 32, young = 1000;
  static constexpr std::size_t large_free = 1 << 20;  // bytes: one such free is a batch
  base::atomic<std::uint32_t> unfenced_{0};           // borrowed: frees since its last fence; a large one is many
  base::atomic<std::uint32_t> last_frees_{0};         // borrowed: frees that left it without a block
  base::atomic<std::int32_t> live_blocks_{0};
  base::atomic<bool> marked_{false};
  base::atomic<std::uint32_t> shared_{0};  // blocks taken from shared pages
  // Closes the fast allocation path on a captured stream. False: another answer was noted since `seen` was
  // read.
  bool note_captured(bool yes, std::uint32_t seen) const noexcept {
    bool const changes = (seen & 1) != yes;
    std::uint32_t const next_count = (seen | told_all | 1) + 1;
    std::uint32_t const kept = changes ? 0 : seen & told_all;
    std::uint32_t noted = next_count + kept + yes;
    if (!capture_seen_.compare_exchange(seen, noted, base::memory_order_relaxed))
      return false;
    // The thread that noted the same answer first may not have come to this yet.
    if (!kept) {
      invalidate_fast_paths();
      (void)capture_seen_.compare_exchange(noted, noted | told_all);
    }
    return true;
  }

  mutable base::mutex lock_;
  snapshot frontier_;                                // under lock_
  fence_list fences_;                                // under lock_
  base::atomic<stream_clock*> lane_{nullptr};        // in the capture where it was last seen
  base::atomic<stream_clock*> stands_for_{nullptr};  // a lane's, and of a stream that was set aside
  base::atomic<std::uint64_t> capture_{0};           // a lane's
  std::shared_ptr<void const> stands_for_held_;      // a lane's: so that no other stream gets that object
  stream_clock* after_ = nullptr;                    // the next one in clocks::chain
  mutable base::atomic<std::uint32_t> callers_{0};   // with a `stay`
};

// A call of the program names this stream: until its end the stream exists, even if it is borrowed.
// Threads: of one; calls are nested.
class named_in_call {
 public:
  explicit named_in_call(stream_clock const& s) noexcept : before_(std::exchange(current(), &s)) {}
  ~named_in_call() { current() = before_; }
  named_in_call(named_in_call const&) = delete;
  named_in_call& operator=(named_in_call const&) = delete;
  static bool is(stream_clock const& s) noexcept { return current() == &s; }

 private:
  static stream_clock const*& current() noexcept;
  stream_clock const* before_;
};

// Told of each launch by weir of a graph in whose capture it was named. Threads: any
class launch_listener {
 public:
  virtual ~launch_listener() = default;
  virtual void taken() noexcept = 0;  // weir will launch the graph, or drops it
  // Before the driver is called. Throws: error, if the graph must not run; it was not told then
  virtual void begins(char const* operation, source_location) = 0;
  virtual void launched(stream_clock& on) noexcept = 0;  // what it runs is complete at on.now()
  virtual void refused() noexcept = 0;                   // by the driver or another listener: it runs nothing
};
using launch_listeners = std::vector<std::shared_ptr<launch_listener>>;

// The stream clocks of one runtime: a part.
class clocks {
 public:
  explicit clocks(weir::runtime::impl&);
  // Blocks: no. Stamps of its streams count as complete afterwards. Requires: the streams are drained
  ~clocks();
  stream_clock& make(int device, driver::stream_handle, life);  // not retired
  std::uint64_t number_of(stream_clock const&) const noexcept;  // in reports: counted from 1 in each runtime
  // Ends a registration: records a last fence and makes no more driver calls on the stream. The object stays;
  // a new registration may reuse it once its work is complete and `kept_ended` more have ended. A borrowed
  // stream gets no last fence unless a call names it. False: only the whole device tells when its work is
  // done. No effect if another call ends it.
  bool retire(stream_clock&);
  // Ends a borrowed stream that may go on, and that no call will name by this clock. Blocks that are marked for it
  // wait for rest_of() instead. Requires: rest_of() of its device was called
  void set_aside(stream_clock&);
  // The clock of the streams set aside on that device: only an idle device completes its stamps. Throws: bad_alloc
  stream_clock& rest_of(int device);
  static constexpr std::size_t kept_ended = 256;
  bool any_ended() const noexcept;  // whether a registration has ended
  // The stream of this handle if weir made it or it is registered, else a new registration. announces: the promise of
  // this registration; without it the others' ends
  stream_clock& enrol(int device, driver::stream_handle, bool announces = false);
  stream_clock* known(int device, driver::stream_handle) const;  // null: neither weir's own nor registered
  // Ends one enrol() of the stream with that id, or with that name; the last one retires an external stream.
  // False: none was left.
  bool leave(std::uint64_t id);
  bool leave(int device, driver::stream_handle);
  bool leave(stream_clock const& t) { return leave(t.id()); }
  driver::result<event_ref> take_event(int device, driver::event_kind);  // for a weir::event
  // Known to be complete; no driver call. Never true for work that a lost device did not do.
  bool complete(stamp) const noexcept;
  driver::result<bool> poll(stamp);   // asks the driver too; records a fence if none covers the stamp
  driver::status synchronize(stamp);  // Blocks: until complete
  // Whether all work of a stream is complete, for a call that was not given the stream. As synchronize_device(), it
  // keeps captures from a begin meanwhile.
  driver::result<bool> query(stream_clock&);
  // Polls repeatedly, because ranks may wait for each other, and one of them for this thread. Blocks: at most
  // 2 s; on a machine that moves only by hand, 64 polls. not_ready: not complete by then
  driver::status ask_for_a_while(stamp);
  bool have_passed(std::vector<stamp>&);  // drops those that are complete, or of a lost device: none is left
  // Blocks: until all streams of the device are done, external too. not_permitted: one is captured
  driver::status synchronize_device(int device);
  // Not while synchronize_device() or query() looks for captures there, before a call that would spoil this one.
  // Blocks: while it is under way, at most 2 s. A stream that joins a capture is not kept from it.
  driver::status begin_capture(stream_clock&, driver::capture_mode);
  // The program saw the fence's event complete. Ignored if the fence is stale or its event was given away.
  void note_complete(stream_clock&, fence_ref const&);
  // The lane of the stream in the capture of that number. Throws: bad_alloc
  stream_clock& lane_of(stream_clock&, std::uint64_t capture);
  // Names a listener in the capture of a lane. No effect if it is over. Throws: bad_alloc
  void listen(stream_clock const& lane, std::shared_ptr<launch_listener>);
  launch_listeners take_listeners(std::uint64_t capture) noexcept;  // before its end
  // Ends the capture of that number, which the stream began. Ensures: all its streams are known not to be captured
  driver::result<driver::graph_handle> end_capture(stream_clock&, std::uint64_t capture) noexcept;
  // That capture has ended, whole or not: its lanes are retired, their stamps complete. Its borrowed streams are seen
  // as not captured. Others that were seen captured are asked again. Idempotent.
  void capture_ended(std::uint64_t capture) noexcept;
  // A stream of weir's own in the capture of this borrowed one. It may be asked at any time whether that is over.
  // Null: none is known
  stream_clock* joined_to(stream_clock const& borrowed) const;
  // A clock without a stream, for what is held until let_go(). Throws: bad_alloc
  stream_clock& make_keeper(int device) { return make(device, driver::stream_handle::none, life::captured); }
  void let_go(stream_clock& keeper) noexcept;  // its stamps are complete
  // A clock without a stream, for memory that is complete whenever it is free. Throws: bad_alloc
  // Ensures: each of its stamps is complete
  stream_clock& make_idle(int device);
  void pass(stream_clock& idle) noexcept;          // its next stamp differs from those before
  std::vector<stamp> collectives_given() const;    // of every stream that carries them and is not known to be done
  bool lost(int device) const noexcept;            // a call on that device answered lost
  void note(int device, driver::status) noexcept;  // Requires: the answer of a call that names this device alone
  struct counts {
    std::uint64_t fences = 0, waits = 0, polls = 0;
  };
  counts counted() const noexcept;
  std::vector<std::string> validate() const;  // which invariants (above) do not hold; empty: all hold
  std::size_t size() const;                   // objects, those of ended registrations included

 private:
  bool finish(stream_clock&);  // the rest of retire(). Requires: claim_end()
  void end(stream_clock&);
  void end_lanes(std::span<stream_clock* const>) noexcept;
  void end_capture_of(std::span<stream_clock* const> lanes) noexcept;
  // Null: no stream has been over for long enough.
  stream_clock* reuse_ended(int device, driver::stream_handle, std::uint64_t id, life);
  void let_go_of_ended(stream_clock& last) noexcept;
  class chain;
  class reusable_streams;
  struct state;
  std::unique_ptr<state> state_;
};

// The stream clocks of this process by id, in chunks that never move.
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

// Of any runtime of this process. Null: its runtime has ended, and its stamps are complete. Threads: any,
// while that runtime is not being destroyed.
inline stream_clock* find(std::uint64_t id) noexcept {
  if (id - 1 >= detail::most_ids)
    return nullptr;  // also for 0
  auto const at = detail::place(id);
  auto* chunk = detail::directory[at.chunk].load(base::memory_order_acquire);
  return chunk ? chunk[at.index].load(base::memory_order_acquire) : nullptr;
}

inline std::uint64_t stream_clock::last_wanted(std::uint64_t n) const noexcept {
  if (life_.load(base::memory_order_acquire) != life::retired)
    return n;
  std::uint64_t const last = last_.load(base::memory_order_acquire);
  return n < last ? n : last;
}

inline bool stream_clock::is_complete_up_to(std::uint64_t n) const noexcept {
  std::uint64_t const done = done_.load(base::memory_order_acquire);
  return done >= n || done >= last_wanted(n);
}

inline bool stream_clock::covers(stamp s) const {
  if (s.stream == id())
    return true;
  stream_clock const* const from = find(s.stream);
  if (!from || from->is_complete_up_to(s.n))
    return true;
  if (seen_captured())
    return false;
  if (knows({s.stream, from->last_wanted(s.n)}))
    return true;
  // Asked again, after the frontier: a stamp that has completed meanwhile is no longer in it.
  return from->is_complete_up_to(s.n);
}

inline std::uint64_t stream_clock::covers_up_to(stream_clock const& of) const {
  constexpr std::uint64_t all = ~std::uint64_t{0};
  if (&of == this)
    return all;
  std::uint64_t known = 0;
  if (!seen_captured()) {
    base::lock_guard const hold(lock_);
    if (frontier_)
      known = frontier_->of(of.id());
  }
  std::uint64_t const n = std::max(known, of.done_.load(base::memory_order_acquire));  // read last, see covers()
  bool const is_covered_to_its_end = of.last_wanted(all) <= n;  // only a retired stream has an end
  return is_covered_to_its_end ? all : n;
}

}  // namespace weir::clock
