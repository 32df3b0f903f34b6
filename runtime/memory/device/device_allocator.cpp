// The common path of the device allocator: a block out, a block back, and what is known about one.
// Threads: any.
#include "runtime/memory/device/device_allocator.h"

#include <algorithm>
#include <boost/container/small_vector.hpp>
#include <cstdio>
#include <limits>

#include "runtime/base/room.h"

namespace weir::memory {
namespace {
constexpr std::size_t after_announced = 256;        // bytes that nobody may touch
}  // namespace

std::string hex(address a) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(a));
  return text;
}
std::string hex(void const* p) { return hex(reinterpret_cast<address>(p)); }

device_allocator::device_allocator(weir::runtime::impl& r, int device, callbacks& c, here const& at)
    : runtime_(r),
      machine_(r.machine()),
      clocks_(r.part<clock::clocks>()),
      device_(device),
      announced_(r.options().announce_blocks),
      callbacks_(c),
      space_(machine_, device),
      epsilon_(r.options().epsilon),
      polls_(r.options().poll_on_miss),
      deterministic_(r.options().deterministic),
      waits_(r.options().device_waits),
      fence_every_(r.options().fence_every) {
  auto info = machine_.info(device);
  require(info.is, "allocate", "gpu:" + std::to_string(device), "", at);
  // where compute-sanitizer is known to take heaps; mapped pages were not tried with a current context
  if (announced_) info.value.maps = false;
  require(space_.open(info.value, r.options().address_space), "allocate",
          "address space of gpu:" + std::to_string(device), "Raise the limit of virtual memory (ulimit -v)", at);
  counts_.set_limit(r.options().device_limit);
  if (space_.maps()) mapped_spaces::enter(space_.base(), space_.bytes(), space_);
}

stream_memory& device_allocator::memory_of(clock::timeline& t) {
  auto& near = recent_[t.id() % recent_.size()];
  if (stream_memory* const m = near.load(base::memory_order_acquire);
      m && m->home.load(base::memory_order_acquire) == &t)
    return *m;
  stream_memory& found = find_memory(t);
  near.store(&found, base::memory_order_release);
  return found;
}

stream_memory& device_allocator::find_memory(clock::timeline& t) {
  {
    base::lock_guard hold(making_);
    auto const found = by_stream_.find(t.id());
    if (found != by_stream_.end()) return *found->second;
  }
  if (clocks_.any_ended()) ask_the_retired();
  base::lock_guard hold(making_);
  auto const found = by_stream_.find(t.id());
  if (found != by_stream_.end()) return *found->second;
  auto made = std::make_unique<stream_memory>(*this, streams_, t);
  made->readers.store(readers_);
  streams_.make_room();
  base::make_room(memories_);
  if (stream_memory* const left = clocks_.any_ended() ? inherit(t) : nullptr) return *left;
  by_stream_.emplace(t.id(), made.get());
  memories_.push_back(std::move(made));
  // they are told when there are twice as many; seldom, for each is locked
  bool const all = (memories_.size() & (memories_.size() - 1)) == 0;
  for (auto m = all ? memories_.begin() : memories_.end() - 1; memories_.size() > 1 && m != memories_.end(); ++m) {
    base::owned_lock share((*m)->lock);
    (*m)->share(counts_.shared());
  }
  streams_.add(*memories_.back());
  return *memories_.back();
}

void device_allocator::ask_the_retired() {
  // else a rank may be waiting for this very thread
  bool const may_wait = deterministic_ && clocks_.collectives_given().empty();
  streams_.each([&](stream_memory& m) {
    clock::timeline& line = *m.home.load();
    if (line.alive() != clock::life::retired) return;
    if (may_wait) finish(m);
    if (!clocks_.complete(line.now())) (void)clocks_.poll(line.now());
  });
}

// A registration that has ended leaves its arena, with all that is cached there, to the next stream.
stream_memory* device_allocator::inherit(clock::timeline& heir) {
  for (auto const& m : memories_) {
    if (m->home.load()->alive() != clock::life::retired) continue;  // it changes under making_
    section const hold(*m);
    clock::timeline& old = *m->home.load();
    if (!clocks_.complete(old.now())) continue;
    for (thread_cache* c : m->caches) {
      c->shut();
      (void)send_home(*m, *c);
    }
    settle(*m);
    if (!m->pending.empty()) continue;
    by_stream_.emplace(heir.id(), m.get());
    by_stream_.erase(old.id());
    for (thread_cache* c : m->caches) empty(*m, *c);
    m->pieces.forget_stamps(), m->small.forget_stamps();  // none is a number of the new stream
    m->home.store(&heir), m->home_held = heir.hold();
    m->readers.store(readers_);
    return m.get();
  }
  return nullptr;
}

std::vector<stream_memory*> device_allocator::memories() const {
  base::lock_guard hold(making_);
  std::vector<stream_memory*> all;
  all.reserve(memories_.size());
  for (auto const& m : memories_) all.push_back(m.get());
  return all;
}

request device_allocator::describe(clock::timeline& home, std::size_t bytes, std::size_t alignment, here at) const {
  auto refuse = [&](std::string operands, std::string remedy) {
    throw invalid_use("allocate", std::move(operands), std::move(remedy), at);
  };
  if (alignment & (alignment - 1))
    refuse("alignment of " + std::to_string(alignment) + " B", "Ask for a power of two, or weir::natural");
  if (alignment > largest_alignment)
    refuse("alignment of " + std::to_string(alignment) + " B",
           "Ask for at most " + std::to_string(largest_alignment) + " B");
  if (bytes > static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max())) {
    refuse(std::to_string(bytes) + " B", "The size has overflowed: check the product it was made from");
  }
  if (home.device() != device_) {
    refuse("a stream of gpu:" + std::to_string(home.device()) + " for memory of gpu:" + std::to_string(device_),
           "Name a stream of the block's own device");
  }
  if (home.alive() == clock::life::retired)
    refuse("a stream whose registration has ended", "Allocate on a stream that lives");
  std::size_t room = bytes;
  if (announced_) [[unlikely]] {  // what follows a block is nobody's; it lies where it would lie without
    room += after_announced;
    std::size_t const units = round_up(std::max<std::size_t>(bytes, 1), 16);
    alignment = std::max(alignment, std::min<std::size_t>(units & (~units + 1), 512));
  }
  int const c = size_classes::of(room, std::max<std::size_t>(alignment, 1));
  if (c >= 0) return {home, bytes, std::max<std::size_t>(alignment, 1), c, size_classes::bytes(c), at};
  return {home, bytes, std::max(alignment, bins::unit), -1, std::max(round_up(room, bins::unit), granule), at};
}

void* device_allocator::allocate(clock::timeline& home, std::size_t bytes, std::size_t alignment, here at) {
  request const r = describe(home, bytes, alignment, at);
  if (lost()) [[unlikely]] {
    throw_refusal({driver::code::lost}, "allocate", std::to_string(bytes) + " B on gpu:" + std::to_string(device_), "",
                  at);
  }
  if (process_was_forked()) [[unlikely]] {
    throw_refusal({driver::code::forked}, "allocate", std::to_string(bytes) + " B on gpu:" + std::to_string(device_),
                  "", at);
  }
  if (home.seen_captured()) [[unlikely]] refuse_captured(home, r);
  stream_memory& mine = memory_of(home);
  thread_cache* const cache = cache_of(mine);
  void* p = nullptr;
  {
    section const hold(mine);
    p = warm(mine, r);
    if (p && cache) r.size_class < 0 ? mine.lock.offer(cache->own) : refill(mine, *cache, r.size_class);
  }
  if (!p) {
    base::unpromised const own_affair(runtime_.witness());
    p = cold(mine, r);
  }
  if (auto* const w = runtime_.witness()) [[unlikely]]
    w->allocated({device_, home.handle()}, reinterpret_cast<address>(p), bytes, at);
  return p;
}

// A graph runs whenever it is launched, wherever: what it uses must be nobody else's between launches, and
// its first use must not overtake the work that had the memory before. Neither can be had of memory that
// comes and goes with the stream's order.
void device_allocator::refuse_captured(clock::timeline& home, request const& r) const {
  auto const inside = home.captured();
  if (inside.is.what == driver::code::invalid) return;  // a stream that is no more captures nothing
  std::string const what =
      std::to_string(r.bytes) + " B on stream " + std::to_string(home.id()) + " of gpu:" + std::to_string(device_);
  require(inside.is, "allocate", what, "", r.at);
  if (!inside.value) return;
  throw invalid_use("allocate", what + ", which is being captured",
                    "Allocate before the capture begins, and keep the block as long as the graph", r.at);
}

void* device_allocator::warm(stream_memory& mine, request const& r) {
  if (r.size_class < 0) {
    piece* const p = mine.pieces.take(r.rounded, r.alignment);
    return p ? hand_out(mine, *p, r, nullptr) : nullptr;
  }
  auto got = mine.small.take(r.size_class, r.bytes);
  if (!got.from) {
    std::size_t const wanted = mine.small.next_run_bytes(r.size_class),
                      bytes = mine.small.usual_next_run_bytes(r.size_class),
                      alignment = slabs::run_alignment(r.size_class);
    piece* run = mine.pieces.take_run(wanted, alignment);
    if (!run && bytes < wanted) run = mine.pieces.take_run(bytes, alignment);
    if (!run && mine.small.has_shed())
      run = mine.pieces.take_short_run(bytes, alignment, size_classes::bytes(r.size_class));
    if (!run) return nullptr;
    cut_run(mine, *run, r.size_class);
    got = mine.small.take(r.size_class, r.bytes);
  }
  return hand_out(mine, got, r);
}

void* device_allocator::warm_or_shed(stream_memory& mine, request const& r) {
  if (void* const p = warm(mine, r)) return p;
  return r.size_class >= 0 && mine.small.worth_shedding(space_.page_bytes()) && shed_cells(mine) ? warm(mine, r)
                                                                                                 : nullptr;
}

// When memory is short: blocks where runs would lie, and runs among blocks.
void* device_allocator::warm_anywhere(stream_memory& mine, request const& r) {
  if (r.size_class < 0) {
    piece* const p = mine.pieces.take_anywhere(r.rounded, r.alignment);
    return p ? hand_out(mine, *p, r, nullptr) : nullptr;
  }
  piece* const run = mine.pieces.take_run_anywhere(mine.small.usual_next_run_bytes(r.size_class), granule);
  if (!run) return nullptr;
  cut_run(mine, *run, r.size_class);
  return hand_out(mine, mine.small.take(r.size_class, r.bytes), r);
}

void* device_allocator::hand_out(stream_memory& mine, piece& p, request const& r, clock::timeline* other_home) {
  p.home = other_home ? other_home : mine.home.load();
  p.requested = r.bytes;
  mine.counts.allocated(observe::size_pool::large, p.bytes, r.bytes);
  if (announced_) [[unlikely]] machine_.block_taken(p.at, r.bytes);
  return reinterpret_cast<void*>(p.at);
}

void* device_allocator::hand_out(stream_memory& mine, slabs::taken got, request const& r) {
  mine.counts.allocated(observe::size_pool::small, got.from->size, r.bytes);
  if (announced_) [[unlikely]] machine_.block_taken(got.from->start(got.index), r.bytes);
  return reinterpret_cast<void*>(got.from->start(got.index));
}

void device_allocator::cut_run(stream_memory& mine, piece& run, int size_class) {
  std::size_t const bytes = run.bytes;
  try {
    mine.small.add(run, size_class, &mine, mine.way);
  } catch (...) {
    mine.pieces.release_done(run);
    throw;
  }
  mine.counts.run_cut(static_cast<std::int64_t>(bytes));
  counts_.run_cut(bytes);
}

void device_allocator::return_run(stream_memory& m, slab& s) noexcept {
  m.small.remove(s, [&](piece& part) {
    run_gone(m, part.bytes);
    m.pieces.give(part, s.freed);
  });
}

void device_allocator::run_gone(stream_memory& m, std::size_t bytes) noexcept {
  m.counts.run_cut(-static_cast<std::int64_t>(bytes));
  counts_.run_returned(bytes);
}

// What sizes that few blocks are left of do not need serves others.
std::size_t device_allocator::shed_cells(stream_memory& m) {
  (void)shut_and_empty(m);
  std::size_t const before = m.small.in_runs();
  m.small.shed(
      [&](piece& part, address from, std::size_t bytes) {
        piece* const rest = m.pieces.give_part(part, from, bytes, part.cut->freed);
        run_gone(m, bytes);
        return rest;
      },
      [&](slab& s) { return_run(m, s); });
  return before - m.small.in_runs();
}

device_allocator::located device_allocator::locate(region& r, address a) noexcept {
  located found{r.owner.load()};
  if (slab* const s = r.slab_at(a)) {
    std::uint32_t const i = s->index(a);
    if (i >= s->slots || s->has_gone(i)) return found;
    found.whole = s->run;
    found.cut = s;
    found.index = i;
    found.start = s->start(i);
    found.live = s->at(i) == slot::live;
  } else if (piece* const p = r.covering(a)) {
    found.whole = p;
    found.start = p->at;
    found.live = p->is == state::live;
  }
  return found;
}

region* device_allocator::must_find(void const* p, char const* operation, here at) const {
  region* const r = space_.find(p);
  if (!r) {
    throw invalid_use(operation, hex(p) + " is no memory of gpu:" + std::to_string(device_),
                      "Pass what weir::allocate of this runtime returned", at);
  }
  return r;
}

device_allocator::located device_allocator::must_locate(void const* p, region* r, char const* operation,
                                                        here at) const {
  located const found = locate(*r, reinterpret_cast<address>(p));
  if (found.live) return found;
  throw invalid_use(
      operation,
      hex(p) + " on gpu:" + std::to_string(device_) + (found.whole ? " was freed already" : " lies in no live block"),
      "It was freed before, or never allocated: free each block once, by the address that allocate returned", at);
}

// A free that the host has no memory to note does not fail: whoever still uses the block is waited for, and
// then there is nothing to note.
void device_allocator::deallocate(void* p, clock::timeline* last_use, here at) {
  if (!p || process_was_forked()) return;  // a child's copy of the parent's block: the parent's memory is not touched
  for (;;) {
    try {
      return take_back(p, last_use, at);
    } catch (std::bad_alloc const&) {
      clock::timeline* const user = busy_user(p, last_use);
      if (!user || !user->synchronize().ok()) throw;
      forget_user(p, *user);
      if (last_use == user) last_use = nullptr;
    }
  }
}

clock::timeline* device_allocator::busy_user(void* p, clock::timeline* last_use) const noexcept {
  region* const r = space_.find(p);
  if (!r) return nullptr;
  stream_memory& m = *r->owner.load();
  base::owned_lock hold(m.lock);
  located const b = locate(*r, reinterpret_cast<address>(p));
  if (!b.live) return nullptr;
  clock::timeline& home = *m.home.load();
  auto const busy = [&](clock::timeline* t) { return t && t != &home && !passed(home, t->now()); };
  slab::note const* const n = b.cut ? b.cut->note_of(b.index) : nullptr;
  clock::timeline* const its = b.cut ? (n ? n->home : nullptr) : b.whole->home;
  if (busy(its)) return its;
  clock::timeline* found = nullptr;
  each_mark(b, [&](clock::timeline* t) {
    if (!found && busy(t)) found = t;
  });
  return found ? found : busy(last_use) ? last_use : nullptr;
}

void device_allocator::forget_user(void* p, clock::timeline& user) noexcept {
  region* const r = space_.find(p);
  stream_memory& m = *r->owner.load();
  base::owned_lock hold(m.lock);
  located const b = locate(*r, reinterpret_cast<address>(p));
  if (!b.live) return;
  unmark(b, user);
  auto const forget = [&](clock::timeline*& home, clock::timeline* own) {
    if (home == &user) home = own;
  };
  if (!b.cut) forget(b.whole->home, m.home.load());
  else if (slab::note* const n = b.cut->note_of(b.index)) forget(n->home, nullptr);
}

void device_allocator::take_back(void* p, clock::timeline* last_use, here at) {
  region* const r = must_find(p, "deallocate", at);
  stream_memory& m = *r->owner.load();
  std::vector<clock::timeline*> to_fence;  // whoever used it elsewhere, or
  clock::timeline* at_home = nullptr;
  bool const used = last_use && last_use != m.home.load();
  thread_cache* const cache = used && !may_wait_in_outbox(*r, p, *last_use) ? nullptr : cache_of(m);
  {
    section const hold(m);
    located const b = must_locate(p, r, "deallocate", at);
    if (b.start != reinterpret_cast<address>(p)) {
      throw invalid_use("deallocate",
                        hex(p) + " lies " + std::to_string(reinterpret_cast<address>(p) - b.start) +
                            " B inside the block at " + hex(b.start),
                        "Free a block by the address that allocate returned: " + hex(b.start), at);
    }
    if (lost()) return;  // nothing runs there any more, and nothing is handed out again

    clock::timeline& home = *m.home.load();
    if (runtime_.witness()) [[unlikely]] tell_freed(b, home, last_use, at);
    boost::container::small_vector<clock::stamp, 4> stamps;
    clock::timeline* first_of = nullptr;  // whose is the first of them
    std::uint64_t since = 0;
    auto add = [&](clock::timeline* t) {
      if (!t) return;
      clock::stamp const s = t->now();
      if (t == &home) {
        since = s.n;
        return;
      }
      if (std::find(stamps.begin(), stamps.end(), s) != stamps.end() || (!deterministic_ && passed(home, s, since)))
        return;
      if (stamps.empty()) first_of = t;
      stamps.push_back(s);
    };
    slab::note const* const n = b.cut ? b.cut->note_of(b.index) : nullptr;
    add(b.cut ? (n && n->home ? n->home : &home) : b.whole->home);
    each_mark(b, add);
    add(last_use);

    auto const pool = b.cut ? observe::size_pool::small : observe::size_pool::large;
    std::size_t const rounded = b.cut ? b.cut->size : b.whole->bytes;
    std::size_t const requested = b.cut ? b.cut->requested(b.index) : b.whole->requested;
    if (announced_) [[unlikely]] machine_.block_given_back(b.start);
    bool const someone_waits = !stamps.empty();
    bool due = false;
    bool const may_gather = stamps.size() == 1 && cache && b.cut && !n && may_wait_in_outbox(*r, p, *first_of);
    if (may_gather && post(m, *cache, {b.cut, b.index}, *first_of, stamps.front(), due)) {
      if (due) to_fence.push_back(first_of);
    } else if (someone_waits) {
      due |= deterministic_ || m.held_since_fence + rounded >= fence_after(m, 8);
      for (clock::stamp const s : stamps) {
        clock::timeline* const other = clock::find(s.stream);
        if (other && (due || other->alive() == clock::life::foreign)) to_fence.push_back(other);
      }
      std::uint64_t const first = stamps.front().stream;
      m.pending.push({b.cut ? nullptr : b.whole, b.cut, b.index, rounded, {}, since}, stamps);
      tell_held(observe::action::held, b.start, rounded, first);
      b.cut ? b.cut->forget(b.index), m.small.hold(*b.cut, b.index) : (void)(b.whole->is = state::pending);
      m.counts.held(pool, rounded, requested);
      m.held_since_fence = due ? 0 : m.held_since_fence + rounded;
    } else {
      m.counts.freed(pool, rounded, requested);
      if (b.cut) {
        if (cache) spill(m, *cache, b.cut->size_class);
        if (m.small.give(*b.cut, b.index, home.now().n)) return_run(m, *b.cut);
      } else {
        m.pieces.give(*b.whole, home.now().n);
        if (cache) m.lock.offer(cache->own);
      }
      m.freed_since_fence += rounded;
      bool const others = streams_.size() > 1;
      if (others && (home.alive() == clock::life::foreign || m.freed_since_fence >= fence_at_home_after(m))) {
        at_home = &home, m.freed_since_fence = 0;
        m.sought > 0 ? --m.sought : ++m.quiet;
      }
    }
  }
  auto const fence = [this](clock::timeline& t) {
    if (t.alive() != clock::life::retired && t.fence().ok()) counts_.fenced();
  };
  if (at_home) fence(*at_home);
  for (clock::timeline* const t : to_fence) fence(*t);
}

// For a checker: whose work the block's next owner comes after. Requires: its memory's lock.
void device_allocator::tell_freed(located const& b, clock::timeline& home, clock::timeline* last_use, here at) const {
  std::vector<driver::witness::user> users, ended;
  auto const add = [&](clock::timeline const* t) {
    if (t) (t->alive() == clock::life::retired ? ended : users).push_back({t->device(), t->handle()});
  };
  slab::note const* const n = b.cut ? b.cut->note_of(b.index) : nullptr;
  add(b.cut ? (n && n->home ? n->home : &home) : b.whole->home);
  each_mark(b, add);
  add(last_use);
  runtime_.witness()->freed(b.start, b.cut ? b.cut->requested(b.index) : b.whole->requested, {users, ended}, at);
}

void device_allocator::mark(void const* p, clock::timeline& user, here at) {
  region* const r = must_find(p, "record_stream", at);
  stream_memory& m = *r->owner.load();
  base::owned_lock hold(m.lock);
  located const b = must_locate(p, r, "record_stream", at);
  clock::timeline* const home = m.home.load();
  if (b.cut) {
    slab::note* const n = b.cut->note_of(b.index);
    if (&user != (n && n->home ? n->home : home)) b.cut->mark(b.index, user);
    return;
  }
  auto& marks = b.whole->marks;
  if (&user != b.whole->home && std::find(marks.begin(), marks.end(), &user) == marks.end()) add_mark(marks, user);
}

void device_allocator::rebind(void* p, clock::timeline& to, here at) {
  if (to.device() != device_) {
    throw invalid_use(
        "rebind", "a stream of gpu:" + std::to_string(to.device()) + " for memory of gpu:" + std::to_string(device_),
        "Name a stream of the block's own device", at);
  }
  region* const r = must_find(p, "rebind", at);
  stream_memory& m = *r->owner.load();
  std::vector<clock::stamp> before;
  {
    base::owned_lock hold(m.lock);
    located const b = must_locate(p, r, "rebind", at);
    slab::note const* const n = b.cut ? b.cut->note_of(b.index) : nullptr;
    before.push_back((!b.cut ? b.whole->home : n && n->home ? n->home : m.home.load())->now());
    each_mark(b, [&](clock::timeline const* t) { before.push_back(t->now()); });
  }
  for (clock::stamp s : before) {
    if (s.stream == to.id()) continue;
    require(to.wait(s), "rebind", hex(p), "The block stays with its stream", at);
  }
  base::owned_lock hold(m.lock);
  located const b = must_locate(p, r, "rebind", at);
  if (auto* const w = runtime_.witness()) [[unlikely]]
    w->handed_over({device_, to.handle()}, b.start, b.cut ? b.cut->requested(b.index) : b.whole->requested, at);
  // Marks stay: they speak of all work until the block is freed, and those streams may be given more.
  (b.cut ? b.cut->noted_at(b.index).home : b.whole->home) = &to;
  unmark(b, to);
}

std::optional<block> device_allocator::find(void const* p) const noexcept {
  region* const r = space_.find(p);
  if (!r) return std::nullopt;
  stream_memory& m = *r->owner.load();
  base::owned_lock hold(m.lock);
  located const b = locate(*r, reinterpret_cast<address>(p));
  if (!b.live) return std::nullopt;
  block out{reinterpret_cast<void*>(b.start), 0, device_, memory_kind::device, m.home.load()};
  if (b.cut) {
    out.bytes = b.cut->requested(b.index);
    slab::note const* const n = b.cut->note_of(b.index);
    if (n && n->home) out.home = n->home;
  } else {
    out.bytes = b.whole->requested;
    out.home = b.whole->home;
  }
  return out;
}

}  // namespace weir::memory
