// Device memory of one device: blocks handed out to streams and taken back with stamps.
// Threads: any. These block on device work: empty_cache, the last rungs of the out-of-memory ladder, and a free that
// has no host memory to note its users. A miss blocks while a driver call does.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/clock/stream_clock.h"
#include "weir/stats.h"

namespace weir::memory {

struct block {
  void* base = nullptr;
  std::size_t bytes = 0;  // as requested
  int device = -1;        // -1: host
  memory_kind kind = memory_kind::device;
  clock::timeline* home = nullptr;  // null: host memory
};

// What lies in one stretch of memory that is held of the driver, without a hole:
// its blocks and what is free, side by side.
struct mapped_range {
  enum class use : std::uint8_t { live, pending, free };
  struct part {
    std::uintptr_t at = 0;
    std::size_t bytes = 0;      // the slot, or the piece
    std::size_t requested = 0;  // live
    use is = use::free;
  };
  std::uintptr_t at = 0;
  std::size_t bytes = 0;
  std::uint64_t stream = 0;   // whose allocations draw from it
  bool slots = false;         // runs of slabs: small blocks
  std::uint64_t readers = 0;  // other devices that may use all of it, a bit each
  std::vector<part> parts;
};

class allocator {
 public:
  virtual ~allocator() = default;
  virtual int device() const noexcept = 0;

  // Zero bytes are valid and freeable. alignment 0: natural (weir/memory.h).
  // Throws: invalid_use (alignment not a power of two,
  // size that overflows), out_of_memory, device_lost, driver_error
  virtual void* allocate(clock::timeline& home, std::size_t bytes, std::size_t alignment, source_location) = 0;
  // Null does nothing. Throws: invalid_use (foreign, interior, freed twice),
  // naming what it is instead; nothing has changed then.
  virtual void deallocate(void*, clock::timeline* last_use, source_location) = 0;
  // The block is also used on that stream: freeing it takes that stream's stamp. Interior addresses are fine.
  virtual void mark(void const*, clock::timeline& user, source_location) = 0;
  virtual void set_stream(void*, clock::timeline& home, source_location) = 0;
  virtual std::optional<block> find(void const*) const noexcept = 0;  // live blocks only; interior addresses too
  // Both in one look, for a copy: the live block that the address lies in, marked for that stream unless it
  // is its home. bytes == 0: there is none, or no memory to note the mark.
  struct range {
    void* base = nullptr;
    std::size_t bytes = 0;
  };
  virtual range use(void const*, clock::timeline& user) noexcept = 0;

  // `reader` may use the block's memory as it stands. Grants whole handles. Idempotent.
  virtual driver::status grant(void const*, int reader) = 0;
  virtual bool granted(void const*, int reader) const noexcept = 0;
  // All memory of that stream, null: of every stream, now and to come, is open to these devices, a bit each:
  // each handle from when it is mapped. Idempotent. Of what is refused nothing holds from then on but what
  // did, and handles that were opened on the way.
  virtual driver::status open_to(clock::timeline* home, std::uint64_t readers) = 0;
  // open_to() of that stream alone is over; what is open stays open. No driver call
  virtual void forget_own_readers(clock::timeline& home) noexcept = 0;
  virtual std::uint64_t readers(clock::timeline& home) = 0;  // whom that stream's memory is open to, but its own device

  // Call before work that may wait for other ranks. A fence behind that work would come too late for memory that
  // was freed before it, so the fence is recorded now. None is recorded where nothing came free since the last
  // one, or where no other stream has memory. At most one event record.
  virtual void fence_what_came_free(clock::timeline& home) noexcept = 0;

  virtual std::size_t empty_cache() = 0;  // bytes given back to the driver; what is complete or can be waited for
  virtual void set_limit(std::size_t bytes) = 0;  // 0: none
  virtual memory_statistics statistics() const = 0;
  virtual memory_report report() const = 0;              // of now, nothing requested
  virtual std::vector<mapped_range> layout() const = 0;  // by address; each stream's memory at one moment
  virtual std::vector<stream_memory_use> by_stream() const = 0;
  virtual void reset_peak() = 0;
  virtual void reset_accumulated() = 0;
  // what of the invariants does not hold, by name; empty: all hold
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
inline scoped_block allocate_scoped(allocator& m, clock::timeline& home, std::size_t bytes, source_location at) {
  return {m.allocate(home, bytes, 0, at), {&m}};
}

// true: something was freed, search again. No lock is held
using ladder_callback = bool (*)(void* state, memory_report const&);
}  // namespace weir::memory
