// Page-locked host memory that copy engines read and write:
// pooled, reused when the copies that used it are complete.
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
  // Blocks: until the work that its blocks were marked for is done.
  // Blocks still held keep their pages, and are reported.
  ~pinned_memory();

  // Zero bytes are valid and freeable. alignment 0: natural, and never less than a cache line.
  // A ladder: what is free, first what lies near the current device; what has become complete; new pages, if
  // the limit lets them; idle pages of other shapes given back first; a bounded wait for what is pending.
  // Throws: out_of_memory (report().on is cpu), invalid_use. Blocks:
  // a moment, when the limit or the host leaves no room
  void* allocate(std::size_t bytes, std::size_t alignment, source_location);
  // the same for who knows which device will copy it; natural alignment
  void* allocate_near(int device, std::size_t bytes, source_location);
  int node_near(int device) noexcept;                        // of the host's nodes; -1: not known
  // The host may be given this memory again once every stream it was marked for has passed its stamp
  // (completion, not order). A stream of a lost device never passes: its engine may still write, so that
  // memory is held back (counted as pending).
  // Throws: invalid_use (foreign, interior, freed twice); nothing has changed then
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
  // used by work given to that stream; interior addresses are fine
  void mark(void const*, clock::timeline& user) noexcept;
  void mark(void const*, clock::stamp) noexcept;            // the same for work up to an exact stamp
  // The same for who copies again and again: the block that holds those bytes, kept in `mine`, and then its
  // use by that stream. Null: none does.
  pinned_spot const* look(void const*, std::size_t bytes, std::uint64_t stream, pinned_uses& mine) noexcept;
  // Requires: s is of the stream it was looked up for
  static void mark(pinned_spot const& at, clock::stamp s) noexcept {
    if (at.last->n.load(base::memory_order_relaxed) < s.n) at.last->n.raise(s.n);
  }
  std::optional<memory::block> find(void const*) const noexcept;
  bool reserves(void const*) const noexcept;                 // the pool's memory, handed out or not
  bool owns(void const*, std::size_t bytes) const noexcept;  // all of the range lies in one live block
  // Pages whose blocks were all unused for that long go back at some later allocate, which then waits for the
  // work of all devices, but for collectives: while some are under way none go. 0: never.
  // As it begins: options::pinned_idle.
  void let_idle_go_after(std::int64_t ns);
  // for machines that do not say on which node of the host a device is. Requires: no allocate yet
  void lies_near(int device, int node) noexcept;
  std::size_t trim();                                   // gives what is complete and unused back to the system, bytes
  memory_statistics statistics() const;
  void reset_peak();
  void reset_accumulated();
  std::vector<std::string> validate() const;            // what of the invariants does not hold; empty: all hold

  // The pool of this process whose memory that is, handed out or not; null: none.
  static pinned_memory* owner(void const*) noexcept;

 private:
  static constexpr int current_device = -1;
  void* hand_out(int device, std::size_t bytes, std::size_t alignment, source_location);
  void* find_room(int device, std::size_t bytes, std::size_t alignment, source_location);
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace weir::streams
