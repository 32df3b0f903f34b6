// The doors to a heap, whose members are private.
//   stream_heap's public functions  nothing held: they may choose, and decide nothing
//   quiet_session                   the lock: looks and marks. It closes caches on demand alone, and lists nothing
//   session                         the lock: changes everything. Counts what the sole cache has not reported
//   owner_session                   the owner's word instead of the lock: it lists, lends and disowns nothing
// A function that needs a lock takes the door as a parameter.
// Threads: any. A thread holds one door at a time, and makes no driver call behind it but NVTX notices.
//
// Invariant: what leaves a door is a number, a copy, a stamp with a sequence, or a place that is reserved
// (growth_plan, released). A block_ref and a block seen in a walk end with the door.
#pragma once
#include <optional>
#include <span>

#include "runtime/base/held_door.h"
#include "runtime/memory/blocks/block_ref.h"
#include "runtime/memory/heap/stream_heap.h"

namespace weir::memory {

// What all doors offer: no other thread is inside.
class excluded {
 public:
  excluded(excluded const&) = delete;
  stream_heap& heap() const noexcept { return heap_; }
  block_ref at(region& in, address a) const noexcept { return block_ref::find(in, a); }

  // Walks. `act` is called with each one, const. In the order of addresses, but each_free and each_pending.
  template <class Do>
  void each_block(Do act) const {
    heap_.blocks_.each_block([&](heap_block const& p) { act(p); });
  }
  template <class Do>
  void each_region(Do act) const {
    for (region const* r : heap_.blocks_.regions())
      act(*r);
  }
  template <class Do>
  void each_free(Do act) const {
    heap_.blocks_.each_free([&](heap_block const& p) { act(p); });
  }
  template <class Do>
  void each_pending(Do act) const {
    heap_.pending_.each(act);
  }
  template <class Do>
  void each_handle(Do act) const {
    for (auto const& [at, h] : heap_.handles_)
      act(h);
  }
  template <class Do>
  void each_handle_from(address from, address to, Do act) const {  // that begins there
    for (auto h = heap_.handles_.lower_bound(from); h != heap_.handles_.end() && h->first < to; ++h)
      act(h->second);
  }
  template <class Do>
  void each_unusable(Do act) const {  // handle that is mapped without access
    for (released const& u : heap_.unusable_)
      act(u.handles.front());
  }
  template <class Do>
  void each_cache(Do act) const {
    for (thread_cache const* c : heap_.caches_)
      act(*c);
  }

  // Free memory
  std::size_t free_blocks() const noexcept { return heap_.blocks_.free_blocks(); }
  std::size_t largest_free() const noexcept { return heap_.blocks_.largest_free(); }               // bytes
  std::uint64_t newest_given() const noexcept { return heap_.blocks_.newest_given(); }             // as arena's
  bool places_first() const noexcept { return heap_.blocks_.places_first(); }                      // likewise
  bool fits_mapped(std::size_t bytes) const noexcept { return heap_.blocks_.fits_mapped(bytes); }  // likewise
  bool has_runs() const noexcept { return heap_.blocks_.has_runs(); }                              // likewise
  template <class Do>
  void some_free(std::size_t bytes, int looks, Do act) const {  // likewise
    heap_.blocks_.some_free(bytes, looks, [&](heap_block const& p) { act(p); });
  }
  template <class Do>
  void any_free(int looks, Do act) const {  // likewise
    heap_.blocks_.any_free(looks, [&](heap_block const& p) { act(p); });
  }

  // Pending blocks. The walks stop when `enough(block)` is true, or after `looks` blocks.
  bool has_pending() const noexcept { return !heap_.pending_.empty(); }
  std::size_t pending_count() const noexcept { return heap_.pending_.size(); }
  std::size_t pending_bytes() const noexcept { return heap_.pending_.bytes(); }
  std::size_t pending_bytes_in_slots() const noexcept { return heap_.pending_.bytes_in_slots(); }
  std::vector<clock::stamp> fronts() const { return heap_.pending_.fronts(); }              // as pending_queue's
  std::vector<clock::stamp> newest_awaited() const { return heap_.pending_.newest(); }      // one a stream, as likewise
  pending_block const* oldest_pending() const noexcept { return heap_.pending_.oldest(); }  // null: none
  template <class Enough>
  void pending_that_fit(std::size_t bytes, int looks, Enough enough) const {  // no slots; the smallest first
    heap_.pending_.fitting(bytes, looks, enough);
  }
  template <class Enough>
  void first_pending(int looks, Enough enough) const {  // in the order of their frees
    heap_.pending_.first_given(looks, enough);
  }
  template <class Enough>
  void last_pending(int looks, Enough enough) const {  // the newest free first
    heap_.pending_.last_given(looks, enough);
  }

  // Counts
  std::size_t handles() const noexcept { return heap_.handles_.size(); }
  std::size_t peer_bytes() const noexcept { return heap_.peer_bytes_; }    // of handles open to other devices
  std::size_t left_behind() const noexcept { return heap_.left_behind_; }  // of a graph's pool: as stream_heap's
  heap_index::rows listed() const noexcept { return heap_.listed_; }       // its rows in the index
  bool holds_blocks() const { return heap_.holds_blocks(); }               // that live, or are pending
  observe::cached_slots cached_slots() const noexcept;  // what caches hold, with the counts of those that are gone
  // Appends each rule of the arena and the slabs that is broken. now: the home's number
  void validate(std::vector<std::string>& wrong, std::string const& subject, std::uint64_t now) const;

  // Marks
  struct range {
    void* base = nullptr;  // null: no live block, or no host memory for its mark
    std::size_t bytes = 0;
  };
  range use(region&, address, clock::stream_clock& user) noexcept;    // for a copy: the block there, marked
  void note_readers(address of_handle, std::uint64_t more) noexcept;  // it is open to these devices, too

 protected:
  explicit excluded(stream_heap& m) noexcept : heap_(m) {}
  stream_heap& heap_;

 private:
  [[no_unique_address]] base::held_door const held_{};
};

class quiet_session : public excluded {
 public:
  explicit quiet_session(stream_heap& m) : excluded(m), hold_(m.lock_) {}
  void shut_caches() noexcept;  // so that nothing moves until the session ends

 private:
  base::biased_lock const hold_;
};

class owner_session : public excluded {
 public:
  owner_session(stream_heap& m, thread_cache& c) noexcept : excluded(m), cache_(c), held_(m.lock_.enter(c.own)) {}
  ~owner_session() {
    if (held_)
      base::biased_mutex::leave(cache_.own);
  }
  explicit operator bool() const noexcept { return held_; }  // false: not the owner, and nothing is held
  // Null or false: nothing has changed. Throws: bad_alloc
  void* take_large(std::size_t bytes, std::size_t alignment);
  bool give_large(region const&, address) noexcept;

 private:
  class counting;
  thread_cache& cache_;
  bool const held_;
};

class session : public excluded {
 public:
  // Blocks: perhaps for a process-wide fence, and for the end of one call of the sole cache
  explicit session(stream_heap& m) : excluded(m), hold_(m.lock_), before_(m.blocks_.free_blocks()) {
    if (m.sole_)
      m.hear();
  }
  ~session() {
    std::size_t const now = heap_.blocks_.free_blocks();
    if (now != before_)
      heap_.counts_.free_blocks(static_cast<std::int64_t>(now) - static_cast<std::int64_t>(before_));
    heap_.list();
  }

  // From mapped memory. Null: nothing mapped fits
  void* take(alloc_request const& r) { return heap_.take(r); }
  void* take_or_shed(alloc_request const& r) { return heap_.take_or_shed(r); }
  void* take_anywhere(alloc_request const& r) { return heap_.take_anywhere(r); }  // runs among blocks, too
  // Of pages that streams share: a small block whose home is `user`. Requires: is_shared. Throws: bad_alloc
  void* take_for(clock::stream_clock& user, alloc_request const& r) { return heap_.take_for(user, r); }
  void give_to(clock::stream_clock& user, void* block, slab::spare_note) noexcept;  // names a small block's home
  // A block that serves at once, for `to` is ordered behind its last use: of at least `bytes`, and at most `at_most`
  // if it is pending. Null: none of those examined
  void* lend(alloc_request const&, clock::stream_clock& to, std::size_t bytes, std::size_t alignment,
             std::size_t at_most);
  // Makes a new block one of another stream's. Returns: the home's number at its last use
  std::uint64_t rehome(address block, clock::stream_clock& home) noexcept;
  void take_back(address block, std::uint64_t freed) noexcept;  // a block that rehome() gave away, before its first use
  // After an allocation from this cache's heap: slots for the cache, or the right to enter by its word
  void stock(thread_cache&, alloc_request const&) noexcept;
  void may_own(thread_cache& c) noexcept { heap_.lock_.bias_to(c.own); }
  void end_ownership() noexcept { heap_.lock_.revoke_bias(); }

  // A free, in this order. make_room() throws bad_alloc, with nothing changed, and nothing after it does.
  void make_room(std::size_t stamps) { heap_.pending_.make_room(stamps); }
  void count_awake(block_ref const&) noexcept;  // of a sleeping heap: its free counts it as freed once more
  // With the thread's other frees that wait for these. its: the stamps of `by`, in this order. False: not deferred.
  // due: fences of these are due
  bool defer(thread_cache& c, block_ref const& b, deferred_frees::users by, std::span<clock::stamp const> its,
             bool& due) noexcept {
    return heap_.defer_free(c, {b.in_slab, b.index}, by, its, due);
  }
  bool fence_of_others_is_due(std::size_t bytes) noexcept;  // counts bytes that become pending now
  void put_pending(block_ref const&, std::span<clock::stamp const>, std::uint64_t since) noexcept;
  void put_free(block_ref const&, thread_cache*) noexcept;
  // Counts bytes that came free now. A borrowed home counts them by itself, too: its answer holds (free_path)
  bool fence_at_home_is_due(std::size_t bytes) noexcept;
  // A fence of the home is about to be recorded: the count begins anew, and adjusts how soon the next is due
  void note_fence_at_home() noexcept;
  // Whether a block came free at that number of the home. The caller then records a fence, and the count begins
  // anew.
  bool came_free_at(std::uint64_t number) noexcept;

  // Pending blocks
  std::size_t reclaim() { return heap_.reclaim(); }  // by what is known; bytes that became free
  // The one freed first, if it has that sequence still: all its use is ordered before the home's next work
  bool reclaim_oldest(std::uint64_t sequence) noexcept;
  void sought_by_others() noexcept { heap_.wanted_ = fences_when_sought, heap_.unwanted_ = 0; }

  // Thread caches
  std::size_t revoke_and_empty() noexcept { return heap_.revoke_and_empty(); }  // bytes
  void shut_and_flush() noexcept;                                               // their deferred frees become pending
  void empty_shut() noexcept;                                                   // Requires: shut_and_flush()
  bool has_caches() const noexcept { return !heap_.caches_.empty(); }
  void reset_peak() noexcept { heap_.counts_.reset_peak(); }

  // Slabs. Runs that become free go to the arena.
  std::size_t next_run_bytes(int size_class) const noexcept { return heap_.slots_.next_run_bytes(size_class); }
  std::size_t usual_next_run_bytes(int size_class) const noexcept {
    return heap_.slots_.usual_next_run_bytes(size_class);
  }
  void return_empty_runs() noexcept;
  std::size_t return_idle_cells() { return heap_.return_idle_cells(); }  // of caches, too; bytes

  // Growth. A plan is committed, rolled back, or both of nothing: as arena's.
  void place(arena::places p) { heap_.blocks_.place(p); }
  bool plan(std::size_t bytes, std::size_t alignment, arena::zone z, growth_plan& g, alias_view const& v, bool all) {
    return heap_.blocks_.plan(bytes, alignment, z, g, v, all);
  }
  std::size_t address_bytes() const noexcept;
  void add_region(region& r, state is) { heap_.blocks_.add_region(r, is); }
  void* commit(growth_plan&, alloc_request const&);  // Returns: the request's block
  void roll_back(growth_plan& g) noexcept { heap_.blocks_.roll_back(g); }
  // A handle that moved in was last used at that number of the home.
  void note_arrival(growth_plan& g, std::uint64_t freed) noexcept { heap_.blocks_.note_arrival(g, freed); }

  // Handles
  using handle_node = std::map<address, aliased_handle>::node_type;
  handle handle_at(address at) const { return heap_.handles_.at(at); }
  bool has_handle(aliased_handle const* h, address at) const noexcept;
  void leave_alias(alias_table&, address of_handle, address at);  // without access, mapped there all the same
  void list_made(region&, handle const&, handle_node) noexcept;
  void list_arrived(region&, handle_node) noexcept;  // it was detached elsewhere
  void enter_segment(region&, handle const&);        // Throws: bad_alloc, with no effect
  // The stamp of the free block around the handle; none: it is not wholly free
  std::optional<std::uint64_t> free_since(handle const&) noexcept;
  released reserve_around(handle const&);                      // Requires: free_since(). Throws: bad_alloc
  released reserve_unmapped(address from, std::size_t bytes);  // no place: not wholly in one unmapped block
  template <class Suits, class Complete>
  arena::taken_handle reserve_handle(std::size_t most, std::size_t enough, Suits suits, Complete complete) {
    return heap_.blocks_.reserve_handle(most, enough, suits, complete);
  }
  template <class Complete>
  arena::going reserve_handles(std::size_t want, arena::first which, Complete complete) {
    return heap_.blocks_.reserve_handles(want, which, complete);
  }
  void release(released const& r) noexcept { heap_.blocks_.release_done(*r.place); }  // its pages are unmapped
  struct detached {
    handle_node node;
    clock::stamp last;  // use of it here
  };
  detached detach(released const&) noexcept;            // it moves away; then vacated()
  void vacated(released const&) noexcept;               // its place: a graph's launches use it until the pool ends
  void forget_handle(region&, handle const&) noexcept;  // it was unmapped
  void keep_unusable(released&&) noexcept;              // without host memory its place stays taken until the end
  void keep_unusable(region&, handle const&);           // likewise, of a plan that was rolled back. Throws: bad_alloc
  std::vector<released> take_unusable() noexcept;
  handle_node detach_segment(address) noexcept;
  void attach_segment(region&, handle_node) noexcept;          // the driver did not take it
  void segment_gone(released const&, handle const&) noexcept;  // Requires: detach_segment()
  // At the end of the device's memory, whose blocks stay as they are: the lowest handle, forgotten here
  std::optional<handle> take_any_handle() noexcept;
  void log_mapping(std::size_t bytes, char const* what) const noexcept;
  // A block came free after that number of the home, without a stamp of it.
  bool came_unstamped_after(std::uint64_t number) const noexcept;
  clock::stamp newest_freed() const noexcept;  // no free block has a later stamp; stream: the home

  // Sleep
  void fall_asleep() noexcept;                  // its live blocks count as freed. Requires: nothing is pending
  void wake_up() noexcept;                      // Requires: its handles are mapped
  void put_asleep(address of_handle) noexcept;  // it was unmapped and released
  // Handles that sleep and are wholly free go. Returns: those that are mapped all the same, reserved.
  // Throws: bad_alloc; what has gone stays gone
  std::vector<released> drop_sleeping();
  void adopt(handle const& made) noexcept;  // in the place of the handles that slept there

  // Another stream or pool (heap_table). Requires: the table's lock, that no call is in it
  void move_to(memory_pool& p) noexcept { heap_.pool_.set(&p); }
  void move_to(clock::stream_clock& heir, std::uint64_t readers) noexcept;
  void free_left_behind() noexcept { heap_.free_left_behind(); }  // Requires: mapping_lock::exclusive

 private:
  static constexpr int fences_when_sought = 4;
  void split_sleeping();  // what sleeps has no memory, so that a handle with free pages may become pages
  base::biased_lock const hold_;
  std::size_t const before_;
};

// Keeps a heap with its stream and its pool after the lock is released; an ended pool's heap still leaves it.
class heap_stay {
 public:
  heap_stay() noexcept = default;
  explicit heap_stay(session const& in) noexcept : heap_(&in.heap()) { heap_->callers_.fetch_add(1); }
  heap_stay(heap_stay&& o) noexcept : heap_(std::exchange(o.heap_, nullptr)) {}
  heap_stay& operator=(heap_stay&& o) noexcept {
    std::swap(heap_, o.heap_);
    return *this;
  }
  ~heap_stay() {
    if (heap_)
      heap_->callers_.fetch_sub(1);
  }
  explicit operator bool() const noexcept { return heap_; }

 private:
  stream_heap* heap_ = nullptr;
};

}  // namespace weir::memory
