// An arena is the address-ordered list of the larger blocks of one stream's heap. A large block gets the
// lowest mapped range that fits, a smaller one the tightest. Growth maps the fewest pages. Under a limit the
// place comes first, and pages follow (arena::places).
// Threads: the caller holds the lock of the stream_heap that owns it. Makes no driver call.
//
// Invariant (heap_block.h): region = live + pending + slab + free + reserved + unmapped; every byte outside unmapped
// and reserved is mapped.
#pragma once
#include <algorithm>
#include <deque>
#include <limits>
#include <string>
#include <vector>

#include "runtime/base/rule.h"
#include "runtime/memory/blocks/alias_table.h"
#include "runtime/memory/blocks/opening_index.h"
#include "runtime/memory/blocks/whole_handle_index.h"

namespace weir::memory {

// A range of free and unmapped blocks, held as one reserved block while it is mapped without the lock.
struct growth_plan {
  heap_block* reserved = nullptr;
  address block = 0;                   // address of the block to come
  std::size_t bytes = 0;               // of the block
  std::vector<address_range> missing;  // to map: whole pages, in order
  std::vector<alias*> aliases;         // inside: each is switched back, or unmapped, before `missing` is mapped
  std::uint64_t freed = 0;             // newest free stamp inside
  std::size_t missing_bytes = 0;
  bool is_clear = false;         // no alias lies inside any more: `missing_bytes` is final
  std::size_t spare = 0;         // bytes that may be reserved past the bound's first term
  std::int64_t live_before = 0;  // bytes, of all streams
  bool run = false;              // for a slab's run
  bool by_openings = false;      // the place was chosen before its pages (arena::places)
};

// Handles to be released to the driver, and the reserved block that holds their addresses.
struct released {
  heap_block* place = nullptr;
  region* in = nullptr;
  std::vector<handle> handles;
};

class arena {
 public:
  static constexpr std::size_t most_bytes = std::size_t{1} << 46;  // of one block, far above any device
  arena() = default;                                               // Throws: bad_alloc
  // Where a block of the home goes. mapped: into mapped memory that is free, if any is large enough.
  // openings: a block of `large_pages` and more to where the fewest pages come into use, so that little is
  // lost at the ends of blocks; a smaller one into the lowest opening.
  enum class places : std::uint8_t { mapped, openings };
  void place(places);                                          // Throws: bad_alloc
  bool places_first() const noexcept { return by_openings_; }  // not by what is mapped
  arena(arena const&) = delete;

  // From mapped memory, for the home. Null: nothing fits, or the place for it is not mapped.
  // Ensures: live, bytes a multiple of bins::unit.
  heap_block* take(std::size_t bytes, std::size_t alignment) noexcept(false);
  // For a slab's run: in the part for runs, if any. Ensures, for these three functions: reserved, until a
  // slab or release_done() takes it.
  heap_block* take_run(std::size_t bytes, std::size_t alignment) {
    return reserve_in((has_runs_ ? runs_ : free_).find(bytes, room_for{bytes, alignment}), bytes, alignment);
  }
  heap_block* take_run_anywhere(std::size_t bytes, std::size_t alignment) {
    return reserve_in(find_anywhere(bytes, alignment), bytes, alignment);
  }
  // When no run of `below` bytes is free: a run of whole cells with as many slots as a smaller free block has
  // room for. Never among blocks. Null: none has room for one slot.
  heap_block* take_short_run(std::size_t below, std::size_t alignment, std::size_t slot_bytes) {
    if (!has_runs_)
      return nullptr;
    // From its first aligned address to the end of its last whole cell; 0: that lies before it.
    auto const usable_bytes = [&](heap_block const& p) {
      address const end = round_down(p.end(), cell);
      return end - std::min(round_up(p.at, alignment), end);
    };
    heap_block* found = nullptr;
    runs_.look_down(
        below,
        [&](heap_block& p) {
          if (usable_bytes(p) < slot_bytes)
            return false;
          found = &p;
          return true;
        },
        looks_at_spans);
    if (!found)
      return nullptr;
    std::size_t const slots = std::min(usable_bytes(*found), below) / slot_bytes;
    return reserve_in(found, round_up(slots * slot_bytes, cell), alignment);
  }
  // From either part, for when memory is short.
  heap_block* take_anywhere(std::size_t bytes, std::size_t alignment) {
    heap_block* const found = find_anywhere(bytes, alignment);
    return found ? carve(found, round_up(found->at, alignment), bytes) : nullptr;
  }
  // As take(), from free blocks that `may` accepts. A block of `large_pages` and more gets the lowest free
  // block that is large enough, so that free memory gathers above. A smaller one gets the tightest, so that
  // it splits no free block that a large one may need.
  template <class May>
  heap_block* take_if(std::size_t bytes, std::size_t alignment, May may) {
    auto const fits = [&](heap_block const& p) { return round_up(p.at, alignment) + bytes <= p.end() && may(p); };
    heap_block* found = nullptr;
    if (is_for_large(bytes)) {
      found = lowest(bytes, fits);
      // Wherever a block of so many bytes begins, an aligned place in it is large enough.
      if (!found && alignment > bins::unit)
        found = lowest(bytes + alignment, fits);
    } else {
      found = tightest(bytes, fits);
    }
    return found ? carve(found, round_up(found->at, alignment), bytes) : nullptr;
  }
  // Ensures: the block is free, merged with its neighbours, and stamped (home, freed); do not use it again.
  void give(heap_block&, std::uint64_t freed) noexcept;
  // For part of a slab's run; the rest stays the slab's. Returns: the rest behind it, or null.
  // Throws: bad_alloc, before anything changes.
  heap_block* give_part(heap_block& run, address from, std::size_t bytes, std::uint64_t freed) {
    stock(2);
    heap_block* rest = nullptr;
    if (run.end() > from + bytes) {
      rest = split(run, from + bytes);
      rest->in_slab = run.in_slab;  // split() does not copy it
    }
    heap_block* const gone = from > run.at ? split(run, from) : &run;
    give(*gone, freed);
    return rest;
  }

  // Adds addresses: all unmapped or, for a segment, all free.
  void add_region(region&, state);
  void drop_region(region&) noexcept;  // Requires: one free or unmapped block
  enum class zone : std::uint8_t { blocks, runs };
  // Reserves the range of that part that lacks the fewest bytes; an alias that is switched back counts almost
  // nothing. False: no range is large enough. Without `thorough`, also: none of those examined is.
  bool plan(std::size_t bytes, std::size_t alignment, zone, growth_plan&, alias_view const& = {}, bool thorough = true);
  bool fits_mapped(std::size_t bytes) const noexcept { return most_for_blocks() >= bytes; }  // or nearly
  bool has_runs() const noexcept { return has_runs_; }  // some region has a part for runs
  heap_block* commit(growth_plan&);                     // Requires: the block's range is mapped. Ensures: live
  heap_block* commit_run(growth_plan&);                 // As commit. Ensures: as take_run
  // What moved in was last used at that number. If the plan is rolled back, it is free with this stamp.
  void note_arrival(growth_plan&, std::uint64_t freed) noexcept;
  // Pages without a handle are unmapped again, the rest is free.
  void roll_back(growth_plan& g) noexcept { end_reservation(*g.reserved); }

  // Reserves whole handles of free blocks whose free stamp is `complete`, one reserved block in each, until
  // `want` bytes are found. Afterwards call release_done(): pages without a handle are unmapped, the rest is free.
  // Requires: if `which` is lowest, all stamps are complete.
  struct going {
    std::vector<released> all;
    std::uint64_t waits_for = 0;  // the next free stamp to complete before more can be released; 0: no more
  };
  enum class first : std::uint8_t { oldest, lowest };
  template <class Complete>
  going reserve_handles(std::size_t want, first which, Complete complete) {
    going out;
    std::size_t found = 0;  // bytes
    auto const is_last = [&](heap_block& p) {
      if (found >= want)
        return true;
      if (!complete(p.freed)) {
        out.waits_for = p.freed;
        return true;
      }
      // Without host memory for more, what is reserved already is released anyway.
      return !reserve_whole_handles(p, want, found, out.all);
    };
    if (which == first::oldest)
      sorted().oldest(is_last);
    else
      sorted().lowest(is_last);
    return out;
  }
  // Reserves one whole handle that `suits`, of a free block whose free stamp is `complete`: the largest of at
  // most `most` bytes, else the smallest. Examines the smallest blocks, until a handle has `enough` to `most`
  // bytes; if none suits, the oldest blocks. No place: none may be taken; waits_for is the oldest's stamp.
  struct taken_handle {
    released from;
    std::uint64_t waits_for = 0;
  };
  template <class Suits, class Complete>
  taken_handle reserve_handle(std::size_t most, std::size_t enough, Suits suits, Complete complete) {
    best_handle<Suits> found{most, suits};
    // Blocks then go to low places: the highest handle is needed last.
    if (places_first())
      look_from_above(found, complete);
    if (!found.best)
      look_at_the_smallest(found, enough, complete);
    taken_handle out;
    if (!found.best)
      out.waits_for = look_at_the_oldest(found, complete);
    if (!found.best)
      return out;
    handle const& best = *found.best;
    out.from = released{nullptr, found.from->in, {best}};
    out.from.place = reserve(*found.from, best.at, best.at + best.bytes);
    return out;
  }
  // For a change of the handles under blocks that stay as they are. The lists go by the whole handles of a
  // block, and are made anew. Requires: `act` does not throw
  template <class Do>
  void change_handles(Do act) {
    // By address: a walk of the lists would change what it walks.
    auto const each_free_block = [&](auto change) {
      each_block([&](heap_block& p) {
        if (p.is == state::free)
          change(p);
      });
    };
    each_free_block([&](heap_block& p) { delist(p); });
    act();
    each_free_block([&](heap_block& p) { enlist(p); });
  }
  // Null: the range does not lie wholly in one free block or, for reserve_unmapped(), in one unmapped block.
  heap_block* free_around(handle const& h) noexcept { return sorted().around(h); }
  heap_block* reserve_around(handle const& h) {
    heap_block* const p = sorted().around(h);
    return p ? reserve(*p, h.at, h.at + h.bytes) : nullptr;
  }
  heap_block* reserve_unmapped(address from, std::size_t bytes);
  void release_done(heap_block& place) noexcept { end_reservation(place); }

  std::vector<region*> const& regions() const noexcept { return regions_; }
  template <class Do>
  void each_block(Do act) const {  // of each region from its first address up
    for (region const* r : regions_) {
      for (heap_block* p = r->first; p; p = p->after)
        act(*p);
    }
  }
  std::size_t free_blocks() const noexcept { return listed_; }
  std::size_t largest_free() const noexcept;
  // bytes; no search. No free block outside the part for runs is larger, and for most_free() none at all.
  std::size_t most_for_blocks() const noexcept {
    std::size_t most = free_.at_most();
    for (region const* r : regions_) {
      if (r->large)
        most = std::max(most, r->large->at_most());
    }
    return most;
  }
  std::size_t most_free() const noexcept { return std::max(most_for_blocks(), runs_.at_most()); }
  std::uint64_t looked_at() const noexcept { return looked_at_; }  // blocks, by plans
  template <class Do>
  void each_free(Do act) const {
    free_.each(act), runs_.each(act);
    each_large(act);
  }
  // The smallest free blocks outside the part for runs that may hold `bytes`.
  template <class Do>
  void some_free(std::size_t bytes, int looks, Do act) const {
    auto const act_on = [&](heap_block& p) {
      act(p);
      return false;
    };
    // look() answers up to looks + 1: then no large one is looked at.
    int const left = looks - free_.look(bytes, act_on, looks);
    for (heap_block* p : large_by_size(
             left, [&](heap_block const&q) { return q.bytes >= bytes; },
             [](heap_block const*a, heap_block const*b) { return a->bytes < b->bytes; }))
      act(*p);
  }
  template <class Do>
  void any_free(int looks, Do act) const {  // up to `looks` of each part, and of the large ones
    auto const act_on = [&](heap_block& p) {
      act(p);
      return false;
    };
    free_.look(0, act_on, looks);
    runs_.look(0, act_on, looks);
    int left = looks;
    each_large(
        [&](heap_block& p) {
          if (left-- > 0)
            act(p);
        },
        lowest_fit::some_leaves);
  }
  std::uint64_t newest_given() const noexcept { return newest_given_; }  // no free block has a later free stamp
  void forget_stamps() {                                                 // Requires: all free blocks are complete
    each_free([](heap_block& p) { p.freed = 0; });
    newest_given_ = 0;
  }
  void validate(std::vector<std::string>& wrong, std::string const& subject) const;

 private:
  bool is_for_large(std::size_t bytes) const noexcept { return bytes >= large_from_; }
  // The lowest large free block of at least `bytes` that `fits` accepts; examines `looks` a region.
  template <class Fits>
  heap_block* lowest(std::size_t bytes, Fits fits, int looks = 32) const {
    for (region const* r : regions_) {
      if (!r->large)
        continue;
      // No two large blocks begin in one page.
      auto const next = [&](heap_block const& p) { return r->large->find(bytes, r->page_index(p.at) + 1); };
      int left = looks;
      for (heap_block* p = r->large->find(bytes); p && left-- > 0; p = next(*p))
        if (fits(*p))
          return p;
    }
    return nullptr;
  }
  struct room_for {
    std::size_t bytes, alignment;
    bool operator()(heap_block const& p) const noexcept { return round_up(p.at, alignment) + bytes <= p.end(); }
  };
  heap_block* find_anywhere(std::size_t bytes, std::size_t alignment) const {
    heap_block* const found = runs_.find(bytes, room_for{bytes, alignment});
    return found ? found : tightest(bytes, room_for{bytes, alignment});
  }
  heap_block* reserve_in(heap_block* found, std::size_t bytes, std::size_t alignment) {
    return found ? reserve(*found, round_up(found->at, alignment), round_up(found->at, alignment) + bytes) : nullptr;
  }
  // The tightest free block outside the part for runs.
  template <class Fits>
  heap_block* tightest(std::size_t bytes, Fits fits) const {
    if (heap_block* const p = free_.find(bytes, fits))
      return p;
    heap_block* best = nullptr;
    for (region const* r : regions_) {
      if (!r->large)
        continue;
      heap_block* const p = r->large->tightest(bytes, fits);
      if (p && (!best || p->bytes < best->bytes))
        best = p;
    }
    return best;
  }
  template <class Do>
  void each_large(Do act, std::size_t leaves = std::numeric_limits<std::size_t>::max()) const {
    for (region const* r : regions_)
      if (r->large)
        r->large->each(act, leaves);
  }
  // The large free blocks that `which` accepts, at most `most`: the first in the order of `before`, of equal
  // ones the lowest. Looks at `some_leaves` leaves of each region.
  template <class Which, class Before>
  std::vector<heap_block*> large_by_size(int most, Which which, Before before) const {
    std::vector<heap_block*> some;
    if (most <= 0)
      return some;
    each_large(
        [&](heap_block& p) {
          if (which(p))
            some.push_back(&p);
        },
        lowest_fit::some_leaves);
    if (some.empty())
      return some;
    auto const last = some.begin() + std::min<std::ptrdiff_t>(most, std::ssize(some));
    std::partial_sort(some.begin(), last, some.end(), [&](heap_block const* a, heap_block const* b) {
      bool const equal = !before(a, b) && !before(b, a);
      return equal ? a->at < b->at : before(a, b);
    });
    some.erase(last, some.end());
    return some;
  }
  // The index, once the large blocks are sorted. It sorts the others itself.
  whole_handle_index& sorted() noexcept {
    for (region const* r : regions_) {
      if (!r->large || !whole_handles_.unsorted())
        continue;
      r->large->each_from_the_lowest([&](heap_block& p) {
        if (p.sorted == heap_block::index_state::unsorted)
          whole_handles_.sort(p);
      });
    }
    return whole_handles_;
  }
  void stock(std::size_t blocks) {  // Throws: bad_alloc. Ensures: make() then allocates nothing
    if (spare_.size() < blocks) [[unlikely]]
      stock_up(blocks);
  }
  void stock_up(std::size_t blocks);
  heap_block* make(region&, address, std::size_t bytes, state) noexcept;  // Requires: stocked
  void link_after(heap_block& left, heap_block& right) noexcept;
  void link_before(heap_block& right, heap_block& left) noexcept;
  void absorb_next(heap_block& p) noexcept {  // merges the next block into this one
    heap_block* const gone = p.after;
    WEIR_RULE(gone->at == p.end(), "a block does not begin where the block before it ends");
    p.bytes += gone->bytes;
    p.freed = std::max(p.freed, gone->freed);
    p.after = gone->after;
    if (p.after)
      p.after->before = &p;
    WEIR_RULE(is_spare(*gone), "a spare block node is in use or listed");
    spare_.push_back(gone);
  }
  void absorb_previous(heap_block&) noexcept;
  heap_block* split(heap_block&, address);  // Returns: the right part, same state, in no list
  heap_block* reserve(heap_block& free, address from, address to);
  // One reserved block around the whole handles of `p`, as many as bring `found` to `want`. False: no host
  // memory for the list, and nothing is reserved.
  bool reserve_whole_handles(heap_block& p, std::size_t want, std::size_t& found, std::vector<released>& out);
  void end_reservation(heap_block&) noexcept;  // what is mapped becomes free, the rest unmapped
  heap_block* carve(heap_block* free, address at, std::size_t bytes);
  heap_block* cut_out(heap_block* free, address at, std::size_t bytes);  // as carve(), always inlined
  heap_block* take_chosen(std::size_t bytes, std::size_t alignment);
  struct chosen {
    heap_block* left = nullptr;  // the opening is behind it; null: none has room
    address at = 0;
  };
  template <class Suits>  // of suits(first block, at)
  chosen choose(std::size_t bytes, std::size_t alignment, Suits suits);
  template <class Suits>
  chosen choose_fewest(std::size_t bytes, std::size_t alignment, Suits suits);
  static opening_index* rooms_of(heap_block const& p) noexcept {
    return p.at < p.in->runs ? p.in->rooms.get() : nullptr;
  }
  // A block goes or comes between two others: the opening around its place opens or closes.
  static void open_around(heap_block& p) noexcept {
    if (opening_index* const openings = rooms_of(p))
      openings->open(p);
  }
  [[gnu::always_inline]] static void close_around(heap_block& p) noexcept {
    if (opening_index* const openings = rooms_of(p))
      openings->close(p);
  }
  void put_free(heap_block&) noexcept;  // merges and enlists
  void enlist(heap_block&) noexcept;    // by size or, if large, by address; and for the search for whole handles
  void delist(heap_block&) noexcept;
  void before_change(heap_block&) noexcept;  // before a listed block changes its range or its stamp
  void after_change(heap_block&) noexcept;
  void change_lists(heap_block&) noexcept;
  void change_large(heap_block&, bool was_large, bool is_now) noexcept;
  heap_block* carve_inside(heap_block& free, address at, std::size_t bytes) noexcept;  // Requires: stocked
  void know_first_region() noexcept {
    region const* const front = regions_.empty() ? nullptr : regions_.front();
    first_large_ = front ? front->large.get() : nullptr;
    large_from_ = first_large_ ? front->large_bytes : std::numeric_limits<std::size_t>::max();
    // Without openings in the first region, blocks go into mapped memory again.
    by_openings_ &= front && front->rooms;
  }
  // The largest handle of at most `most` bytes so far, else the smallest.
  template <class Suits>
  struct best_handle {
    std::size_t most;
    Suits& suits;
    handle const* best = nullptr;
    heap_block* from = nullptr;

    bool fits() const { return best && best->bytes <= most; }
    bool is_better(handle const& h) const {
      if (!best)
        return true;
      bool const h_fits = h.bytes <= most;
      if (h_fits && fits())
        return h.bytes > best->bytes;
      if (!h_fits && !fits())
        return h.bytes < best->bytes;
      return h_fits;
    }
    void look_inside(heap_block& p) {
      int looks = looks_inside;
      for (handle const* h = first_whole(p); h && looks-- > 0; h = next_whole(p, *h)) {
        if (is_better(*h) && suits(*h)) {
          best = h;
          from = &p;
        }
      }
    }
    void look_for_the_highest(heap_block& p) {  // the highest handle there that fits
      int looks = looks_inside;
      for (handle const* h = last_whole(p); h && !best && looks-- > 0; h = previous_whole(p, *h)) {
        if (h->bytes <= most && suits(*h)) {
          best = h;
          from = &p;
        }
      }
    }
  };
  template <class Suits, class Complete>
  void look_from_above(best_handle<Suits>& found, Complete& complete) {
    int left = looks_at_spans;
    sorted().highest([&](heap_block& p) {
      if (complete(p.freed))
        found.look_for_the_highest(p);
      --left;
      return found.best || left == 0;
    });
  }
  template <class Suits, class Complete>
  void look_at_the_smallest(best_handle<Suits>& found, std::size_t enough, Complete& complete) {
    auto const look = [&](heap_block& p) {
      if (complete(p.freed))
        found.look_inside(p);
      return found.fits() && found.best->bytes >= enough;
    };
    sorted().smallest(look, looks_at_spans);
  }
  // Returns: the stamp of the oldest block, if that is not complete. Requires: sorted() was called
  template <class Suits, class Complete>
  std::uint64_t look_at_the_oldest(best_handle<Suits>& found, Complete& complete) {
    std::uint64_t waits_for = 0;
    int left = looks_at_spans;
    whole_handles_.oldest([&](heap_block& p) {
      if (!complete(p.freed)) {
        waits_for = p.freed;
        return true;
      }
      found.look_inside(p);
      --left;
      return found.best || left == 0;
    });
    return waits_for;
  }
  static bool is_large(heap_block const& p) noexcept {
    return p.in->large && p.at < p.in->runs && p.bytes >= p.in->large_bytes;
  }
  void put_unmapped(heap_block&) noexcept;
  void insert_unmapped(heap_block& p) noexcept { unmapped_of(p).insert(p), unmapped_by_address_.insert(p); }
  void erase_unmapped(heap_block& p) noexcept { unmapped_of(p).erase(p), unmapped_by_address_.erase(p); }
  struct candidate {  // the best place so far; sizes in bytes
    address at = 0;
    std::size_t missing = ~std::size_t{0};  // to map
    std::size_t cost = ~std::size_t{0};     // of these, what no alias saves
    std::size_t ends = ~std::size_t{0};     // left free in its pages; 0: no free end saves a page
    std::size_t hole = ~std::size_t{0};     // of the idle blocks in a row there
    heap_block* first = nullptr;            // of the blocks around it; null: no place was found
  };
  struct search;
  candidate best_candidate(search&, zone) const;
  candidate chosen_candidate(search&);
  void reserve_candidate(candidate const&, std::size_t bytes, growth_plan&, alias_view const&);
  void list_idle(heap_block&) noexcept;  // free or unmapped
  void unlist_idle(heap_block&) noexcept;
  // Takes an idle block out of its list, but for what lies below `from`. Returns: the block from there on.
  // Requires: stocked
  heap_block* unlist_idle_from(heap_block&, address from) noexcept;
  class audit;  // of validate()

  static constexpr int looks_at_spans = 32, looks_inside = 64;
  static bool is_unused(heap_block const& p) noexcept {
    return !p.home && !p.in_slab && !p.requested && p.users.empty();
  }
  static bool is_spare(heap_block const& p) noexcept {
    return is_unused(p) && p.leaf == heap_block::no_leaf && p.sorted == heap_block::index_state::no;
  }
  // Whether the part for runs begins with it: it is never merged with the block before it.
  static bool apart(heap_block const& right) noexcept { return right.at == right.in->runs; }
  // Whether it begins and ends where its neighbours, or the region, end and begin.
  static bool is_in_place(heap_block const& p) noexcept {
    return p.bytes && (p.before ? p.before->end() == p.at && p.before->after == &p : p.at == p.in->base) &&
           (p.after ? p.end() == p.after->at && p.after->before == &p : p.end() == p.in->base + p.in->bytes);
  }
  // Whether no neighbour in its own part has the same state.
  static bool is_merged(heap_block const& p) noexcept {
    return (!p.before || p.before->is != p.is || apart(p)) && (!p.after || p.after->is != p.is || apart(*p.after));
  }
  static void check_place(heap_block const& p) noexcept {  // of one that is free or unmapped now
    WEIR_RULE(is_in_place(p), "a block does not begin where the block before it ends");
    WEIR_RULE(is_merged(p), "two neighbouring free or unmapped blocks were not merged");
    WEIR_RULE(!p.before || p.at >= p.in->runs || p.end() <= p.in->runs,
              "a block lies on both sides of the start of the runs");
  }
  bins& list_of(heap_block const& p) noexcept { return p.at >= p.in->runs ? runs_ : free_; }
  bins& unmapped_of(heap_block const& p) noexcept { return p.at >= p.in->runs ? unmapped_runs_ : unmapped_; }

  alignas(64) std::size_t listed_ = 0;  // all free blocks
  bool has_runs_ = false;
  bool by_openings_ = false;
  lowest_fit* first_large_ = nullptr;  // the first region's; null: no block gets the lowest fit
  std::size_t large_from_ = std::numeric_limits<std::size_t>::max();  // bytes of the smallest block that gets it
  std::uint64_t newest_given_ = 0;
  std::vector<region*> regions_;
  std::vector<heap_block*> spare_;    // here begins the second of the lines that most calls read
  bins free_, runs_;                  // without those in a region's `large`
  whole_handle_index whole_handles_;  // the free blocks with whole handles
  bins unmapped_, unmapped_runs_;     // by part
  blocks_by_address unmapped_by_address_;
  std::uint64_t looked_at_ = 0;
  std::deque<heap_block> blocks_;  // a deque: addresses are stable
};

}  // namespace weir::memory
