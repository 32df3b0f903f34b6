// One stream's heap: blocks allocated and freed, pending blocks, handles, and the row in the index.
// Threads: as stream_heap.h.
#include "runtime/memory/heap/session.h"

#include <algorithm>

namespace weir::memory {
void* stream_heap::take(alloc_request const& r) {
  if (asleep_.get()) [[unlikely]]
    return nullptr;
  if (r.size_class < 0) {
    heap_block* const p = blocks_.take(r.rounded, r.alignment);
    return p ? hand_out(*p, r, nullptr) : nullptr;
  }
  slabs::taken const got = free_slot(r);
  return got.from ? hand_out(got, r) : nullptr;
}

slabs::taken stream_heap::free_slot(alloc_request const& r) {
  if (auto const got = slots_.take(r.size_class, r.bytes); got.from)
    return got;
  // A long run if one is free, else a usual one, else what fits between cells that are in use.
  std::size_t const next_bytes = slots_.next_run_bytes(r.size_class);
  std::size_t const usual_bytes = slots_.usual_next_run_bytes(r.size_class);
  std::size_t const alignment = slabs::run_alignment(r.size_class);
  heap_block* run = blocks_.take_run(next_bytes, alignment);
  if (!run && usual_bytes < next_bytes)
    run = blocks_.take_run(usual_bytes, alignment);
  if (!run && slots_.has_shed())
    run = blocks_.take_short_run(usual_bytes, alignment, size_classes::bytes(r.size_class));
  if (!run)
    return {};
  cut_run(*run, r.size_class);
  return slots_.take(r.size_class, r.bytes);
}

// A stream's own last block comes first: its work is ordered, because the stream is the same.
void* stream_heap::take_for(clock::stream_clock& user, alloc_request const& r) {
  if (asleep_.get())
    return nullptr;
  slab::spare_note spare = slab::make_note();  // before anything changes: it may throw
  slabs::taken got = slot_freed_by(user, r);
  if (!got.from)
    got = free_slot(r);
  if (!got.from)
    return nullptr;
  got.from->set_home(got.index, user, std::move(spare));
  return hand_out(got, r);
}

slabs::taken stream_heap::slot_freed_by(clock::stream_clock& user, alloc_request const& r) noexcept {
  pending_block b;
  auto const suits = [&](pending_block const& p) {
    return p.in_slab && p.in_slab->size_class == r.size_class && p.stamps.size() == 1 && p.more.empty() &&
           slab::fits_byte(p.in_slab->size, r.bytes);
  };
  if (pending_.empty() || !pending_.take(user.id(), suits, b))
    return {};
  note_waiting();
  counts_.pending_no_more(observe::size_pool::small, b.bytes);
  of_.record_pending(observe::action::free_completed, b.in_slab->start(b.index), b.bytes, 0);
  slots_.take_back(*b.in_slab, b.index, r.bytes);
  return {b.in_slab, b.index};
}

void* stream_heap::take_or_shed(alloc_request const& r) {
  if (void* const p = take(r))
    return p;
  if (r.size_class < 0 || !slots_.worth_shedding(of_.space.page_bytes()))
    return nullptr;
  std::size_t const returned = return_idle_cells();
  return returned ? take(r) : nullptr;
}

void* stream_heap::take_anywhere(alloc_request const& r) {
  if (asleep_.get())
    return nullptr;
  if (r.size_class < 0) {
    heap_block* const p = blocks_.take_anywhere(r.rounded, r.alignment);
    return p ? hand_out(*p, r, nullptr) : nullptr;
  }
  // In a run that begins with a granule, slots of every size are aligned.
  heap_block* const run = blocks_.take_run_anywhere(slots_.usual_next_run_bytes(r.size_class), granule);
  if (!run)
    return nullptr;
  cut_run(*run, r.size_class);
  return hand_out(slots_.take(r.size_class, r.bytes), r);
}

void* stream_heap::hand_out(heap_block& p, alloc_request const& r, clock::stream_clock* other_home) {
  WEIR_RULE(p.is == state::live && !asleep_.get(), "a block is handed out that is not live, or asleep");
  p.home = other_home ? other_home : &home();
  p.requested = r.bytes;
  counts_.allocated(observe::size_pool::large, p.bytes, r.bytes);
  if (of_.announced) [[unlikely]]
    of_.machine.block_taken(p.at, r.bytes);
  return reinterpret_cast<void*>(p.at);
}

void* stream_heap::hand_out(slabs::taken got, alloc_request const& r) {
  counts_.allocated(observe::size_pool::small, got.from->size, r.bytes);
  if (of_.announced) [[unlikely]]
    of_.machine.block_taken(got.from->start(got.index), r.bytes);
  return reinterpret_cast<void*>(got.from->start(got.index));
}

void stream_heap::cut_run(heap_block& run, int size_class) {
  std::size_t const bytes = run.bytes;
  try {
    slots_.add(run, size_class, this, bucket_);
  } catch (...) {
    blocks_.release_done(run);
    throw;
  }
  counts_.run_cut(static_cast<std::int64_t>(bytes));
  of_.counts.run_cut(bytes);
}

void stream_heap::return_run(slab& s) noexcept {
  slots_.remove(s, [&](heap_block& part) {
    run_gone(part.bytes);
    blocks_.give(part, s.freed);
  });
}

bool stream_heap::holds_blocks() const {
  bool live = !pending_.empty();
  blocks_.each_block([&](heap_block const& p) {
    live |= p.is == state::live;
    if (p.is == state::slab)
      p.in_slab->each_live_slot(p, [&](slab const&, std::uint32_t) { live = true; });
  });
  return live;
}

std::size_t stream_heap::count_asleep(bool falls_asleep) noexcept {
  std::size_t all = 0;
  auto const count = [&](observe::size_pool p, std::size_t bytes, std::size_t requested) {
    if (falls_asleep)
      counts_.freed(p, bytes, requested);
    else
      counts_.allocated(p, bytes, requested);
    ++all;
  };
  blocks_.each_block([&](heap_block const& p) {
    if (p.is == state::live)
      count(observe::size_pool::large, p.bytes, p.requested);
    if (p.is != state::slab)
      return;
    // A run is counted as cut before its slots are allocated, and as gone after they are freed.
    if (!falls_asleep) {
      counts_.run_cut(static_cast<std::int64_t>(p.bytes));
      of_.counts.run_cut(p.bytes);
    }
    p.in_slab->each_live_slot(
        p, [&](slab const& s, std::uint32_t i) { count(observe::size_pool::small, s.size, s.requested(i)); });
    if (falls_asleep)
      run_gone(p.bytes);
  });
  return all;
}

void stream_heap::run_gone(std::size_t bytes) noexcept {
  if (asleep_.get())
    return;  // it was counted when its pool fell asleep
  counts_.run_cut(-static_cast<std::int64_t>(bytes));
  of_.counts.run_returned(bytes);
}

// Returns unused cells to the arena, for other sizes.
std::size_t stream_heap::return_idle_cells() {
  (void)revoke_and_empty();
  std::size_t const before = slots_.in_runs();
  slots_.shed(
      [&](heap_block& part, address from, std::size_t bytes) {
        heap_block* const rest = blocks_.give_part(part, from, bytes, part.in_slab->freed);
        run_gone(bytes);
        return rest;
      },
      [&](slab& s) { return_run(s); });
  return before - slots_.in_runs();
}

void stream_heap::reclaimed(pending_block const& b, std::uint64_t freed) noexcept {
  if (!freed)  // without a stamp of the home
    came_unstamped_ = home().now();
  if (b.block) {
    counts_.pending_no_more(observe::size_pool::large, b.bytes);
    of_.record_pending(observe::action::free_completed, b.block->at, b.bytes, 0);
    return blocks_.give(*b.block, freed);
  }
  counts_.pending_no_more(observe::size_pool::small, b.bytes, b.slots());
  b.each_slot([&](slabs::taken s) {
    of_.record_pending(observe::action::free_completed, s.from->start(s.index), s.from->size, 0);
    if (slots_.give(*s.from, s.index, freed))
      return_run(*s.from);
  });
}

void stream_heap::note_waiting() noexcept {
  std::int64_t bytes = 0;
  for (thread_cache const* c : caches_) {
    for (deferred_frees const& out : c->outs)
      bytes += out.unpublished_here().bytes;
  }
  if (bytes)
    counts_.also_waiting(bytes);
}

std::size_t stream_heap::reclaim() {
  clock::stream_clock& here = home();
  std::size_t bytes = 0;
  pending_.reclaim(
      [&](clock::stamp s, pending_block& b) {
        // Raises b.since if that use is ordered, but not known to be complete.
        bool const passed = of_.ordered_or_complete(here, s, b.since);
        of_.count_search(!passed);  // a block that is reclaimed is the search's result
        return passed;
      },
      [&](pending_block const& b) {
        if (bytes == 0)  // the first one
          note_waiting();
        bytes += b.bytes;
        reclaimed(b, b.since);
      });
  return bytes;
}

void stream_heap::finish() {
  std::vector<clock::stamp> stamps;
  {
    session const in(*this);
    stamps = pending_.newest();
    stamps.push_back(home().now());
  }
  for (clock::stamp const s : stamps) {
    if (!of_.clocks.complete(s))
      (void)of_.clocks.synchronize(s);
  }
}

aliased_handle const& stream_heap::reserved_handle(address at) {
  session const in(*this);
  return handles_.at(at);
}

void stream_heap::note_mapped(handle const& h) noexcept {
  peer_bytes_ += of_.open_bytes(h);
  of_.counts.handle_mapped();
  counts_.mapped(static_cast<std::int64_t>(h.bytes));
  record_mapping(h, observe::action::map);
}

void stream_heap::note_unmapped(handle const& h) noexcept {
  WEIR_RULE(peer_bytes_ >= of_.open_bytes(h), "bytes open to peers fall below zero");
  peer_bytes_ -= of_.open_bytes(h);
  of_.counts.handle_gone();
  counts_.mapped(-static_cast<std::int64_t>(h.bytes));
  pool_.get()->refund(h.bytes);
  record_mapping(h, observe::action::unmap);
}

void stream_heap::free_left_behind() noexcept {
  if (!left_behind_)
    return;
  left_behind_ = 0;
  // Reserved and without a page: its handle has left. Other reserved blocks hold a handle that is unusable.
  auto const is_left = [](heap_block const& p) { return p.is == state::reserved && !p.in->page(p.at); };
  for (region const* r : blocks_.regions()) {
    for (heap_block *p = r->first, *next = nullptr; p; p = next) {
      // The next reserved block: what lies between may be merged with p below.
      next = p->after;
      while (next && next->is != state::reserved)
        next = next->after;
      if (is_left(*p))
        blocks_.release_done(*p);
    }
  }
}

void stream_heap::record_mapping(handle const& h, observe::action what) const noexcept {
  observe::note(what, reinterpret_cast<void const*>(h.at), h.bytes, shown_stream(), of_.runtime.id(), of_.device,
                {nullptr, nullptr, 0});
}

void stream_heap::prefetch_counts() const noexcept {
  constexpr std::size_t lines = 6;  // of its sums
  auto const* const first = reinterpret_cast<char const*>(&counts_);
  for (std::size_t line = 0; line < lines; ++line)
    __builtin_prefetch(first + line * 64);
}

heap_index::rows stream_heap::to_be_listed() const noexcept {
  heap_index::rows const waits = pending_.empty() ? 0 : heap_index::waits;
  // An owner changes the arena and lists nothing: anything that is mapped may be free.
  if (lock_.is_owned()) {
    auto const mapped = static_cast<std::size_t>(counts_.bytes_mapped());
    return waits | heap_index::of_size(mapped) | (mapped ? heap_index::whole_handle : 0);
  }
  bool const whole = !blocks_.regions().empty() && blocks_.most_free() >= blocks_.regions().front()->page_bytes;
  std::size_t const largest = std::max(blocks_.most_for_blocks(), pending_.largest());
  return waits | heap_index::of_size(largest) | (whole ? heap_index::whole_handle : 0);
}

}  // namespace weir::memory
