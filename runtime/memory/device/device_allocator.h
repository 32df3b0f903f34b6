// The allocator of one device: composes address space, arenas, slabs and pending blocks;
// it calls, they decide.
// Threads: any. One lock a stream's memory, never two at once, and no driver call under any of them.
//
// Invariant: charged = bytes of handles + bytes of growth under way + bytes the driver would not take back
// yet.
#pragma once
#include <cstddef>
#include <unordered_map>

#include "runtime/base/call_site.h"
#include "runtime/driver/allocation_observer.h"
#include "runtime/memory/blocks/arena.h"
#include "runtime/memory/blocks/pending_queue.h"
#include "runtime/memory/device/allocator.h"
#include "runtime/memory/heap/heap_index.h"
#include "runtime/memory/heap/thread_cache.h"
#include "runtime/memory/space/mapping_lock.h"
#include "runtime/observe/device_counters.h"
#include "runtime/observe/history.h"

namespace weir::memory {

class device_allocator;

inline constexpr std::size_t largest_alignment = 2 << 20;  // bytes

// What one stream's allocations draw from.
class stream_memory {
 public:
  stream_memory(device_allocator& a, lenders& all, clock::timeline& t)
      : in(a), streams(all), number(all.size()), way(thread_table::way_of(&t)), home(&t), home_held(t.hold()) {}
  device_allocator& in;
  lenders& streams;                      // all of the device's
  std::size_t const number;              // among them
  std::size_t const way;                 // where threads find their cache of it by a slab
  // guards all below, and changes of `home`: numbers of stamps belong to the home read with it
  mutable base::owned_mutex lock;
  base::atomic<clock::timeline*> home;
  std::shared_ptr<void const> home_held;  // so that no other stream has that object
  arena pieces;
  slabs small;
  pending_blocks pending;
  std::map<address, homed_handle> handles;  // by place
  // mapped without access, because the driver refused all else; tried again when memory goes back
  std::vector<released> unusable;
  std::size_t freed_since_fence = 0;   // bytes that are free at home
  base::atomic<unsigned> borrowed{0};  // blocks of other streams since it last got pages, or was refused some for that
  int sought = 0;                      // so many fences at home still come soon: another stream looked for memory here
  int quiet = 0;                       // so many of them nobody looked for since
  std::size_t held_since_fence = 0;    // bytes that wait for others, who were not fenced since
  observe::tally counts;
  std::vector<thread_cache*> caches;   // of threads, with small blocks of this memory
  // The only one of them, where this memory is its device's only one. Its thread may write `counts` inside
  // its own calls; everybody else shuts it before, which section does.
  thread_cache* sole = nullptr;
  void hear() noexcept;                  // what `sole` has not told. Requires: sole, the lock
  void caches_changed() noexcept;        // Requires: the lock
  void share(observe::shared_levels&) noexcept;  // Requires: the lock
  observe::lent_slots lent_before;       // what caches counted that are gone
  std::size_t open_bytes = 0;            // of handles that other devices may use
  lenders::rows listed = 0;              // among the device's, as what may have something for others
  // other devices that each handle is open to, a bit each.
  // More while traffic is halted, fewer at any time: changed under making_
  base::atomic<std::uint64_t> readers{0};

  lenders::rows to_be_listed() const noexcept;  // as heap_index.h says. Requires: the lock
  void list() noexcept {                        // likewise
    if (lenders::rows const now = to_be_listed(); now != listed) streams.list(number, std::exchange(listed, now), now);
  }
  // Frees on a foreign stream are fenced at once, so its memory has no caches.
  bool cacheable() const noexcept { return home.load(base::memory_order_acquire)->alive() != clock::life::foreign; }
};
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
static_assert(sizeof(base::owned_mutex) == 72 && offsetof(stream_memory, lock) == 32 && offsetof(stream_memory, home) == 104);
static_assert(offsetof(stream_memory, pieces) == 128);
#pragma GCC diagnostic pop

// Holds a stream's memory, hears what its one cache has not told, counts the free pieces that come and go
// meanwhile, and lists it by what it has then.
class section {
 public:
  explicit section(stream_memory& m) : hold_(m.lock), memory_(m), before_(m.pieces.free_pieces()) {
    if (m.sole) m.hear();
  }
  ~section() {
    if (memory_.pieces.free_pieces() != before_)
      memory_.counts.free_pieces(static_cast<std::int64_t>(memory_.pieces.free_pieces()) -
                                 static_cast<std::int64_t>(before_));
    memory_.list();
  }

 private:
  base::owned_lock hold_;
  stream_memory& memory_;
  std::size_t const before_;
};

struct request {
  clock::timeline& home;
  std::size_t bytes;        // as asked
  std::size_t alignment;
  int size_class;           // -1: a block of the arena
  std::size_t rounded;      // bytes of the slot or block
  here at;
};

class callbacks;

class device_allocator final : public allocator {
 public:
  device_allocator(weir::runtime::impl&, int device, callbacks&, here const& = here::current());
  ~device_allocator() override;

  int device() const noexcept override { return device_; }
  void* allocate(clock::timeline&, std::size_t, std::size_t, here) override;
  void deallocate(void*, clock::timeline*, here) override;
  void mark(void const*, clock::timeline&, here) override;
  void rebind(void*, clock::timeline&, here) override;
  std::optional<block> find(void const*) const noexcept override;
  range use(void const*, clock::timeline&) noexcept override;
  driver::status grant(void const*, int) override;
  bool granted(void const*, int) const noexcept override;
  driver::status open_to(clock::timeline*, std::uint64_t) override;
  void forget_own_readers(clock::timeline& home) noexcept override;
  void fence_what_came_free(clock::timeline& home) noexcept override;
  std::uint64_t readers(clock::timeline& home) override { return memory_of(home).readers.load(); }
  std::size_t empty_cache() override;
  void set_limit(std::size_t bytes) override { counts_.set_limit(bytes); }
  memory_statistics statistics() const override;
  memory_report report() const override;
  std::vector<mapped_range> layout() const override;
  std::vector<stream_memory_use> by_stream() const override;
  void reset_peak() override;
  void reset_accumulated() override;
  std::vector<std::string> validate() const override;
  void note_lost() noexcept override { note({driver::code::lost}); }
  bool lost() const noexcept { return clocks_.lost(device_); }
  void leave(stream_memory&, thread_cache&) noexcept;  // the cache's thread ends, or the memory does

  address_space const& addresses() const noexcept { return space_; }
  // Bytes of the handles that can neither be moved nor given back now: they hold a byte that is live,
  // pending, of a slab's run or not known to be complete, are granted to other devices, or are on their way
  // to a block. Looks at everything.
  std::size_t covered() const;
  std::size_t reserved() const { return counts_.reserved(); }  // bytes, with those charged for handles yet to be made
  // Blocks, pieces and streams looked at so far for the sake of reuse, but for blocks that it found.
  std::uint64_t steps() const noexcept { return steps_.load(base::memory_order_relaxed); }

 private:
  // A block found by one of its addresses, with its memory's lock held.
  struct located {
    stream_memory* in = nullptr;
    piece* whole = nullptr;     // the block, or the run
    slab* cut = nullptr;
    std::uint32_t index = 0;
    address start = 0;
    bool live = false;
  };

  stream_memory& memory_of(clock::timeline&);
  stream_memory& find_memory(clock::timeline&);
  stream_memory* inherit(clock::timeline& heir);  // Requires: making_
  void ask_the_retired();                         // whether their work is complete, so that they can be inherited
  std::vector<stream_memory*> memories() const;
  // The memories that may have so much for a block of `mine`, some of many: others another time.
  template <class Enough>
  void lenders_for(stream_memory const& mine, std::size_t bytes, std::size_t most, Enough enough) const {
    std::size_t left = most;
    streams_.some(lenders::at_least(bytes), streams_.size() > most ? turn_.load(base::memory_order_relaxed) : 0,
                  [&](stream_memory& m) {
                    if (&m == &mine || !may_lend(m, mine)) return false;
                    return enough(m) || --left == 0;
                  });
  }
  std::vector<observe::tally const*> tallies() const;
  // to the history, if somebody asks for it
  void tell_mapped(stream_memory const&, handle const&, observe::action) const noexcept;
  // the driver gave it: counted and told. Requires: the lock, and of note_unmapped
  void note_mapped(stream_memory&, handle const&) noexcept;
  void note_unmapped(stream_memory&, handle const&) noexcept;  // it has it back
  void tell_held(observe::action, address, std::size_t bytes, std::uint64_t user) const noexcept;  // likewise
  void tell_freed(located const&, clock::timeline& home, clock::timeline* last_use, here) const;
  request describe(clock::timeline&, std::size_t bytes, std::size_t alignment, here) const;
  template <class Do>
  static void each_mark(located const& b, Do act) {  // each stream that it is marked for
    if (b.cut) return b.cut->each_mark(b.index, act);
    for (clock::timeline* const t : b.whole->marks) act(t);
  }
  static void unmark(located const& b, clock::timeline& user) noexcept {
    b.cut ? b.cut->unmark(b.index, user) : (void)std::erase(b.whole->marks, &user);
  }
  static located locate(region&, address) noexcept;
  located must_locate(void const*, region*, char const* operation, here) const;  // Requires: the region's lock
  region* must_find(void const*, char const* operation, here) const;
  range use_in(region&, address, clock::timeline&) noexcept;
  static range use_located(stream_memory&, region&, address, clock::timeline&) noexcept;  // Requires: the lock

  // Warm: Requires the lock of `mine`. Null: nothing mapped fits.
  void* warm(stream_memory& mine, request const&);
  void* warm_or_shed(stream_memory&, request const&);
  void* warm_anywhere(stream_memory& mine, request const&);
  void* hand_out(stream_memory& mine, piece&, request const&, clock::timeline* other_home);
  void* hand_out(stream_memory& mine, slabs::taken, request const&);
  void return_run(stream_memory&, slab&) noexcept;
  void run_gone(stream_memory&, std::size_t bytes) noexcept;  // to the counters
  std::size_t shed_cells(stream_memory&);  // bytes of its runs that are free pieces now. Requires: the lock
  void cut_run(stream_memory&, piece& run, int size_class);      // Throws: bad_alloc; the run is free again then
  void take_back(void*, clock::timeline* last_use, here);        // Throws also bad_alloc; nothing has changed then
  void forget_user(void*, clock::timeline&) noexcept;            // what that stream did with the block is complete
  // a stream for which that block would have to wait; null: none
  clock::timeline* busy_user(void*, clock::timeline* last_use) const noexcept;
  thread_cache* cache_of(stream_memory&) noexcept;            // Requires: no lock held
  void refill(stream_memory&, thread_cache&, int size_class) noexcept;
  void spill(stream_memory&, thread_cache&, int size_class) noexcept;
  // false: it is not to be. Requires: the lock, the cache's own thread
  bool open(stream_memory&, thread_cache&) noexcept;
  std::size_t empty(stream_memory&, thread_cache&) noexcept;  // bytes. Requires: shut
  std::size_t shut_and_empty(stream_memory&) noexcept;        // all threads' caches of it; bytes. Requires: the lock
  std::size_t empty_caches(stream_memory&);                   // of all threads, and sheds cells. Requires: no lock held
  std::size_t empty_outboxes(stream_memory&);                 // likewise: what is in them is pending then
  bool may_wait_in_outbox(region const&, void const*, clock::timeline const& user) const noexcept;
  // false: not by the outbox. Requires: as open()
  bool post(stream_memory&, thread_cache&, slabs::taken, clock::timeline& user, clock::stamp, bool& due) noexcept;
  // bytes. Requires: shut, or by its own thread; the lock
  std::size_t send_home(stream_memory&, thread_cache&) noexcept;
  slab& slab_of(cached_slot s) const noexcept {
    return *space_.find(reinterpret_cast<void const*>(s.at))->slab_at(s.at);
  }
  observe::lent_slots lent() const;
  memory_statistics counted() const;                            // statistics(), of what is settled

  friend void* allocate_large(thread_table const&, clock::timeline const*, std::size_t, std::size_t) noexcept;
  friend bool deallocate_large(thread_table const&, region const&, address) noexcept;

  // Cold (growth.cpp): more memory for `mine`.
  void* cold(stream_memory& mine, request const&);
  bool can_never_hold(std::size_t bytes) const;
  // Throws: out_of_memory, of a request that takes so many bytes of memory
  [[noreturn]] void refuse(request const&, std::size_t needs);
  [[noreturn]] void throw_out_of_memory(request const&, memory_report const&);
  // Throws: invalid_use, when the stream is captured
  void refuse_captured(clock::timeline& home, request const&) const;
  // no driver was asked: what is short is room to map at
  static constexpr driver::status no_addresses{driver::code::out_of_memory, -1};
  driver::status grow(stream_memory& mine, request const&, void*& out, std::size_t spare = 0);
  enum class run_length : std::uint8_t { usual, as_slabs_are_many };
  driver::status grow_by(stream_memory& mine, request const&, run_length, void*& out, std::size_t spare);
  bool has_room_for_long_run(stream_memory& mine, request const&);
  driver::status grow_segment(stream_memory& mine, request const&, void*& out);
  struct mapped {
    std::vector<handle> handles;             // made for it
    std::map<address, homed_handle> places;  // for them, and for those that were not made
    std::map<address, homed_handle> arrived; // that had their home elsewhere
    // one of them behind work that is ordered before the stream's next, perhaps not complete
    bool arrived_ordered = false;
    std::size_t charged = 0;   // bytes, of the handles made and of one that could not be mapped
    std::size_t orphaned = 0;  // bytes the driver would not take back: they stay charged
  };
  // Filling a window (growth_fill.cpp): makes handles while the bound allows it,
  // then moves free ones, then makes some all the same.
  class filling;
  driver::status fill(stream_memory& mine, growth&, std::size_t asked, mapped&);
  // Ghosts (handle_mover.cpp)
  struct onlooker;
  // Requires: its lock
  bool plan(stream_memory&, std::size_t bytes, std::size_t alignment, arena::part, growth&, bool thorough);
  // in the window: their handles come home, or they are unmapped
  driver::status lay_ghosts(stream_memory& mine, growth&, mapped&);
  bool come_home(stream_memory& mine, ghost&, mapped&);
  void leave_home(stream_memory& from, piece& place, std::map<address, homed_handle>::iterator, ghost* back, address to,
                  mapped&);
  driver::status move_home(stream_memory& from, released&, address to, mapped&);
  // all but so many of a handle's. Requires: no lock, its home reserved
  bool drop_ghosts(homed_handle const&, int spared);
  homed_handle const& homed(stream_memory&, handle const&) const;  // Requires: no lock, its home reserved
  // Requires: its lock
  void validate_ghosts(stream_memory const&, std::vector<std::string>& wrong, std::string const& who) const;
  bool is_complete(clock::stamp);                                // asks the driver when that is not known
  void undo(mapped&);
  // (1 + epsilon) x the most that was live, or will be in use with `asked` bytes more.
  // bytes, and blocks
  struct in_use { std::int64_t live = 0, most_of_one = 0, pending = 0, large = 0, large_blocks = 0; };
  in_use used() const;
  std::size_t most_reserved(in_use const&, std::size_t asked) noexcept;
  void release(driver::memory_handle, std::size_t bytes, mapped&);
  std::uint64_t own_bit() const noexcept { return std::uint64_t{1} << (device_ & 63); }
  // that other devices may use
  std::size_t open_bytes(handle const& h) const noexcept { return h.readers & ~own_bit() ? h.bytes : 0; }

  // Memory that is open to peers (peer_access.cpp)
  driver::status open_handles(stream_memory&, std::uint64_t readers);  // Requires: traffic is halted
  // they do not reach this device any more. Requires: no stream's lock held
  void forget_readers(std::uint64_t devices);
  std::uint64_t living(std::uint64_t devices) const noexcept;          // those that are not lost
  bool may_lend(stream_memory const& other, stream_memory const& mine) const noexcept {
    return (mine.readers.load() & ~other.readers.load()) == 0;
  }
  void note_readers(stream_memory&, handle&, std::uint64_t more) noexcept;  // Requires: its lock
  // likewise
  void validate_readers(stream_memory const&, std::vector<std::string>& wrong, std::string const& who) const;

  // Reuse (reuse.cpp): memory that is mapped and was used elsewhere, cheapest first. Null:
  // nothing, or the options forbid it.
  void* reuse(stream_memory& mine, request const&);
  // pages, instead of what others leave; with so many bytes past the bound's first term
  bool due_its_own(stream_memory& mine, request const&, std::size_t& spare);
  void* in_order_of_calls(stream_memory& mine, request const&);  // all there is of it when deterministic
  void* own_pending(stream_memory& mine, request const&);
  void* own_in_outboxes(stream_memory& mine, request const&);
  // ordered or known to be complete; no driver call
  void* from_others(stream_memory& mine, request const&, std::size_t at_most,
                    std::size_t most_lenders = ~std::size_t{0});
  void* behind_oldest(stream_memory& mine, request const&);  // a device wait for a recorded fence, instead of growth
  held_block const* worth_a_wait(stream_memory& mine, request const&);
  std::size_t settle(stream_memory&);                        // by what is known. Requires: its lock
  // what outboxes hold, for the peaks, before any block is pending no more. Requires: its lock
  static void note_waiting(stream_memory&) noexcept;
  // nobody uses it after the arena's stamp `freed`. Requires: its lock
  void settled(stream_memory&, held_block const&, std::uint64_t freed) noexcept;
  // asks the driver about so many fronts, then settles
  std::size_t poll_pending(stream_memory&, std::size_t questions = ~std::size_t{0});
  bool grows_for_what_waits(stream_memory const& mine, request const&);
  void settle_all_that_is_complete();                            // asks the driver
  std::size_t settle_what_is_known() const;                      // does not. Returns: bytes. Not in deterministic mode
  std::size_t poll_others(stream_memory& mine, request const&, std::size_t streams = ~std::size_t{0},
                          std::size_t most_lenders = ~std::size_t{0});
  enum class behind : std::uint8_t { already, waits, refused };
  behind put_behind(stream_memory& mine, clock::stamp);          // its home, on the device
  void* behind_waits(stream_memory& mine, request const&, std::size_t& gave);
  void* behind_own(stream_memory& mine, request const&, std::size_t& gave);
  bool wait_for_oldest(std::vector<clock::stamp> const& also);   // Blocks. false: nothing to wait for
  clock::stamp oldest_unknown(stream_memory&) const;  // of free pieces, not known to be complete. Requires: its lock
  void finish(stream_memory&);  // Blocks: until all that its blocks wait for is complete
  void finish_all();  // Blocks. Ensures: nothing waits, and all that is free is known to be complete
  static constexpr std::size_t fence_least = 16 << 20;           // bytes given back between two fences
  std::size_t fence_after(stream_memory const& m, int halvings) const noexcept {  // of what it holds
    return fence_every_ ? fence_every_
                        : std::max(fence_least, static_cast<std::size_t>(m.counts.bytes_mapped()) >> halvings);
  }
  // What nobody looks for is fenced half as often each time, down to a sixteenth.
  std::size_t fence_at_home_after(stream_memory const& m) const noexcept {
    return fence_after(m, m.sought ? 5 : 0) << (fence_every_ ? 0 : std::min(m.quiet, 4));
  }
  // a witness, that the wait was for these bytes
  void tell_wait(stream_memory& mine, clock::stamp, address at, std::size_t bytes) const;
  void step(std::size_t n) noexcept { steps_.fetch_add(n, base::memory_order_relaxed); }

  // Out of memory (oom_ladder.cpp)
  void* ladder(stream_memory& mine, request const&, driver::status why);
  std::size_t return_handles(std::size_t want);                  // complete and wholly free ones, to the driver
  std::size_t return_handles_of(stream_memory&, std::size_t want);
  std::size_t release(stream_memory&, released&);
  std::size_t release_segment(stream_memory&, released&);
  std::size_t return_orphans();

  // Is all that s stands for done, or ordered before what `by` is given next?
  bool passed(clock::timeline& by, clock::stamp s) const { return clocks_.complete(s) || by.covers(s); }
  bool passed(clock::timeline& by, clock::stamp s, std::uint64_t& since) const {
    if (clocks_.complete(s)) return true;
    if (!by.covers(s)) return false;
    since = by.now().n;  // others may rely on it only behind `by`
    return true;
  }
  void note(driver::status s) noexcept {  // of a call that names this device alone; the clocks note theirs
    clocks_.note(device_, s);
  }

  weir::runtime::impl& runtime_;
  driver::driver& machine_;
  clock::clocks& clocks_;
  int const device_;
  bool const announced_;                                   // options::announce_blocks
  callbacks& callbacks_;
  address_space space_;
  double const epsilon_;
  bool const polls_;                                       // options::poll_on_miss
  bool const deterministic_;
  options::wait_policy const waits_;
  std::size_t const fence_every_;                          // bytes; 0: as fence_after() says
  base::atomic<std::size_t> turn_{0};                      // which streams a miss asks, where there are many
  base::atomic<std::uint64_t> steps_{0};
  base::atomic<std::size_t> most_live_{0};                 // bytes, ever: no reset of peaks touches it
  static constexpr std::size_t enough_to_judge = 32;       // pages: with less every program passes its bound
  // as in address_space::holdings; taken back when an emptied cache leaves too little to judge
  base::single_writer<bool> past_bound_;
  observe::counters counts_;
  // held over the driver's call: two grants of one handle at once are refused (208). No allocation needs it
  base::mutex granting_;
  traffic traffic_;
  mutable base::mutex making_;                             // guards the three below
  std::uint64_t readers_ = 0;                              // whom memory of a stream that comes is open to
  std::vector<std::unique_ptr<stream_memory>> memories_;
  std::unordered_map<std::uint64_t, stream_memory*> by_stream_;
  lenders streams_;                                        // all of memories_
  std::array<base::atomic<stream_memory*>, 64> recent_{};  // by stream id: where to look first
  ghosts ghosts_;
  base::guarded<std::vector<handle>> orphans_;             // unmapped, but the driver would not take them back yet
};

// The user's callbacks for the last but one rung.
// Threads: any. No lock is held while one runs;
// remove() returns when nobody runs it any more, but for the calling thread itself.
class callbacks {
 public:
  std::uint64_t add(ladder_callback, void* state, int order);
  void remove(std::uint64_t) noexcept;
  // In order; true: one of them freed something. Not again from inside a callback:
  // an allocation made there fails plainly.
  bool call(memory_report const&);

 private:
  struct entry {
    std::uint64_t id;
    int order;
    ladder_callback run;
    void* state;
  };
  struct caller {
    std::uint64_t thread, in;  // the id of the callback it runs; 0: between two
  };
  base::mutex lock_;
  base::condition done_;
  std::vector<entry> all_;                // under lock_
  std::vector<caller> running_;           // under lock_
  std::uint64_t next_ = 1;                // under lock_
};

std::string hex(void const*);
std::string hex(address);

}  // namespace weir::memory
