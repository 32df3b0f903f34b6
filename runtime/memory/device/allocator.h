// Device memory of one device: blocks are allocated for streams, and freed with stamps.
// Threads: any. These may wait on the host for device work: empty_cache; the out-of-memory ladder; a release
// of a segment; a free without host memory to note its users; in deterministic mode, the first allocation of
// a stream. A miss makes driver calls, which may block, too.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/clock/stream_clock.h"
#include "weir/stats.h"

namespace weir::memory {

class memory_pool;

struct block {
  void* base = nullptr;
  std::size_t bytes = 0;  // as requested
  int device = -1;        // -1: host
  memory_kind kind = memory_kind::device;
  clock::stream_clock* home = nullptr;  // null: host memory
  bool asleep = false;                  // with its pool
  memory_pool* pool = nullptr;          // that it lies in; null: host memory
};

// One contiguous range of mapped memory: its blocks and its free parts, side by side.
struct mapped_range {
  enum class use : std::uint8_t { live, pending, free };
  struct part {
    std::uintptr_t at = 0;
    std::size_t bytes = 0;      // of the slot or block
    std::size_t requested = 0;  // live
    use is = use::free;
  };
  std::uintptr_t at = 0;
  std::size_t bytes = 0;
  std::uint64_t stream = 0;   // the home of its heap
  bool slots = false;         // runs of slabs: small blocks
  std::uint64_t readers = 0;  // other devices that may use all of it, a bit each
  std::uint64_t pool = 0;     // number; 0: of none, or of one that has ended
  std::vector<part> parts;
};

class graph_hold;
class page_store;

class allocator {
 public:
  virtual ~allocator() = default;
  virtual int device() const noexcept = 0;

  // Zero bytes are valid and freeable. alignment 0: default_alignment (weir/memory.h).
  // Throws: invalid_use (alignment no power of two, size overflows), out_of_memory, device_lost, driver_error
  // From the pool that the calling thread entered, if any.
  virtual void* allocate(clock::stream_clock& home, std::size_t bytes, std::size_t alignment, source_location) = 0;
  // The same for weir's own use, in no pool: what a pool does must not reach it.
  virtual void* allocate_apart(clock::stream_clock& home, std::size_t bytes, source_location) = 0;
  // Null does nothing. Throws: invalid_use (foreign, interior, freed twice), naming what lies there instead;
  // nothing has changed then.
  virtual void deallocate(void*, clock::stream_clock* last_use, source_location) = 0;
  // The block is also used on `user`: its free takes that stream's stamp. Interior addresses are valid.
  virtual void record_use(void const*, clock::stream_clock& user, source_location) = 0;
  virtual void set_stream(void*, clock::stream_clock& home, source_location) = 0;
  virtual std::optional<block> find(void const*) const noexcept = 0;  // live blocks only; interior addresses too
  // For a copy, find() and record_use() in one: the live block around the address, marked for `user` unless
  // that is its home. bytes == 0: no block, or no host memory for the mark.
  struct range {
    void* base = nullptr;
    std::size_t bytes = 0;
  };
  virtual range use(void const*, clock::stream_clock& user) noexcept = 0;

  // Lets device `reader` use the block's memory as it is now. Grants whole handles. Idempotent.
  // Blocks: while a pool of the device wakes
  virtual driver::status grant(void const*, int reader) = 0;
  virtual bool granted(void const*, int reader) const noexcept = 0;
  // Opens all memory of that stream, null: of every stream, present and future, to these devices, a bit each.
  // A handle is open from when it is mapped. Idempotent. After a refusal only earlier calls hold, and some
  // handles may be open.
  virtual driver::status open_to(clock::stream_clock* home, std::uint64_t readers) = 0;
  // Ends open_to() of that stream alone; what is open stays open. Makes no driver call.
  virtual void forget_own_readers(clock::stream_clock& home) noexcept = 0;
  virtual std::uint64_t readers(clock::stream_clock& home) = 0;  // devices that it is open to, without its own

  // Call before work that may wait for other ranks. A fence behind that work would come too late for memory
  // freed before it, so the fence is recorded now. None is recorded if nothing was freed since the last one,
  // or if no other stream has memory. At most one event record.
  virtual void fence_what_came_free(clock::stream_clock& home) noexcept = 0;

  virtual std::size_t empty_cache() = 0;          // Blocks: until freed blocks are complete. Returns: bytes released
  virtual void return_idle() noexcept = 0;        // options::device_idle; from time to time, else does nothing
  virtual void set_limit(std::size_t bytes) = 0;  // 0: none
  // A pool serves the threads that entered it (thread_caches::enter). limit: reserved bytes; 0: none
  virtual memory_pool& make_pool(std::string name, std::size_t limit) = 0;  // Throws: bad_alloc
  // Makes the pool's one handle, of the limit rounded up. Throws: as allocate, invalid_use (a captured stream),
  // not_supported (no mapped memory)
  virtual memory_pool& make_registered_pool(std::string name, std::size_t limit, clock::stream_clock& home,
                                            source_location) = 0;
  struct whole_pool {
    std::uintptr_t at = 0;
    std::size_t bytes = 0;
  };
  virtual whole_pool whole(memory_pool const&) const = 0;  // of a registered one: where its handle is
  // The program's object ends, and guards of the pool have no effect. Its blocks stay. Free memory of it serves others
  // once nothing holds it.
  virtual void end_pool(memory_pool&) noexcept = 0;
  virtual void let_go(memory_pool&) noexcept = 0;  // a registration ends
  // Writes what lives in the pool to the store, takes it, and gives the pages to the device; null: drops the bytes.
  // Refused: the pool is awake, its bytes are intact, and the store is the caller's. given: bytes. No effect if it is
  // asleep. Blocks: until work on the pool is complete, and is saved.
  virtual driver::status sleep(memory_pool&, std::unique_ptr<page_store>&&, std::size_t& given) = 0;
  // Maps pages at the same addresses, fills them, and ends the store. Refused: the pool is asleep, and its bytes are
  // in the store. No effect if it is awake. Throws: out_of_memory. Blocks: until it is filled
  virtual driver::status wake(memory_pool&, source_location) = 0;
  virtual bool is_asleep(memory_pool const&) = 0;  // Blocks: while a pool of the device falls asleep or wakes
  virtual std::size_t free_pages() = 0;            // bytes that a pool could map, when all work is complete
  virtual pool_memory_use use_of(memory_pool const&) const = 0;
  virtual std::vector<pool_memory_use> by_pool() const = 0;  // without what no pool holds
  // What graphs with that memory hold on this device; all zero: nothing. Free memory in it counts as cached.
  virtual pool_memory_use use_of_graphs(graph_hold const&) = 0;
  virtual memory_statistics statistics() const = 0;
  virtual memory_report report() const = 0;  // present state, nothing requested
  // Why there is no room for that many bytes outside of the limit, in handles that others may open.
  virtual memory_report why_no_room(std::size_t requested, std::size_t rounded, driver::status last) = 0;
  virtual void count_ran_out() noexcept = 0;             // of such a request
  virtual std::vector<mapped_range> layout() const = 0;  // by address; each heap at one moment
  virtual std::vector<stream_memory_use> by_stream() const = 0;
  virtual weir::headroom headroom(clock::stream_clock const& home) const = 0;  // as weir/memory.h says
  virtual void reset_peak() = 0;
  virtual void reset_accumulated() = 0;
  // the invariants that do not hold, by name; empty: all hold
  virtual std::vector<std::string> validate() const = 0;
};

// A block that is freed at its end.
struct frees_block {
  allocator* of;
  void operator()(void* block) const noexcept {
    try {
      of->deallocate(block, nullptr, source_location::current());
    } catch (...) {}
  }
};
using scoped_block = std::unique_ptr<void, frees_block>;
inline scoped_block allocate_scoped(allocator& m, clock::stream_clock& home, std::size_t bytes, source_location at) {
  return {m.allocate_apart(home, bytes, at), {&m}};
}

// true: something was freed, search again. No lock is held
using ladder_callback = bool (*)(void* state, memory_report const&);
// Puts pools to sleep when memory runs out, and wakes them for allocations from them.
struct pool_spiller {
  virtual ~pool_spiller() = default;
  virtual bool make_room(memory_report const&) = 0;  // true: search again. Requires: no lock is held
  // False: the pool is not its. Throws: out_of_memory, device_lost, driver_error. Requires: no lock is held
  virtual bool wake(memory_pool&, source_location) = 0;
};
}  // namespace weir::memory
