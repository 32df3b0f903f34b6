// Pages that many streams share for their small blocks, so that a stream with a few KiB does not take a page.
// Threads: any. One heap's lock at a time, and no driver call under it.
//
// A pool has one heap for them, whose home is a clock without a stream: what is free there is complete. Each
// block names its own home. Freed, it is pending until that stream's work is complete, and meanwhile serves the
// next request of that stream alone.
//
// Invariant: a block of a shared heap that is free has no use that is not complete.
#pragma once
#include "runtime/memory/device/completion_poller.h"
#include "runtime/memory/supply/growth.h"

namespace weir::memory {

class page_sharing {
 public:
  page_sharing(device_context& of, heap_table& heaps, completion_poller& completion, growth& more)
      : of_(of), heaps_(heaps), completion_(completion), growth_(more) {}

  // Whether the small blocks of that stream come from shared pages now. A stream that took `busy` blocks gets
  // pages of its own, if the device has room for them. Throws: bad_alloc
  bool serves(memory_pool&, clock::stream_clock& home);
  // From mapped memory. Null: none is free. Throws: bad_alloc
  void* take(memory_pool&, alloc_request const&);
  // Queries the driver, then maps a page. Null: memory is short, or the pool fell asleep. Throws: bad_alloc
  void* take_after_a_miss(memory_pool&, alloc_request const&);

  static constexpr std::uint32_t busy = 64;          // blocks
  static constexpr std::size_t part_of_device = 64;  // of its memory, for pages of busy streams

 private:
  std::size_t most_with_pages() const noexcept;

  device_context& of_;
  heap_table& heaps_;
  completion_poller& completion_;
  growth& growth_;
};

}  // namespace weir::memory
