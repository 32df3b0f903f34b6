// The pinned pool: the choice of a range, the growth and return of pages, and the recovery steps.
// Threads: any; one lock over the map of addresses, never held across a driver call that may block.
#include "runtime/base/lasting.h"
#include "streams/pinned/pinned_pool.h"

#include "runtime/base/call_site.h"
#include "runtime/base/round_up.h"
#include "runtime/driver/allocation_observer.h"
#include "runtime/memory/device/shortage.h"
#include "runtime/options/options.h"
#include "weir/memory.h"

namespace weir::streams {
namespace {

using address = driver::address;
using state_of = pinned_space::state;

constexpr std::size_t largest = std::size_t{1} << 46;        // bytes per block: more than any machine can address
constexpr std::size_t small_segment = std::size_t{2} << 20;  // smaller blocks share segments of this size
constexpr std::size_t segment_step = std::size_t{64} << 10;  // larger segments are rounded up to this
constexpr std::int64_t longest_wait_ns = 1'000'000'000;

// Saturated: an alignment beyond the addresses needs as many bytes.
std::size_t rounded(std::size_t bytes, std::size_t alignment) {
  if (std::size_t const least = std::max(bytes, alignment); least > largest)
    return least;
  return base::round_up(bytes ? bytes : 1, pinned_space::granule);
}

std::string bytes_text(std::size_t n) {
  return std::to_string(n) + " B";
}

// Only bytes in whole pages count: free memory between live blocks may be of no use.
memory_cause cause_of(memory_report const& r, driver::status last) {
  std::size_t const held = r.allocated + r.pending;
  if (r.rounded > r.capacity)
    return memory_cause::too_large;
  if (r.limit) {
    if (r.allocated + r.rounded > r.limit)
      return memory_cause::limit;
    if (held + r.rounded > r.limit)
      return memory_cause::pending;
    if (r.reserved + r.rounded > r.limit)
      return memory_cause::survivors;
  } else if (r.rounded + r.host_kept > r.host_available) {
    return r.pending >= r.rounded ? memory_cause::pending : memory_cause::host;
  }
  // Neither the limit nor the host's free memory explains it: the driver refused.
  return last == driver::no_addresses ? memory_cause::addresses : memory_cause::driver;
}

// Every pool of this process, to look up addresses without their runtime.
base::guarded<std::vector<pinned_memory*>>& pools() noexcept {
  static base::lasting<base::guarded<std::vector<pinned_memory*>>> all;
  return *all;
}

}  // namespace

pinned_space::few<clock::stamp> pinned_memory::state::reclaim_known(
    pool& p, pinned_space::few<std::uint64_t> const& lost) noexcept {
  pinned_space::few<clock::stamp> oldest;
  std::erase_if(p.pending, [&](address at) {
    auto const freed = p.space.find(at);
    auto& stamps = freed->second.stamps;
    drop_if(stamps, [&](clock::stamp s) { return clocks.complete(s); });
    if (stamps.empty()) {
      reclaim(p, freed);
      return true;
    }
    // A lost device may still write it.
    if (std::any_of(stamps.begin(), stamps.end(),
                    [&](clock::stamp s) { return std::find(lost.begin(), lost.end(), s.stream) != lost.end(); })) {
      freed->second.is = state_of::quarantined;
      return true;
    }
    for (auto const s : stamps) {
      auto const same =
          std::find_if(oldest.begin(), oldest.end(), [&](clock::stamp o) { return o.stream == s.stream; });
      if (same == oldest.end())
        note(oldest, s);
      else
        same->n = std::min(same->n, s.n);
    }
    return false;
  });
  return oldest;
}

void pinned_memory::state::collect() noexcept {
  pinned_space::few<std::uint64_t> lost;
  // Until an answer changes nothing: blocks behind the oldest stamps may be complete, too.
  for (bool any_news = true; any_news;) {
    auto const oldest = reclaim_known(*in.lock(), lost);
    any_news = false;
    for (auto const s : oldest) {
      auto const polled = clocks.poll(s);
      bool const is_lost = polled.is.what == driver::code::lost;
      if (is_lost && note(lost, s.stream))
        any_news = true;
      if (polled.ok() && polled.value)
        any_news = true;
    }
  }
}

auto pinned_memory::state::grow(int near, std::size_t rounded, std::size_t alignment, std::size_t bytes) -> grown {
  // Pages begin at a multiple of huge_page: only a larger alignment needs more than the block.
  std::size_t const least = base::round_up(rounded + (alignment > huge_page ? alignment : 0), os::page_size());
  std::size_t want = least < small_segment ? small_segment : base::round_up(least, segment_step);
  auto entries = pinned_space::make_entries();
  {
    auto p = in.lock();
    if (void* const block = hand_out(*p, near, bytes, rounded, alignment))
      return {.block = block};
    std::size_t const charged = p->counters.reserved() + p->mapping, limit = most_reserved(*p);
    auto const exceeds = [&](std::size_t more) { return charged > limit || more > limit - charged; };
    if (exceeds(want))
      want = least;
    if (exceeds(want))
      return {.is = {driver::code::out_of_memory, 0}, .in_motion = p->in_motion()};
    p->mapping += want;
  }
  auto const pages = take_pages(owner.machine(), want, near);
  auto p = in.lock();
  p->mapping -= want;
  if (!pages.ok())
    return {.is = pages.is, .in_motion = p->in_motion()};
  auto const first = number(pages.value.base);
  p->space.add(std::move(entries), first, pages.value.bytes, near);
  p->counters.reserve(pages.value.bytes);
  {
    // Addresses differ between processes: they must decide nothing in a seeded run.
    base::no_switch const one_step;
    address low = lowest.load();
    while (first < low && !lowest.compare_exchange(low, first)) {}
    highest.raise(first + pages.value.bytes);
  }
  return {.block = hand_out(*p, near, bytes, rounded, alignment)};
}

std::size_t pinned_memory::state::trim(std::int64_t unused_since) {
  struct returning {
    host_pages pages;
    pinned_space::entries entries;
    int node;
  };
  std::vector<returning> idle;
  collect();
  {
    auto p = in.lock();
    auto const bases = p->space.wholly_free(unused_since);
    idle.reserve(bases.size());
    for (address const base : bases) {
      auto const its = p->space.segment_of(base);
      idle.push_back({{reinterpret_cast<std::byte*>(base), its.bytes}, p->space.remove(base), its.node});
      p->returning += its.bytes;
    }
  }
  std::size_t gave = 0;
  // The segments are in no list now: no thread takes them while they go. A refused one comes back.
  for (auto& [pages, entries, its_node] : idle) {
    bool const returned = return_pages(owner.machine(), pages).ok();
    auto p = in.lock();
    p->returning -= pages.bytes;
    if (returned) {
      p->counters.unreserve(pages.bytes);
      gave += pages.bytes;
    } else {
      p->space.add(std::move(entries), number(pages.base), pages.bytes, its_node);
    }
  }
  return gave;
}

bool pinned_memory::state::patience::left() const noexcept {
  return since ? base::now_ns() - since < longest_wait_ns : polls < most_polls;
}

void* pinned_memory::state::wait_for_room(int near, std::size_t bytes, std::size_t rounded, std::size_t alignment,
                                          patience& time, bool in_motion) {
  for (; time.left(); ++time.polls) {
    collect();
    {
      auto p = in.lock();
      // also finds memory freed during the search for idle pages
      if (void* const block = hand_out(*p, near, bytes, rounded, alignment))
        return block;
      bool const was_in_motion = in_motion;
      in_motion = p->in_motion();
      // The pages of another thread have arrived, or gone back: the caller grows again.
      if (was_in_motion && !in_motion)
        return nullptr;
      // Nothing is on its way.
      if (!in_motion && p->pending.empty())
        return nullptr;
    }
    if (time.since)
      base::sleep_ns(50'000);
    else
      base::yield_thread();
  }
  return nullptr;
}

void pinned_memory::state::decay() {
  if (!watch.after()) [[likely]]
    return;
  std::int64_t const now = base::now_ns();
  if (!watch.is_time(now))
    return;  // or another thread has this turn
  if (may_give_back(0))
    trim(now - watch.after());
}

bool pinned_memory::state::may_give_back(int repeats) {
  // read once: later stamps would need a new fence at each look
  std::vector<clock::stamp> given = clocks.collectives_given();
  bool const waits_by_time = repeats && owner.machine().moves_by_itself();
  std::int64_t const start = waits_by_time ? base::now_ns() : 0;
  auto const may_look = [&](int looks_before) {
    return waits_by_time ? base::now_ns() - start < longest_wait_ns : looks_before <= repeats;
  };
  for (int looks = 0; may_look(looks); ++looks) {
    if (clocks.have_passed(given))
      return true;
    if (waits_by_time)
      base::sleep_ns(50'000);
  }
  return false;
}

memory_report pinned_memory::state::why_no_room(std::size_t bytes, std::size_t rounded, attempt const& failed) {
  memory_report r{};
  r.on = cpu;
  r.requested = bytes;
  r.rounded = rounded;
  r.limit = owner.options().pinned_limit;
  r.recovery = failed.steps;
  {
    auto p = in.lock();
    r.allocated = p->counters.allocated();
    r.pending = p->counters.pending();
    r.reserved = p->counters.reserved();
    r.largest_free = p->space.largest_free();
  }
  r.capacity = os::memory_of_host();
  // Under a limit the host's own memory decides nothing: what it has left stays 0 in the report.
  if (!r.limit) {
    if (auto const host = os::memory_available()) {
      r.capacity = host->total;
      r.host_available = host->available, r.host_kept = state::left_to_others(*host);
      r.other_processes = r.capacity - std::min(r.capacity, r.host_available + r.reserved);
    }
  }
  r.cause = cause_of(r, failed.last);
  return r;
}

void* pinned_memory::state::grow_or_recover(int near, std::size_t bytes, std::size_t rounded, std::size_t alignment,
                                            attempt& failed, source_location at) {
  auto got = grow(near, rounded, alignment, bytes);
  if (got.block)
    return got.block;
  auto& ladder = failed.steps;
  // For the report: a step that is climbed again adds to its row.
  auto const climbed = [&](std::string_view name, std::size_t gave, std::int64_t since) {
    auto const again = std::ranges::find(ladder, name, &recovery_step::name);
    recovery_step& r = again == ladder.end() ? ladder.emplace_back(recovery_step{name, 0, 0}) : *again;
    r.gave_bytes += gave, r.ns += base::now_ns() - since;
  };
  auto const give_back_and_grow = [&] {
    std::int64_t const start = base::now_ns();
    bool const may_trim = may_give_back();
    std::size_t const gave = may_trim ? trim() : 0;
    climbed(may_trim ? "idle pages returned" : "idle pages kept during collectives", gave, start);
    got = grow(near, rounded, alignment, bytes);
    return got.block;
  };
  if (got.is.what == driver::code::out_of_memory) {
    ++in.lock()->counters.now().num_alloc_retries;
    if (give_back_and_grow())
      return got.block;
  }
  // Copies under way free blocks, and pages of other threads come or go: after each wait it grows again.
  if (got.is.what == driver::code::out_of_memory) {
    patience time{owner.machine().moves_by_itself() ? base::now_ns() : 0};
    do {
      std::int64_t const start = base::now_ns();
      if (void* const block = wait_for_room(near, bytes, rounded, alignment, time, got.in_motion))
        return block;
      climbed("wait for copies", 0, start);
      if (give_back_and_grow())
        return got.block;
      ++time.polls;  // this round may have polled nothing
    } while (got.is.what == driver::code::out_of_memory && (got.in_motion || more_may_come()) && time.left());
  }
  failed.last = got.is;
  if (got.is.what == driver::code::out_of_memory || got.is.ok())
    return nullptr;  // ok: it grew, and no range fits
  throw_refusal(got.is, "allocate", bytes_text(bytes) + " of pinned memory",
                "Raise the system's limit of locked pages (`ulimit -l`), or pin less", at);
}

pinned_memory::pinned_memory(runtime::impl& r) : state_(std::make_unique<state>(r)) {
  pools().lock()->push_back(this);
}

namespace {
// A lost device refuses the wait: collect() quarantines the block then.
template <class StampOf>
void wait_for_uses(clock::clocks& clocks, pinned_space::range const& one, StampOf stamp_of) {
  for (auto const& user : one.users)
    static_cast<void>(clocks.synchronize(user.stream->of_marks().now()));
  for (auto const s : one.stamps)
    static_cast<void>(clocks.synchronize(s));
  for (auto const* use : one.last)
    static_cast<void>(clocks.synchronize(stamp_of(*use)));
}

// What becomes of a segment. In use: never known complete, so the engine may still write.
enum class fate : std::uint8_t { in_use, keeps_live_blocks, goes };
fate fate_of(pinned_space& space, driver::address base, bool devices_are_idle) {
  bool has_live = false;
  for (auto part = space.find(base); part != space.end() && part->second.segment == base; ++part) {
    auto const is = part->second.is;
    if (!devices_are_idle && (is == pinned_space::state::pending || is == pinned_space::state::quarantined))
      return fate::in_use;
    has_live |= is == pinned_space::state::live;
  }
  return has_live ? fate::keeps_live_blocks : fate::goes;
}
}  // namespace

pinned_memory::~pinned_memory() {
  std::erase(*pools().lock(), this);
  pinned_uses::version().fetch_add(1);
  // the system frees everything
  if (weir::process_is_ending() || process_was_forked())
    return;
  std::size_t held = 0;
  std::size_t held_bytes = 0;
  {
    auto p = state_->in.lock();  // no other thread uses this pool any more
    p->space.each([&](pinned_space::range const& one) {
      wait_for_uses(state_->clocks, one, [](pinned_use const& use) { return state::stamp_of(use); });
      if (one.is == state_of::live) {
        ++held;
        held_bytes += one.requested;
      }
    });
  }
  state_->collect();
  auto p = state_->in.lock();
  driver::driver& machine = state_->owner.machine();
  // Uses whose end is unknown have ended if all devices are idle. Without such uses nothing is asked.
  bool const known_idle = p->space.keeps_some_away() && state_->owner.has_come_to_rest();
  for (auto const& [age, one] : p->space.segments()) {
    auto const [base, bytes, node, idle_since] = one;
    auto* const first = reinterpret_cast<std::byte*>(base);
    fate const is = fate_of(p->space, base, known_idle);
    if (is == fate::keeps_live_blocks)
      static_cast<void>(machine.unpin(first));
    else if (is == fate::goes)
      static_cast<void>(return_pages(machine, {first, bytes}));
  }
  if (held == 0)
    return;
  try {
    os::print_error("weir-107: " + std::to_string(held) + " pinned blocks (" + weir::bytes_text(held_bytes) +
                    ") not freed before the runtime ended; the pages stay locked\n");
  } catch (...) {}  // no host memory for the line
}

void* pinned_memory::allocate_for(std::string_view operation, int device, std::size_t bytes, std::size_t alignment,
                                  source_location at) {
  attempt last;
  return memory::find_or_run_out(
      {&state_->owner, operation, at},
      [&] {
        last = {};
        return hand_out(device, bytes, alignment, last, at);
      },
      [&] { return state_->why_no_room(bytes, rounded(bytes, alignment), last); }, [&] { count_ran_out(); });
}

void pinned_memory::count_ran_out() noexcept {
  ++state_->in.lock()->counters.now().num_ooms;
}

void* pinned_memory::try_near(int device, std::size_t bytes, memory_report* why, source_location at) {
  attempt only;
  void* const block = hand_out(device, bytes, 0, only, at);
  if (!block && why)
    *why = state_->why_no_room(bytes, rounded(bytes, 0), only);
  return block;
}

void* pinned_memory::hand_out(int device, std::size_t bytes, std::size_t alignment, attempt& failed,
                              source_location at) {
  auto* const observer = state_->owner.observer();
  base::internal_ordering const own_affair(observer);
  void* const block = find_room(device, bytes, alignment, failed, at);
  if (observer && block) [[unlikely]]
    observer->allocated({}, number(block), bytes, at);
  return block;
}

void* pinned_memory::find_room(int device, std::size_t bytes, std::size_t alignment, attempt& failed,
                               source_location at) {
  if (process_was_forked())
    throw_refusal({driver::code::forked, 0}, "allocate", bytes_text(bytes) + " of pinned memory",
                  "Allocate in the process that created the runtime", at);
  if (alignment & (alignment - 1))
    throw invalid_use("allocate", bytes_text(bytes) + " of pinned memory, aligned to " + std::to_string(alignment),
                      "Pass a power of two, or 0 for the natural alignment", at, error_id{215});
  std::size_t const needs = rounded(bytes, alignment);
  if (needs > largest)
    return nullptr;  // no machine has such addresses
  state_->decay();
  // beyond the limit no freed memory helps
  if (std::size_t const limit = state_->owner.options().pinned_limit; limit && needs > limit)
    return nullptr;
  // Without a wish: a cache line, and 512 B for larger blocks.
  std::size_t const natural = bytes >= (std::size_t{16} << 10) ? 512 : 0;
  std::size_t const aligned = std::max(pinned_space::granule, alignment ? alignment : natural);
  if (device == current_device)
    device = current_ordinal(state_->owner);
  int const near = state_->node(device);
  bool any_pending = false;
  auto const serve_from_free = [&]() -> void* {
    auto p = state_->in.lock();
    any_pending = !p->pending.empty();
    void* const block = state_->hand_out(*p, near, bytes, needs, aligned);
    if (block)
      ++p->counters.now().cache_hits;
    return block;
  };
  if (void* const block = serve_from_free())
    return block;
  if (any_pending) {
    state_->collect();
    if (void* const block = serve_from_free())
      return block;
  }
  state_->owner.open_any(device, "allocate", at);  // page locks apply to all devices, but one must be open
  return state_->grow_or_recover(near, bytes, needs, aligned, failed, at);
}

void pinned_memory::let_idle_go_after(std::int64_t ns) {
  std::int64_t const now = base::now_ns();
  auto p = state_->in.lock();
  // the idle time was not tracked before
  for (address const base : p->space.wholly_free())
    p->space.note_idle(p->space.find(base), now);
  state_->watch.set_after(ns, now);
}
int pinned_memory::node_near(int device) noexcept {
  return state_->node(device);
}
void pinned_memory::lies_near(int device, int node) noexcept {
  state_->nodes.set(device, node);
}

std::size_t pinned_memory::trim() {
  base::internal_ordering const own_affair(state_->owner.observer());
  return process_was_forked() ? 0 : state_->trim();
}

memory_statistics pinned_memory::statistics() const {
  auto p = state_->in.lock();
  auto now = p->counters.now();
  now.inactive.all.current = static_cast<std::int64_t>(p->space.free_ranges());
  now.inactive.all.peak = std::max(now.inactive.all.peak, now.inactive.all.current);
  return now;
}

std::vector<std::string> pinned_memory::validate() const {
  auto p = state_->in.lock();
  auto wrong = p->space.validate();
  std::size_t in_segments = 0, live = 0, pending = 0;
  for (auto const& [age, one] : p->space.segments())
    in_segments += one.bytes;
  for (auto const& [at, one] : p->space.all()) {
    live += one.is == state_of::live ? one.bytes : 0;
    pending += one.is == state_of::pending || one.is == state_of::quarantined ? one.bytes : 0;
  }
  auto const& now = p->counters.now();
  if (live != p->counters.allocated() || pending != p->counters.pending() || in_segments != p->counters.reserved() ||
      now.reserved_bytes.all.current !=
          now.allocated_bytes.all.current + now.pending_bytes.all.current + now.cached_bytes.all.current)
    wrong.push_back("reserved != allocated + pending + cached");
  return wrong;
}

pinned_memory* pinned_memory::owner(void const* block) noexcept {
  auto all = pools().lock();
  for (auto* one : *all)
    if (one->reserves(block))
      return one;
  return nullptr;
}

}  // namespace weir::streams
