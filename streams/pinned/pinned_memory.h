// Page-locked host memory for copy engines: pooled, and reused after the copies that used it are complete.
// Threads: any.
//
// Invariant: reserved = allocated + pending + cached, in bytes.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/memory/device/device_memory.h"
#include "streams/pinned/use_cache.h"

namespace weir::streams {

class pinned_memory {  // a part of the runtime
 public:
  explicit pinned_memory(runtime::impl&);
  // Blocks: until the work on its blocks is done. Live blocks keep their pages and are reported.
  ~pinned_memory();

  // Zero bytes are valid and freeable. alignment 0: natural, at least a cache line. Tried in order: free
  // memory (near the current device first), newly completed memory, new pages within the limit, the same
  // after idle pages are returned, a bounded wait for pending memory.
  // Throws: out_of_memory (report().on is cpu), invalid_use. Blocks: briefly, if there is no room
  void* allocate(std::size_t bytes, std::size_t alignment, source_location at) {
    return allocate_for("allocate", current_device, bytes, alignment, at);
  }
  static constexpr int current_device = -1;
  // The same near the device that will copy it, for that operation of the program
  void* allocate_for(std::string_view operation, int device, std::size_t bytes, std::size_t alignment, source_location);
  // For weir's own use, near the device that will copy it; natural alignment. Null: no room. Asks no callback.
  // why: then says why
  void* try_near(int device, std::size_t bytes, memory_report* why, source_location);
  void count_ran_out() noexcept;       // of a try_near whose caller fails
  int node_near(int device) noexcept;  // NUMA node; -1: unknown
  // The block is reused after every stream it was marked for has completed its stamp (order is not enough). A
  // lost device may still write: its blocks are never reused, and count as pending.
  // Throws: invalid_use (foreign, interior, freed twice); then nothing has changed
  void deallocate(void*, source_location);
  struct frees_block {
    pinned_memory* of;
    void operator()(void* block) const noexcept {
      try {
        of->deallocate(block, source_location::current());
      } catch (...) {}
    }
  };
  using scoped_block = std::unique_ptr<void, frees_block>;  // freed at its end
  scoped_block allocate_scoped(std::size_t bytes, source_location at) { return {allocate(bytes, 0, at), {this}}; }
  // Marks the block as used by work on that stream; accepts interior addresses
  void record_use(void const*, clock::stream_clock& user) noexcept;
  void record_use(void const*, clock::stamp) noexcept;  // as used by work up to that stamp
  // For repeated copies: the block with those bytes and its use by that stream, cached in `mine`. Null: none.
  pinned_spot const* look(void const*, std::size_t bytes, std::uint64_t stream, pinned_uses& mine) noexcept;
  // Requires: s is a stamp of the stream given to look()
  static void record_use(pinned_spot const& at, clock::stamp s) noexcept {
    if (at.last->n.load(base::memory_order_relaxed) < s.n)
      at.last->n.raise(s.n);
  }
  std::optional<memory::block> find(void const*) const noexcept;
  bool reserves(void const*) const noexcept;  // memory of the pool, live or not
  // How long pages stay unused before a later allocate returns them, which waits for all work of all devices.
  // None are returned while collectives are in progress. 0: never. Default: options::pinned_idle.
  void let_idle_go_after(std::int64_t ns);
  // For machines that do not report a device's NUMA node. Requires: no allocate yet
  void lies_near(int device, int node) noexcept;
  std::size_t trim();  // returns complete, unused memory to the system; bytes
  memory_statistics statistics() const;
  std::vector<std::string> validate() const;  // violated invariants; empty: none
  std::uint64_t runtime_id() const noexcept;

  // The pool in this process that has this memory, live or not; null: none.
  static pinned_memory* owner(void const*) noexcept;

 private:
  struct state;
  struct attempt {  // that found no room
    std::vector<recovery_step> steps;
    driver::status last;
  };
  void* hand_out(int device, std::size_t bytes, std::size_t alignment, attempt&, source_location);
  void* find_room(int device, std::size_t bytes, std::size_t alignment, attempt&, source_location);
  std::unique_ptr<state> state_;
};

}  // namespace weir::streams
