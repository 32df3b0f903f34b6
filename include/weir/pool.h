// weir/pool.h: parts of a device's memory with a name, a limit and numbers of their own.
// Threads: any. A guard belongs to one thread.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "weir/memory.h"

namespace weir WEIR_API {

struct pool_options {
  device on = gpu;   // the current device
  size_t limit = 0;  // bytes held from the driver, in whole pages (2 MiB on GPUs); 0: none
  // For communicator::register_pool. The pool takes its limit at once, in one handle that other processes may map,
  // and keeps it. It does not sleep, and its limit stays.
  bool registered = false;
};

enum class sleep_to : std::uint8_t { host, nowhere };  // nowhere: the contents are dropped

// Blocks allocated from a pool have pages to themselves. Free pages of a pool serve the whole device, so a
// pool keeps nothing back: empty_cache() returns them, and other allocations may take them.
// Frees need no pool: a block returns to the pool it came from.
class pool {
 public:
  // Makes no driver call but the first of its device, unless it is registered. Throws: invalid_use (no name, cpu),
  // device_lost, driver_error; if registered, also invalid_use (no limit, in a capture), out_of_memory,
  // not_supported (a device that maps no memory)
  explicit pool(std::string name, pool_options = {}, source_location = source_location::current());
  // Live blocks stay valid, and belong to no pool from then on; of a sleeping pool they can only be freed. A pool
  // that a communicator registered keeps its memory and blocks until that communicator ends.
  // Ends before its runtime, or has no effect.
  ~pool();
  pool(pool&&) noexcept;
  pool& operator=(pool&&) noexcept;

  std::string const& name() const noexcept;
  weir::device device() const noexcept;
  std::uint64_t number() const noexcept;  // unique in the process; memory_segment::pool
  size_t limit() const noexcept;
  // With a limit below what the pool holds, the pool keeps that memory and grows no more. Throws: invalid_use (a
  // registered pool)
  void set_limit(size_t bytes, source_location = source_location::current());
  pool_memory_use statistics(source_location = source_location::current()) const;

  // As weir::allocate, from this pool. Throws also: out_of_memory that names the pool and its limit
  void* allocate(size_t bytes, size_t alignment = default_alignment,
                 source_location = source_location::current()) const;
  void* allocate(stream_ref, size_t bytes, size_t alignment = default_alignment,
                 source_location = source_location::current()) const;

  // Writes what lives in the pool to pinned host memory, or drops it, and gives its pages to the device.
  // Blocks keep their addresses. Until wake() they can be freed; launches and copies that name them, and
  // allocations from the pool, are refused, but under a spill. No effect if it is asleep. Returns: bytes
  // given back; once a driver call is refused, the pages that are left stay mapped
  // Blocks: until all work on the pool is complete, and written. Requires: no graph uses the pool's blocks
  // Throws: out_of_memory (of the host), not_supported (a device that maps no memory), invalid_use (a registered
  // pool), device_lost, driver_error: the pool is awake then, and unchanged
  size_t sleep(sleep_to = sleep_to::host, source_location = source_location::current());
  // Brings it back at the same addresses, on other pages; dropped bytes are arbitrary. No effect if awake.
  // Blocks: until the bytes are there. Throws: out_of_memory, device_lost, driver_error: it sleeps on, whole
  void wake(source_location = source_location::current());
  bool is_asleep() const noexcept;

 private:
  friend class communicator;
  friend class pool_guard;
  friend class spill;
  struct state;
  state& usable(char const* operation, source_location) const;  // Throws: invalid_use
  std::unique_ptr<state> state_;
};

// While it lives, this thread allocates from the pool on the pool's device: with torch.cuda.use_mem_pool(). A
// later guard on that device replaces it while that one lives. Guards may end in any order, on their thread;
// one that ends on another thread stays in force. After the end of its pool a guard has no effect.
class [[nodiscard]] pool_guard {
 public:
  explicit pool_guard(pool const&, source_location = source_location::current());  // Throws: invalid_use, bad_alloc
  ~pool_guard();
  pool_guard(pool_guard const&) = delete;

 private:
  std::uint64_t thread_ = 0, number_ = 0;
};

struct spill_options {
  // Their free memory is taken before the host's, in this order, if the links between pass their tests.
  std::vector<device> neighbours = {};
};

// While it lives, its pools sleep and wake by themselves. When memory of their device runs out, and waiting gave
// none, those not used for longest sleep, as few as make room. The next launch, copy, fill or allocation that needs
// sleeping ones wakes them together, and may put others to sleep. It throws out_of_memory if there is no room, and
// enqueues nothing; every pool is awake or asleep then, and whole.
// Use: by a launch, copy or fill. A pool stays awake while it is used, and for good once a capture or a collective
// has named it. Nothing wakes inside the callable of a launch.
// Requires: other work on the pools' memory is declared to launch(); neither a spill nor one of its pools ends
// inside the callable of a launch
// Blocks, when memory is short: until work on a pool is complete, and until launches and copies of other threads
// that use it, or that began before the spill, are enqueued
class [[nodiscard]] spill {
 public:
  // The pools may end before it. Blocks: the first time, for tests of links.
  // Throws: invalid_use (a pool of another spill, a registered one), out_of_memory, device_lost, driver_error
  explicit spill(std::vector<pool*> const&, spill_options = {}, source_location = source_location::current());
  ~spill();  // what sleeps stays asleep, until pool::wake()
  spill(spill const&) = delete;

 private:
  struct state;
  std::unique_ptr<state> state_;
};

// Returns the pools of a device, and what ended ones left.
std::vector<pool_memory_use> memory_by_pool(weir::device = gpu, source_location = source_location::current());

}  // namespace weir
