// Frees a block.
// Threads: as free_path.h.
#include "runtime/memory/device/free_path.h"

#include <algorithm>
#include <optional>

#include "runtime/driver/allocation_observer.h"

namespace weir::memory {

// If the host has no memory to note the users, the free does not fail: the host waits for each user, so that
// nothing is left to note.
memory_pool* free_path::deallocate(void* p, clock::stream_clock* last_use, source_location at) {
  // A child has a copy of the parent's block: the parent's memory stays.
  if (!p || process_was_forked())
    return nullptr;
  streams_met so_far;
  for (;;) {
    try {
      outcome const before = take_back(p, last_use, at, so_far);
      if (before.ask) {
        ask(*before.ask, at);
        so_far.asked.push_back(before.ask);
      } else if (before.wait_for) {
        so_far.waited_for.push_back(before.wait_for);
        bool const done = of_.clocks.synchronize(before.wait_for->now()).ok();
        // Of a lost device nothing is allocated again, so its blocks need no wait.
        if (!done && !of_.lost())
          throw std::bad_alloc();
      } else {
        return before.drained;
      }
    } catch (std::bad_alloc const&) {
      if (so_far.waits)
        throw;
      so_far.waits = true;
    }
  }
}

template <class Do>
void free_path::each_stamp(session const& in, block_ref const& b, clock::stream_clock& its,
                           clock::stream_clock* last_use, std::uint64_t& since, Do act) const {
  stream_heap const& m = in.heap();
  clock::stream_clock& home = m.home();
  auto const add_stamp = [&](clock::stream_clock* t) {
    clock::stamp const s = t->now();
    if (t == &home)
      since = s.n;
    else
      act(s, *t);
  };
  // A capture may have recorded a use. On its own memory, the order inside says when that is over. Another block
  // stays with the graph, which may be launched at any time. Returns: whether it is the capture's own memory
  auto const add_inside = [&](clock::stream_clock& lane) {
    graph_pools::one const graph = graphs_.known(lane);
    bool const own = graph.pool == &m.pool();
    if (graph.pool)
      add_stamp(own ? &lane : graph.keeper);
    return own;
  };
  auto const add = [&](clock::stream_clock* t, bool is_last_use) {
    if (t->alive() == clock::life::captured)
      return (void)add_inside(*t);
    if (t->stands_for())
      t = t->stands_for();  // its capture is over, or it was set aside
    bool is_own = false;
    // A retired stream is in no capture.
    if (t->alive() != clock::life::retired) {
      if (clock::stream_clock* const lane = t->known_lane())
        is_own = add_inside(*lane);
    }
    // A last use is of now, and so inside the capture. A mark may be older than the capture.
    if (is_own && is_last_use)
      return;
    add_stamp(t);
  };
  if (m.is_asleep())
    return;  // all its work was complete before
  add(&its, false);
  b.each_user([&](clock::stream_clock* t) { add(t, false); });
  if (last_use)
    add(last_use, true);
}

clock::stream_clock* free_path::busy_user(session const& in, block_ref const& b, clock::stream_clock& its,
                                          clock::stream_clock* last_use, streams_met const& so_far) const {
  clock::stream_clock& home = in.heap().home();
  std::uint64_t since = 0;
  clock::stream_clock* found = nullptr;
  each_stamp(in, b, its, last_use, since, [&](clock::stamp s, clock::stream_clock& t) {
    bool const waited_for = std::ranges::find(so_far.waited_for, &t) != so_far.waited_for.end();
    if (!found && !waited_for && !of_.ordered_or_complete(home, s))
      found = &t;
  });
  return found;
}

// For a stream of which the driver did not say in which capture it is. If captured() gets an answer, the
// capture is spoiled, and nothing of it will run. If it is refused, too, this is a host function, which
// cannot ask at all.
void free_path::refuse_if_in_host_function(clock::stream_clock const& s, source_location at) {
  if (s.captured().is.what != driver::code::not_permitted)
    return;
  throw driver_error(0, "deallocate",
                     base::text("a block that the capture of stream ", s.id(), " of gpu:", s.device(),
                                " may use, in a host function, where CUDA lets no graph keep it"),
                     "Free it after the function has returned, or on another thread", at, error_id{465});
}

// Asks whether the stream is captured still. If it is, the pool of its capture is known from then on. Of a
// capture that is spoiled nothing will run, nor on a lost device. A graph that goes on and cannot keep the
// block would write freed memory at each launch.
// Throws: driver_error, bad_alloc
void free_path::ask(clock::stream_clock& s, source_location at) const {
  clock::stream_clock::stay const here(s);
  // A borrowed stream exists for sure while this call names it. A lane is no stream.
  bool const exists =
      here && (s.alive() != clock::life::borrowed || clock::named_in_call::is(s)) && s.alive() != clock::life::captured;
  driver::status answer;
  clock::stream_clock* lane = s.known_lane();  // unless the driver answers: as it was last seen
  if (exists) {
    auto const now = s.lane();
    answer = now.is;
    if (now.ok())
      lane = now.value;
  }
  // The stream has gone.
  if (answer.what == driver::code::invalid)
    return;
  if (lane && graphs_.known(*lane).pool)
    return;
  // In a host function, or the capture is spoiled.
  if (answer.what == driver::code::not_permitted)
    return refuse_if_in_host_function(s, at);
  if (!lane)
    return;
  try {
    (void)graphs_.of(*lane, at);
  } catch (invalid_use const&) {  // likewise
    refuse_if_in_host_function(s, at);
  } catch (device_lost const&) {
  } catch (driver_error const&) {
    // The handle of a borrowed stream that has ended names no stream, and a process that ends launches no graph.
    if (exists && !process_is_ending())
      throw;
  }
}

// One attempt to free a block: what is known of the block, and what it waits for. It outlives the session for
// record_fences() alone.
class free_path::attempt {
 public:
  attempt(free_path const& path, session& in, region& r, block_ref const& b, clock::stream_clock* last_use,
          thread_cache* cache)
      : of_(path.of_),
        path_(path),
        in_(in),
        region_(r),
        block_(b),
        home_(in.heap().home()),
        last_use_(last_use),
        cache_(cache) {
    its_ = &home_;
    if (!b.in_slab)
      its_ = b.block->home;
    else if (note_ && note_->home)
      its_ = note_->home;
  }

  // A user that is captured, as far as is known, and was not asked; null: there is none
  clock::stream_clock* one_to_ask(streams_met const& before) const {
    clock::stream_clock* to_ask = nullptr;
    each_user([&](clock::stream_clock* t) {
      // Of a lane whose capture is over: the stream.
      if (t->stands_for() && t->alive() == clock::life::retired)
        t = t->stands_for();
      if (t->seen_captured() && std::ranges::find(before.asked, t) == before.asked.end())
        to_ask = t;
    });
    return to_ask;
  }
  // Throws: bad_alloc, with nothing changed. Nothing after it does.
  void make_room() {
    std::size_t others = 0;
    each_user([&](clock::stream_clock const* t) { others += t != &home_; });
    std::size_t const most = 2 * (others + 1);  // with the keepers of graphs
    stamps_.reserve(most);
    to_fence_.reserve(most);
    in_.make_room(most);
  }
  clock::stream_clock* busy_user(streams_met const& before) const {
    return path_.busy_user(in_, block_, *its_, last_use_, before);
  }
  void announce(source_location at) const { path_.announce_free(in_, block_, *its_, last_use_, at); }
  // Collects the stamps that the home stream is not ordered behind.
  void note_uses() {
    path_.each_stamp(in_, block_, *its_, last_use_, since_, [&](clock::stamp s, clock::stream_clock const&) {
      if (std::find(stamps_.begin(), stamps_.end(), s) != stamps_.end())
        return;
      // In deterministic mode what is complete, and when, must decide nothing.
      if (!of_.deterministic && of_.ordered_or_complete(home_, s, since_))
        return;
      stamps_.push_back(s);
    });
  }
  void count_out() const {
    its_->note_block(-1);
    if (in_.heap().is_asleep())
      in_.count_awake(block_);
    if (of_.announced) [[unlikely]]
      of_.machine.block_given_back(block_.start);
  }
  bool has_to_wait() const noexcept { return !stamps_.empty(); }
  // With the thread's other frees that wait for the same one or two streams. False: not deferred
  bool defer() {
    // A block that waits for more, or has a note, becomes pending by itself.
    if (stamps_.size() > pending_queue::most_awaited || note_)
      return false;
    if (!cache_ || !block_.in_slab)
      return false;
    // in one order, whichever mark came first
    std::ranges::sort(stamps_, {}, &clock::stamp::stream);
    for (clock::stamp const s : stamps_) {
      clock::stream_clock* const user = clock::find(s.stream);
      bool const may = user && user->id() == s.stream &&
                       in_.heap().may_defer_free(region_, reinterpret_cast<void*>(block_.start), *user);
      if (!may) {
        to_fence_.clear();
        return false;
      }
      to_fence_.push_back(user);
    }
    deferred_frees::users const by{to_fence_.front(), to_fence_.size() > 1 ? to_fence_.back() : nullptr};
    bool const is_deferred = in_.defer(*cache_, block_, by, stamps_, is_due_);
    // No fence is due, or become_pending() lists them anew.
    if (!is_deferred || !is_due_)
      to_fence_.clear();
    return is_deferred;
  }
  void become_pending() {
    if (!is_due_)
      is_due_ = in_.fence_of_others_is_due(rounded_);
    for (clock::stamp const s : stamps_) {
      clock::stream_clock* const other = clock::find(s.stream);
      if (!other)
        continue;
      // A borrowed stream counts what is freed on it by itself.
      bool const is_due = other->alive() == clock::life::borrowed ? other->count_free(rounded_) : is_due_;
      if (is_due)
        to_fence_.push_back(other);
    }
    // The block also waits for its home. A borrowed one may be named by no call after the last user is done.
    if (home_.alive() == clock::life::borrowed) {
      bool const is_due_at_home = home_.count_free(rounded_);
      if (is_due_at_home)
        at_home_ = &home_;
    }
    in_.put_pending(block_, stamps_, since_);
  }
  void free_now() {
    in_.put_free(block_, cache_);
    // Both the heap and a borrowed stream count the free. Of a borrowed stream its own answer holds.
    bool const is_due_by_heap = in_.fence_at_home_is_due(rounded_);
    bool const is_borrowed = home_.alive() == clock::life::borrowed;
    bool const is_due = is_borrowed ? home_.count_free(rounded_) : is_due_by_heap;
    if (is_due) {
      at_home_ = &home_;
      in_.note_fence_at_home();
    }
  }
  // memory_statistics::fences counts fences for frees, and not those that a query or a wait records. Requires: no lock
  void record_fences() const {
    auto const fence = [&](clock::stream_clock& t) {
      if (t.alive() != clock::life::retired && t.fence().ok())
        of_.counts.fenced();
    };
    if (at_home_)
      fence(*at_home_);
    for (clock::stream_clock* const t : to_fence_)
      fence(*t);
  }

 private:
  template <class Do>
  void each_user(Do act) const {
    act(its_);
    block_.each_user(act);
    if (last_use_)
      act(last_use_);
  }

  device_context& of_;
  free_path const& path_;
  session& in_;
  region& region_;
  block_ref const block_;
  clock::stream_clock& home_;
  clock::stream_clock* const last_use_;
  thread_cache* const cache_;
  slab::note const* const note_ = block_.in_slab ? block_.in_slab->note_of(block_.index) : nullptr;
  clock::stream_clock* its_ = nullptr;  // the block's home
  std::size_t const rounded_ = block_.in_slab ? block_.in_slab->size : block_.block->bytes;
  // make_room() takes room for three streams beside the home without host memory.
  boost::container::small_vector<clock::stamp, 8> stamps_;
  boost::container::small_vector<clock::stream_clock*, 8> to_fence_;  // other than the home
  clock::stream_clock* at_home_ = nullptr;                            // the home, if a fence of it is due
  std::uint64_t since_ = 0;                                           // the home's own last use
  bool is_due_ = false;                                               // fences of the others
};

// 1. Who used the block? A stream that may be captured has to be asked, and no driver call is made under the lock.
// 2. Room to note what it waits for: the last that may throw. Nothing has changed so far.
// 3. It is deferred with other frees of its thread, becomes pending, or is free.
// 4. Fences that are due, three driver calls each, after the lock.
free_path::outcome free_path::take_back(void* p, clock::stream_clock* last_use, source_location at,
                                        streams_met const& before) {
  region* const r = of_.must_find(p, "deallocate", at);
  stream_heap& m = *r->owner.load();
  bool const used_elsewhere = last_use && last_use != &m.home();
  // A block that becomes pending by itself enters no cache. The cache is found before the heap's lock is
  // taken, for that may take the lock of the registry.
  thread_cache* cache = nullptr;
  if (!used_elsewhere || m.may_defer_free(*r, p, *last_use))
    cache = m.cache_here();
  outcome done;
  std::optional<attempt> now;
  {
    session in(m);
    now.emplace(*this, in, *r, must_start_at(in, p, r, at), last_use, cache);
    if (clock::stream_clock* const unasked = now->one_to_ask(before)) [[unlikely]]
      return {.ask = unasked};
    if (!before.waits)
      now->make_room();
    else if (clock::stream_clock* const busy = now->busy_user(before))
      return {.wait_for = busy};

    if (of_.runtime.observer()) [[unlikely]]
      now->announce(at);
    if (!before.waits)
      now->note_uses();
    now->count_out();
    if (!now->has_to_wait())
      now->free_now();
    else if (!now->defer())
      now->become_pending();
    // A sleeping pool counts the blocks that are left.
    if (m.is_asleep()) {
      bool const was_the_last = m.pool().free_asleep();
      if (was_the_last)
        done.drained = &m.pool();
    }
  }
  now->record_fences();
  return done;
}

block_ref free_path::must_start_at(session const&, void* p, region* r, source_location at) const {
  block_ref const b = of_.must_locate(p, r, "deallocate", at);
  if (b.start == reinterpret_cast<address>(p))
    return b;
  throw invalid_use("deallocate",
                    base::address_text(p) + " lies " + std::to_string(reinterpret_cast<address>(p) - b.start) +
                        " B inside the block at " + base::address_text(b.start),
                    "Free a block by the address that allocate returned: " + base::address_text(b.start), at,
                    error_id{159});
}

// Tells a checker the streams whose work comes before the block's next use. A sleeping block has none. From
// its marks the checker knows those that have ended.
void free_path::announce_free(session const& in, block_ref const& b, clock::stream_clock& its,
                              clock::stream_clock* last_use, source_location at) const {
  std::vector<driver::allocation_observer::user> users;
  bool const asleep = in.heap().is_asleep();
  auto const add = [&](clock::stream_clock const* t) {
    if (t && !asleep && t->alive() != clock::life::retired && !t->has_no_stream())
      users.push_back({t->device(), t->handle()});
  };
  add(&its);
  b.each_user(add);
  add(last_use);
  of_.runtime.observer()->freed(b.start, b.in_slab ? b.in_slab->requested(b.index) : b.block->requested, users, at);
}

void free_path::fence_what_came_free(clock::stream_clock& home) noexcept try {
  if (heaps_.index.size() < 2 || of_.lost())
    return;
  std::uint64_t const now = home.now().n;
  bool due = false;
  heaps_.each_of(home, [&](stream_heap& m) { due |= session(m).came_free_at(now); });
  if (due && home.fence().ok())
    of_.counts.fenced();
} catch (std::bad_alloc const&) {  // no fence: what other streams wait for includes the work to come
}

}  // namespace weir::memory
