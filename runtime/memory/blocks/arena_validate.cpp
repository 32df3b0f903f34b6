// What must hold in an arena: its lists, its blocks by address, and its indexes tell the same.
// Threads: as arena.h.
#include "runtime/memory/blocks/arena.h"

#include <algorithm>

namespace weir::memory {

// One look at everything, and what was counted on the way.
class arena::audit {
 public:
  audit(arena const& of, std::vector<std::string>& wrong, std::string const& subject)
      : of_(of), wrong_(wrong), subject_(subject) {}

  void run() {
    of_.each_free([&](heap_block const& p) { look_at_listed(p); });
    look_at_unmapped(of_.unmapped_, false);
    look_at_unmapped(of_.unmapped_runs_, true);
    for (region const* r : of_.regions_)
      look_at_region(*r);
    look_at_spares();
    compare_counts();
  }

 private:
  void say(char const* what, address at) { wrong_.push_back(subject_ + ": " + what + " at " + std::to_string(at)); }

  void look_at_listed(heap_block const& p) {
    ++binned_;
    if (p.is != state::free)
      say("a bin holds a block that is not free", p.at);
    if (!is_unused(p))
      say("a free block has a home, a mark or a slab", p.at);
    if (p.freed > of_.newest_given_)
      say("a free block has a later stamp than the newest", p.at);
    if (p.leaf == heap_block::no_leaf && bins::bin_of(p.bytes) != p.bin)
      say("a free block is in the bin of another size", p.at);
    look_at_whole_handles(p);
  }

  // Until the next search a large block may be unsorted, and another one noted: its span is not known then.
  void look_at_whole_handles(heap_block const& p) {
    bool const concerned = whole_handle_index::concerns(p);
    bool const listed = p.sorted == heap_block::index_state::listed;
    auto const when_noted = is_large(p) ? heap_block::index_state::unsorted : heap_block::index_state::noted;
    if (concerned != (p.sorted != heap_block::index_state::no))
      say("the whole-handle index has the wrong state of a free block", p.at);
    std::size_t const span = listed ? p.span : 0;
    if (concerned && p.sorted != when_noted && span != bytes_whole(p))
      say("a free block has the wrong span of whole handles", p.at);
    spans_ += listed;
    unsorted_ += p.sorted == heap_block::index_state::unsorted;
  }

  void look_at_unmapped(bins const& list, bool of_runs) {
    list.each([&](heap_block const& g) {
      ++unmapped_listed_;
      if (g.is != state::unmapped || (g.at >= g.in->runs) != of_runs)
        say("the list of unmapped blocks holds another block, or one of the other part", g.at);
    });
  }

  void look_at_region(region const& r) {
    large_seen_ = 0;
    std::size_t large_listed = 0;
    if (r.large) {
      large_listed = r.large->validate(
          [&](std::size_t leaf) { say("a large free block is not listed at its first address, in leaf", leaf); });
    }
    address at = r.base;
    heap_block* before = nullptr;
    for (heap_block* p = r.first; p; p = p->after) {
      look_at_place(*p, before, at, r);
      look_at_state(*p, before, r);
      // What is reserved is about to get handles, or to lose them.
      if (p->is != state::reserved)
        look_at_handles(*p, r);
      at = p->end();
      before = p;
    }
    if (at != r.base + r.bytes)
      say("the last block does not end where the region ends", at);
    if (r.rooms)
      r.rooms->validate([&](char const* what, std::size_t where) { say(what, where); });
    if (large_seen_ != large_listed)
      say("the index by address has another number of large free blocks", r.base);
  }

  // at: where the block before it ends.
  void look_at_place(heap_block const& p, heap_block const* before, address at, region const& r) {
    if (p.at % bins::unit || p.bytes % bins::unit)
      say("a block does not begin and end at a multiple of the unit", p.at);
    if (p.at != at || p.before != before || p.in != &r || p.bytes == 0)
      say("a block does not begin where the block before it ends", p.at);
    if (before && before->at < r.runs && p.end() > r.runs && p.at < r.runs)
      say("a block lies on both sides of the start of the runs", p.at);
  }

  void look_at_state(heap_block const& p, heap_block const* before, region const& r) {
    bool const idle = p.is == state::free || p.is == state::unmapped;
    bool const large = p.is == state::free && is_large(p);
    free_seen_ += p.is == state::free;
    unmapped_seen_ += p.is == state::unmapped;
    large_seen_ += large;
    if (large != (p.leaf != heap_block::no_leaf))
      say("a large free block has no leaf, or another block has one", p.at);
    if (before && !apart(p) && before->is == p.is && idle)
      say("two neighbouring free or unmapped blocks were not merged", p.at);
    bool const entered = p.is == state::live || p.is == state::pending || p.is == state::slab;
    if (entered && (r.table.covering(p.at) != &p || r.table.covering(p.end() - 1) != &p))
      say("a block is not found by its addresses", p.at);
    if (!entered && r.table.covering(p.at))
      say("a block that is not in use is found by its address", p.at);
  }

  void look_at_handles(heap_block const& p, region const& r) {
    for (address a = p.at; a < p.end();) {
      handle const* const h = r.page(a);
      if ((h != nullptr) == (p.is == state::unmapped))
        say("an unmapped block has a handle, or another block has none", a);
      address next = round_down(a - r.base, r.page_bytes) + r.base + r.page_bytes;
      if (h)
        next = h->at + h->bytes;
      if (next <= a) {
        say("a handle ends before its page", a);
        return;
      }
      a = next;
    }
  }

  void look_at_spares() {
    if (!std::ranges::all_of(of_.spare_, [](heap_block const* p) { return is_spare(*p); }))
      say("a spare block node is in use or listed", 0);
  }

  void compare_counts() {
    if (unsorted_ != of_.whole_handles_.unsorted())
      say("the count of unsorted large blocks is wrong", 0);
    if (spans_ != of_.whole_handles_.listed())
      say("a block with whole handles is not in the whole-handle index", 0);
    if (binned_ != free_seen_ || binned_ != of_.free_blocks())
      say("a free block is in no bin", 0);
    if (unmapped_listed_ != unmapped_seen_)
      say("an unmapped block is not listed", 0);
  }

  arena const& of_;
  std::vector<std::string>& wrong_;
  std::string const& subject_;
  std::size_t binned_ = 0;      // blocks that a list of free ones has
  std::size_t free_seen_ = 0;   // by address
  std::size_t large_seen_ = 0;  // by address, in one region
  std::size_t unmapped_listed_ = 0;
  std::size_t unmapped_seen_ = 0;  // by address
  std::size_t spans_ = 0;          // free blocks with whole handles that the index lists
  std::size_t unsorted_ = 0;
};

void arena::validate(std::vector<std::string>& wrong, std::string const& subject) const {
  audit(*this, wrong, subject).run();
}

}  // namespace weir::memory
