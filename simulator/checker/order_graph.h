// The order of work from driver calls: program order of streams, records, waits, and completion the host saw.
// Threads: under the checker's lock.
//
// The place of a stream that has ended serves another one once nothing can be unordered with its work. The positions go
// on: those of the stream that ended count as complete, in clocks and events that still have them.
// Invariant: complete(e, promised) implies complete(e, known), and ordered() the same.
#pragma once
#include <algorithm>
#include <deque>
#include <map>
#include <tuple>
#include <unordered_map>

#include "runtime/base/sync.h"
#include "runtime/driver/driver.h"
#include "simulator/checker/vector_clock.h"
#include "weir/types.h"

namespace weir::driver::check {

// A point of a stream: after its first n operations, which come after everything in `seen`.
struct moment {
  epoch at;
  views seen;
  std::uint64_t version = 0;  // of an event: which of its records
};

class graph {
 public:
  // unasked: a stream of the program whose flags are not known yet. It counts as joining nothing.
  enum class joins : std::uint8_t { nothing, legacy, is_legacy, unasked };

  stream_id add(int device, stream_handle, joins);
  stream_id find(int device, stream_handle);    // adds an unknown stream
  stream_id unlink(int device, stream_handle);  // the driver may reuse the handle. 0: not known
  void link(int device, stream_handle h, stream_id s) { by_handle_[key(device, h)] = s; }
  void keep(stream_id s) noexcept { at(s).is_kept = true; }  // the stream of a thread, which tells no end
  void ended(stream_id);                                     // it was unlinked, and gets no more work. 0: nothing
  // So many streams have ended that it is worth the search for those that nothing refers to.
  bool may_forget() const noexcept { return ended_.size() + threads_ >= forget_at_; }
  // is_used(stream_id): an unfinished use, or a block, refers to it. searched: the number of these
  template <class IsUsed>
  void forget_ended(IsUsed is_used, std::size_t searched);
  void forget_later(std::size_t searched) noexcept {  // the search was in vain: the next one is worth it with more
    forget_at_ = std::max({least_, 2 * (ended_.size() + threads_), (searched + by_handle_.size()) / 8});
  }
  bool knows(int device, stream_handle h) const { return by_handle_.count(key(device, h)) != 0; }
  bool is_legacy(stream_id s) const noexcept { return streams_[s - 1].how == joins::is_legacy; }
  bool is_unasked(stream_id s) const noexcept { return streams_[s - 1].how == joins::unasked; }
  void set_joins(stream_id, joins);  // a handle may come back as a stream of the other kind
  int device_of(stream_id s) const noexcept { return streams_[s - 1].device; }
  // the number in reports
  std::uint64_t number_of(stream_id s) const noexcept { return at(s).number ? at(s).number : at(s).life; }
  void set_number(stream_id s, std::uint64_t number) noexcept { at(s).number = number; }
  // the place of the stream's constructor; no file name: unknown
  source_location made_at(stream_id s) const noexcept { return streams_[s - 1].made; }
  void set_made(stream_id s, source_location where) noexcept { at(s).made = where, at(s).is_weirs = false; }
  bool is_weirs(stream_id s) const noexcept { return streams_[s - 1].is_weirs; }
  void set_weirs(stream_id s) noexcept { at(s).made = {nullptr, nullptr, 0}, at(s).is_weirs = true; }
  std::size_t streams() const noexcept { return streams_.size(); }
  bool is_over(stream_id s) const noexcept { return at(s).has_ended && complete({s, at(s).given}, trust::promised); }
  // The same for no other stream, unlike its id.
  std::uint64_t life_of(stream_id s) const noexcept { return streams_[s - 1].life; }

  // What the stream's next operation comes after. known: what that operation joins is no promise
  moment now(stream_id, trust = trust::promised);
  // the last operation and what it came after: all complete when the stream is done
  moment so_far(stream_id) const;
  void recorded_on(stream_id, trust = trust::promised) noexcept;  // an operation without memory uses
  std::uint64_t given(stream_id s) const noexcept { return streams_[s - 1].given; }
  epoch enqueued(stream_id);  // one more operation
  // Does the last operation of `later` come after any of that stream?
  bool has_seen(stream_id later, stream_id) const;

  void recorded(event_handle, moment const&);
  moment record_of(event_handle) const;  // at.stream 0: never recorded
  moment forget(event_handle);           // returns its last record
  void waited(stream_id, moment const&, trust);
  void follows(stream_id, moment const&);  // the stream's next operations come after it as well
  views with(views const&, moment const&) const;
  void saw_complete(moment const&, trust);  // the host did
  // Promises what is known about `other`: its order before the waiter, or (waiter 0) its completion.
  void promise(stream_id waiter, stream_id other);
  void lost(int device);  // its enqueued work counts as complete

  bool complete(epoch, trust) const noexcept;
  // Does e come before the next operation of `later`, given that `later` has seen `seen`?
  bool ordered(epoch e, stream_id later, views const& seen, trust) const noexcept;

 private:
  struct stream_state {
    int device = 0;
    joins how = joins::nothing;
    std::uint64_t given = 0, done = 0, known_done = 0;
    std::uint64_t life = 0;    // from 1, in order of creation
    std::uint64_t first = 0;   // what earlier streams of this place were given
    std::uint64_t number = 0;  // in reports; 0: its life
    bool has_ended = false;
    bool is_kept = false;  // for calls of weir, which name it across the checker's lock
    source_location made{nullptr, nullptr, 0};
    bool is_weirs = false;               // weir's own: the program cannot name it
    bool has_acted = false;              // an operation, a wait or a record: blocking and legacy streams join it
    bool has_acted_as_promised = false;  // one that the program requested
    views seen;
    // `seen` of the last operation, for blocking and legacy streams: the next one may come after more
    views at_last;
  };
  stream_state& at(stream_id s) noexcept { return streams_[s - 1]; }
  stream_state const& at(stream_id s) const noexcept { return streams_[s - 1]; }
  bool is_idle(stream_id) const;
  bool can_go(stream_id) const;
  void free_place(stream_id);
  void forget_idle_threads();
  void prune(vector_clock&, trust) const;
  view joined(view const& a, view const& b, epoch, trust) const;
  void raise_done(epoch, trust) noexcept;
  void make_room(int device);

  std::deque<stream_state> streams_;
  std::vector<stream_id> ended_;                // whose places are not free
  std::map<int, std::vector<stream_id>> free_;  // places, by device
  std::uint64_t lives_ = 0;
  std::size_t threads_ = 0;  // with a stream of their own, since the last search
  std::size_t forget_at_ = least_;
  static constexpr std::size_t least_ = 64;
  using name = std::tuple<int, stream_handle, std::uint64_t>;  // the last: the thread of a per-thread stream
  static name key(int device, stream_handle h) noexcept {
    return {device, h, h == stream_handle::per_thread ? base::this_thread_id() : 0};
  }
  std::map<name, stream_id> by_handle_;
  std::unordered_map<std::uintptr_t, moment> events_;
  std::uint64_t next_version_ = 1;
  std::vector<stream_id> legacy_;                         // by device; 0: never used
  std::vector<std::vector<stream_id>> joined_by_legacy_;  // by device
  std::vector<bool> lost_;                                // by device
};

template <class IsUsed>
void graph::forget_ended(IsUsed is_used, std::size_t searched) {
  forget_idle_threads();
  for (std::size_t i = 0; i < ended_.size();) {
    if (is_used(ended_[i]) || !can_go(ended_[i])) {
      ++i;
      continue;
    }
    free_place(ended_[i]);
    ended_[i] = ended_.back();
    ended_.pop_back();
  }
  threads_ = 0;
  forget_later(searched);
}

}  // namespace weir::driver::check
