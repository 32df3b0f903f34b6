// A contiguous range of addresses that belongs to one arena, and the handles that are mapped there.
// Threads: the arena's lock guards all but `base`, `bytes`, `owner`.
//
// Invariant: every page of a region has exactly one handle, or none; a handle's pages are all its own.
#pragma once
#include <memory>

#include "runtime/base/sync.h"
#include "runtime/memory/blocks/address.h"
#include "runtime/memory/blocks/block_table.h"
#include "runtime/memory/blocks/sparse_array.h"

namespace weir::memory {

class lowest_fit;
class opening_index;
class stream_heap;
struct alias;

// Physical memory: one create, or one segment.
// It is mapped whole, at the one place that is its home, and at its aliases (alias_table.h).
struct handle {
  driver::memory_handle physical = driver::memory_handle::none;  // none: a segment
  address at = 0;  // its home. Written also with the lock of the aliases held, where it has some
  std::size_t bytes = 0;
  std::uint64_t readers = 0;  // bit d: device d may use it. Without its own device's: unusable
  bool kept = false;          // at the end: something in it is still in use
  bool asleep = false;        // no page is mapped there until its pool wakes; `physical` is none
};
// One that may have aliases: what a stream's memory keeps.
struct aliased_handle : handle {
  alias* aliases = nullptr;              // the newest; with their lock
  base::single_writer<int> alias_count;  // changes with their lock; any thread may read it
};

class alignas(64) region {
 public:
  region(address base, std::size_t bytes, std::size_t page_bytes, stream_heap* owner);
  ~region();
  address const base;
  std::size_t const bytes;
  std::size_t const page_bytes;
  base::atomic<stream_heap*> owner;
  heap_block* first = nullptr;  // the block at `base`
  address runs;  // from here on runs of slabs, which live long, lie apart from blocks; the end: they lie among them

  static constexpr std::size_t large_pages = 2;
  std::size_t const large_bytes = large_pages * page_bytes;
  // free blocks below `runs` of so many bytes and more. Null: a segment, or terabytes
  std::unique_ptr<lowest_fit> large;
  std::unique_ptr<opening_index> rooms;  // below `runs`. Null: as above, or no block was placed by it yet

  handle* page(address a) const noexcept { return pages_[(a - base) >> page_shift_]; }
  std::size_t page_index(address a) const noexcept { return (a - base) >> page_shift_; }
  void set_pages(handle const& where, handle* value) noexcept;
  block_table table;

 private:
  int const page_shift_;
  sparse_array<handle*> pages_;
};

}  // namespace weir::memory
