// Reads one device's memory: statistics, reports, layout and invariants.
// Threads: any. One heap's lock after the other. Changes peaks, reclaims what is known to be complete, and
// shuts thread caches (layout(), by_stream(), headroom(), validate()); changes nothing else.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "runtime/memory/device/allocator.h"
#include "runtime/memory/supply/handle_mover.h"
#include "runtime/memory/supply/peer_access.h"

namespace weir::memory {

class memory_audit {
 public:
  memory_audit(device_context& of, heap_table& heaps, handle_mover const& mover, peer_access const& peers,
               physical_memory const& memory)
      : of_(of), heaps_(heaps), mover_(mover), peers_(peers), memory_(memory) {}

  memory_statistics statistics() const;
  memory_statistics counted() const;  // statistics(), without reclaiming first
  memory_report report() const;
  std::vector<mapped_range> layout() const;
  std::vector<stream_memory_use> by_stream() const;
  weir::headroom headroom(clock::stream_clock const& home, memory_pool const&) const;  // as weir/memory.h says
  pool_memory_use use_of(memory_pool const&) const;
  std::vector<pool_memory_use> by_pool() const;
  void add_pool(memory_report&, memory_pool const&) const;  // the pool that the request was for
  // What a stream could be given if all work were done. Of blocks in the arena. Examines everything.
  struct room {
    // Addresses between two blocks in use. Its ends may lie in handles that stay; what lies between may be mapped anew.
    struct opening {
      std::size_t head = 0, between = 0, tail = 0;  // bytes

      std::size_t all() const noexcept { return head + between + tail; }
      // With so many bytes of handles that serve any place. grows: those may be mapped between the ends.
      std::size_t largest(std::size_t anywhere, bool grows) const noexcept;
      std::size_t ends() const noexcept;                     // bytes of what serves a block with no page more
      std::size_t lacks(std::size_t bytes) const noexcept {  // that have to be mapped for a block. Requires: <= all()
        return std::min(between, bytes - std::min(bytes, std::max(head, tail)));
      }
    };
    struct place {
      stream_heap* in;
      arena::zone part;
      std::vector<opening> openings;
      std::size_t largest = 0;  // bytes of one block there

      std::size_t lacks(std::size_t bytes) const noexcept;  // the least of its openings. Requires: bytes <= largest
    };
    std::size_t anywhere = 0;  // bytes of handles without a byte in use, and of those that may be made
    std::size_t ends = 0;      // bytes of free ranges of a granule and more, in handles that stay
    std::vector<place> places;
    bool limited = false;       // by the limit, not by what the device has left
    bool pool_is_full = false;  // by the pool's limit, not by either
    struct partly_free {
      address at;
      std::size_t bytes, free;
    };
    std::vector<partly_free> stays;  // handles with a byte in use
  };
  // Names the cause of a request that all recovery steps left without memory. Null: no room was looked for.
  void explain(memory_report&, room const*, memory_pool const&) const;
  // mine: null, if the stream has no memory in that pool; it would be open to `readers` then
  // when_over: the memory of graphs that are ending counts as free
  enum class graphs : std::uint8_t { as_they_are, when_over };
  room look_for_room(stream_heap const* mine, memory_pool const&, graphs = graphs::as_they_are,
                     std::uint64_t readers = 0) const;
  std::vector<std::string> validate() const;
  // Bytes of unreclaimable handles: a byte is live, pending, of a slab's run or not known to be complete, or
  // the handle is granted to other devices, or in transit to a block. Examines everything.
  std::size_t unreclaimable() const;
  std::vector<stream_memory_use::waiting> unfinished() const;  // freed memory by the stream that still uses it
  // kept: by free bytes of its handles, else by live bytes. Empty without a history
  // only: blocks of that pool; null: all
  std::vector<memory_report::holder> lines_that_hold(room const* kept, memory_pool const* only) const;
  void reset_peak();
  void reset_accumulated();

 private:
  memory_cause cause_of(memory_report&, room const*) const;
  // Whether work in progress has what is wanted, or else the driver refused what there is. none: neither
  memory_cause cause_by_work(memory_report&, room const*) const;

  device_context& of_;
  heap_table& heaps_;
  handle_mover const& mover_;
  peer_access const& peers_;
  physical_memory const& memory_;
};

}  // namespace weir::memory
