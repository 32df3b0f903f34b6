// The entry to one device's memory: allocates, changes a block's stream, and answers queries.
// Threads: any.
#include "runtime/memory/device/device_allocator.h"

#include <algorithm>

#include "runtime/driver/allocation_observer.h"
#include "runtime/memory/heap/fast_path.h"
#include "runtime/memory/space/mapped_spaces.h"

namespace weir::memory {

device_allocator::device_allocator(weir::runtime::impl& r, int device, oom_callbacks& c, source_location const& at)
    : of_(r, device, this, at),
      ladder_(of_, heaps_, memory_, growth_, reuse_, completion_, graphs_, return_, audit_, c),
      callbacks_(c) {
  if (of_.space.maps())
    mapped_spaces::enter(of_.space.base(), of_.space.bytes(), of_.space);
}

namespace {
// Of a live block. A slot has a note of its home, if that is not the heap's.
clock::stream_clock& home_of(stream_heap& m, block_ref const& b) {
  if (!b.in_slab)
    return *b.block->home;
  slab::note const* const n = b.in_slab->note_of(b.index);
  return n && n->home ? *n->home : m.home();
}

bool await(device_context& of, clock::stamp s) {
  return of.clocks.complete(s) || of.clocks.synchronize(s).ok();
}

// Blocks: until nothing of the heap is pending, but for what a graph holds, or a wait is refused.
void finish_pending(device_context& of, stream_heap& m) {
  for (bool all_done = true; all_done;) {
    std::vector<clock::stamp> fronts;
    {
      session in(m);
      in.reclaim();
      fronts = in.fronts();
    }
    // What a graph holds comes free with the graph alone.
    std::erase_if(fronts, [](clock::stamp s) {
      clock::stream_clock const* const t = clock::find(s.stream);
      return t && t->alive() == clock::life::captured;
    });
    if (fronts.empty())
      return;
    for (clock::stamp s : fronts)
      all_done &= await(of, s);
  }
}

// The newest free stamp of blocks of a page and more; 0: there is none
clock::stamp newest_of_pages(session const& in) {
  clock::stamp newest{in.heap().home().id(), 0};
  in.each_free([&](heap_block const& p) {
    if (p.bytes >= p.in->page_bytes)
      newest.n = std::max(newest.n, p.freed);
  });
  return newest;
}
}  // namespace

void* device_allocator::allocate_from(memory_pool& pool, from where, clock::stream_clock& home, std::size_t bytes,
                                      std::size_t alignment, source_location at) {
  alloc_request r = alloc_request::make(of_, home, bytes, alignment, at);
  if (of_.lost()) [[unlikely]] {
    throw_refusal({driver::code::lost}, "allocate", base::text(bytes, " B on gpu:", of_.device), "", at);
  }
  if (process_was_forked()) [[unlikely]] {
    throw_refusal({driver::code::forked}, "allocate", base::text(bytes, " B on gpu:", of_.device), "", at);
  }
  void* p = nullptr;
  home.hold_to_promise("allocate", at);
  // A stream that may be captured is asked first: a graph's memory is its own.
  if (home.seen_captured() || home.is_asked()) [[unlikely]] {
    if (clock::stream_clock* const lane = lane_of(home, r))
      p = allocate_captured(*lane, r);
    else if (home.is_asked() && where == from::pools_in_force)
      p = fast_allocate_asked(home, bytes, alignment);
    r.captured_is_known = true;
  }
  if (!p)
    p = allocate_in(pool, where, r);
  if (auto* const w = of_.runtime.observer()) [[unlikely]]
    w->allocated({of_.device, home.handle()}, reinterpret_cast<address>(p), bytes, at);
  return p;
}

void* device_allocator::allocate_in(memory_pool& pool, from where, alloc_request const& r) {
  if (pool.is_asleep()) [[unlikely]]
    wake_or_refuse(pool, r);
  if (where == from::pools_in_force) {
    if (void* const p = allocate_shared(pool, r))
      return p;
  }
  if (pool.rules().captured && !heaps_.if_made(r.home, pool)) [[unlikely]]
    make_way_for_a_graph();
  stream_heap& mine = heaps_.of(r.home, pool);
  thread_cache* const cache = where == from::pools_in_force ? mine.cache_to_allocate() : mine.cache_here();
  attempt const tried = take_mapped(mine, pool, r, cache);
  // This thread's table may name a heap for the pool that is not the pool's any more.
  if (tried.another || (cache && pool.is_over())) [[unlikely]]
    invalidate_fast_paths();
  // The heap went to another stream or pool meanwhile.
  if (tried.another) [[unlikely]]
    return allocate_in(pool, where, r);
  void* p = tried.block;
  if (!p) {
    p = allocate_cold(mine, r);
    return_idle();
  }
  // The pool fell asleep meanwhile.
  if (!p) [[unlikely]]
    return allocate_in(pool, where, r);
  r.home.note_block(1);
  return p;
}

void device_allocator::wake_or_refuse(memory_pool& pool, alloc_request const& r) {
  if (callbacks_.wake(pool, r.at))
    return;
  throw invalid_use("allocate", base::text(r.bytes, " B in pool ", pool.name(), ", which is asleep"),
                    "Wake the pool first (pool::wake)", r.at, error_id{385});
}

// A graph's pool takes over a heap that ended pools left.
void device_allocator::make_way_for_a_graph() {
  // Which heap is left must not depend on what is complete.
  while (of_.waits_for_all() && graphs_.await_those_ending()) {}
  empty_what_is_left(most_left_idle, of_.space.page_bytes());
}

device_allocator::attempt device_allocator::take_mapped(stream_heap& mine, memory_pool const& pool,
                                                        alloc_request const& r, thread_cache* cache) {
  attempt out;
  session in(mine);
  out.another = !heaps_.serves(in, r.home, pool);
  if (out.another)
    return out;
  out.block = in.take(r);
  if (out.block && cache)
    in.stock(*cache, r);
  if (!out.block)
    out.stays = heap_stay(in);
  return out;
}

void* device_allocator::allocate_shared(memory_pool& pool, alloc_request const& r) {
  if (r.size_class < 0 || !sharing_.serves(pool, r.home)) [[likely]]
    return nullptr;
  void* p = sharing_.take(pool, r);
  if (!p) {
    graphs_.end_those_over();
    // Before the driver is asked for more, it is asked whether the stream is captured.
    if (clock::stream_clock* const lane = lane_of(r.home, r))
      return allocate_captured(*lane, r);
    base::internal_ordering const own_affair(of_.runtime.observer());
    p = sharing_.take_after_a_miss(pool, r);
    return_idle();
  }
  if (p)
    r.home.note_block(1);
  return p;
}

void* device_allocator::allocate_cold(stream_heap& mine, alloc_request const& r) try {
  base::internal_ordering const own_affair(of_.runtime.observer());
  graphs_.end_those_over();
  // Before the driver is asked for more, it is asked whether the stream is captured.
  if (clock::stream_clock* const lane = lane_of(r.home, r))
    return allocate_captured(*lane, r);
  std::size_t whole_pages = r.rounded;
  if (of_.space.maps())
    whole_pages = round_up(r.rounded, of_.space.page_bytes());
  if (ladder_.can_never_hold(whole_pages, mine.pool()))
    return ladder_.climb(mine, r, {driver::code::out_of_memory});
  std::size_t spare = 0;
  if (!reuse_.should_grow_instead(mine, r, spare)) {
    if (void* const p = reuse_.find(mine, r))
      return p;
  }
  void* out = nullptr;
  driver::status const s = growth_.grow(mine, r, out, spare);
  if (s.ok())
    return out;
  if (s.what == driver::code::out_of_memory) {
    growth_.narrow();
    return ladder_.climb(mine, r, s);
  }
  if (s == growth::asleep)
    return nullptr;
  of_.note_status(s);
  throw_refusal(s, "allocate", base::text(r.bytes, " B on gpu:", of_.device), "", r.at);
} catch (growth::pool_fell_asleep const&) {
  return nullptr;
}

memory_pool& device_allocator::make_registered_pool(std::string name, std::size_t limit, clock::stream_clock& home,
                                                    source_location at) {
  auto const& about = of_.space.info();
  std::string const what = "pool " + name + ", registered";
  if (!of_.space.maps())
    throw not_supported("pool", base::text(what, ": ", base::gpu_name(of_.device), " maps no memory"),
                        "Use an ordinary pool", at, error_id{444});
  std::size_t const unit = std::max(about.shared_granularity, about.granularity),
                    whole = round_up(std::min(limit, arena::most_bytes), unit);
  alloc_request const all{home, whole, unit, -1, whole, at};
  if (lane_of(home, all))
    throw invalid_use("pool",
                      base::text(what, ": stream ", home.id(), " of ", base::gpu_name(of_.device), " is captured"),
                      "Make the pool before the capture", at, error_id{445});
  memory_pool& made = heaps_.add_pool(memory_pool::kind::registered, std::move(name), whole);
  try {
    base::internal_ordering const own_affair(of_.runtime.observer());
    empty_what_is_left(0, 0);  // so that the pool may take over their heaps
    (void)allocate_cold(heaps_.of(home, made), all);
  } catch (...) {
    end_pool(made);
    throw;
  }
  return made;
}

// A graph's pool and a registered one take over heaps that ended pools left, if these hold little or nothing.
void device_allocator::empty_what_is_left(std::size_t spared, std::size_t page) {
  if (!of_.space.maps())
    return;
  auto all = heaps_.left_idle(page);
  all.resize(all.size() - std::min(spared, all.size()));  // those that were made last stay
  for (stream_heap* const m : all) {
    if (of_.waits_for_all())
      m->finish();
    (void)completion_.poll(*m);
    if (return_.of(*m, ~std::size_t{0}) == 0)
      return;  // later ones complete later
  }
}

allocator::whole_pool device_allocator::whole(memory_pool const& p) const {
  whole_pool out{};
  for (stream_heap* const m : heaps_.all(&p)) {
    quiet_session(*m).each_handle([&](handle const& h) {
      if (!out.bytes)
        out = {h.at, h.bytes};
    });
  }
  return out;
}

void device_allocator::end_pool(memory_pool& p) noexcept {
  if (p.is_registered())
    heaps_.close_pool(p);
  let_go(p);
}

void device_allocator::let_go(memory_pool& p) noexcept {
  if (p.let_go())
    end(p);
}

// If the pool has not ended, it stays asleep, without a store.
void device_allocator::end_sleep(memory_pool& p) noexcept {
  if (p.has_ended())
    end(p);
  else
    sleep_.drop(p);
}

void device_allocator::end(memory_pool& p) noexcept {
  if (p.is_asleep())
    sleep_.end(p);
  // Growth that is under way has charged the pool that its heap is in: it ends first.
  mapping_lock::exclusive const stay(memory_.changes);
  heaps_.end_pool(p);
}

clock::stream_clock* device_allocator::lane_of(clock::stream_clock& home, alloc_request const& r) const {
  if (r.captured_is_known)
    return nullptr;
  // Of a stream that was seen captured, lane() says whether it still is, and in which capture: it is asked at once.
  if (!home.seen_captured()) {
    auto const inside = home.captured();
    // A stream that does not exist captures nothing.
    if (inside.is.what == driver::code::invalid)
      return nullptr;
    if (!inside.is.ok())
      throw_refusal(inside.is, "allocate", base::text(r.bytes, " B on stream ", home.id(), " of gpu:", of_.device), "",
                    r.at);
    if (!inside.value)
      return nullptr;
  }
  auto const lane = home.lane();
  // A stream that does not exist captures nothing.
  if (lane.ok() || lane.is.what == driver::code::invalid)
    return lane.value;
  std::string const what = base::text(r.bytes, " B on stream ", home.id(), " of gpu:", of_.device);
  // captured() answers for a spoiled capture, too. In a host function it is refused as lane() is.
  if (lane.is.what == driver::code::not_permitted && home.captured().ok()) {
    throw invalid_use("allocate", what + ", whose capture is spoiled",
                      "End the capture, and look for the call that it does not allow", r.at, error_id{386});
  }
  require(lane.is, "allocate", what, "", r.at);
  return lane.value;
}

// A graph may be launched at any time, on any stream. Its memory must serve no other request meanwhile, and
// its first use must not overtake earlier work on that memory. So it is the graph's own.
void* device_allocator::allocate_captured(clock::stream_clock& lane, alloc_request const& r) {
  memory_pool& pool = *graphs_.of(lane, r.at).pool;
  return allocate_in(pool, from::one_pool, {lane, r.bytes, r.alignment, r.size_class, r.rounded, r.at, true});
}

pool_memory_use device_allocator::use_of_graphs(graph_hold const& h) {
  memory_pool const* const pool = graphs_.of_hold(h);
  return pool ? audit_.use_of(*pool) : pool_memory_use{};
}

namespace {
// A mark inside a capture on the capture's own memory: the order inside says when that use is over.
clock::stream_clock& user_in(stream_heap const& m, clock::stream_clock& user) noexcept {
  clock::stream_clock* const lane = m.rules().captured ? user.known_lane() : nullptr;
  return lane ? *lane : user;
}
}  // namespace

void device_allocator::record_use(void const* p, clock::stream_clock& by, source_location at) {
  region* const r = of_.must_find(p, "record_stream", at);
  stream_heap& m = *r->owner.load();
  clock::stream_clock& user = user_in(m, by);
  quiet_session const in(m);
  block_ref const b = of_.must_locate(p, r, "record_stream", at);
  // Work of the home needs no mark.
  bool const needs_mark = &user != &home_of(m, b);
  if (needs_mark && b.in_slab) {
    b.in_slab->record_use(b.index, user);
  } else if (needs_mark && !b.block->users.has(user)) {
    b.block->users.add(user);
  }
  if (auto* const w = of_.runtime.observer()) [[unlikely]]
    w->marked({by.device(), by.handle()}, b.start);
}

void device_allocator::set_stream(void* p, clock::stream_clock& to, source_location at) {
  if (to.device() != of_.device) {
    throw invalid_use("set_stream", base::text("a stream of gpu:", to.device(), " for memory of gpu:", of_.device),
                      "Name a stream of the block's own device", at, error_id{158});
  }
  region* const r = of_.must_find(p, "set_stream", at);
  stream_heap& m = *r->owner.load();
  std::vector<clock::stamp> before;
  {
    quiet_session const in(m);
    block_ref const b = of_.must_locate(p, r, "set_stream", at);
    clock::stream_clock& its = home_of(m, b);
    before.push_back(its.now());
    if (auto* const captured = its.stands_for())
      before.push_back(captured->now());  // used there since
    b.each_user([&](clock::stream_clock* t) { before.push_back(t->of_marks().now()); });
  }
  for (clock::stamp s : before) {
    if (s.stream == to.id())
      continue;
    auto is = to.wait(s);
    clock::stream_clock const* const user = clock::find(s.stream);
    bool const no_fence_to_be_had =
        user && (user->alive() == clock::life::borrowed || user->alive() == clock::life::retired);
    // Then the host waits.
    if (!is.ok() && no_fence_to_be_had)
      is = of_.clocks.synchronize(s);
    require(is, "set_stream", base::address_text(p),
            "The block keeps its stream: synchronize with the new stream, then try again", at);
  }
  // Looked up anew: the lock was not held during the waits.
  quiet_session const in(m);
  block_ref const b = of_.must_locate(p, r, "set_stream", at);
  if (auto* const w = of_.runtime.observer()) [[unlikely]]
    w->handed_over({of_.device, to.handle()}, b.start, b.in_slab ? b.in_slab->requested(b.index) : b.block->requested,
                   at);
  // A slot names another home in a note. It is made before anything changes, for it needs host memory.
  slab::note* const noted = b.in_slab ? &b.in_slab->noted_at(b.index) : nullptr;
  clock::stream_clock& was = home_of(m, b);
  was.note_block(-1);
  to.note_block(1);
  if (noted)
    noted->set_home(to);
  else
    b.block->home = &to;
  // Other marks stay: they include all work until the block is freed, and those streams may enqueue more.
  b.forget_user(to);
}

std::optional<block> device_allocator::find(void const* p) const noexcept {
  region* const r = of_.space.find(p);
  if (!r)
    return std::nullopt;
  stream_heap& m = *r->owner.load();
  quiet_session const in(m);
  block_ref const b = block_ref::find(*r, reinterpret_cast<address>(p));
  if (!b.live)
    return std::nullopt;
  block out{reinterpret_cast<void*>(b.start), 0, of_.device};
  out.pool = &m.pool();
  out.asleep = m.is_asleep();
  out.bytes = b.in_slab ? b.in_slab->requested(b.index) : b.block->requested;
  out.home = &stream_heap::shown(home_of(m, b));
  return out;
}

allocator::range device_allocator::use(void const* p, clock::stream_clock& user) noexcept {
  region* const r = of_.space.find(p);
  if (!r)
    return {};
  range const found = use_in(*r, reinterpret_cast<address>(p), user);
  if (!found.base)
    return found;
  auto* const w = of_.runtime.observer();
  if (!w) [[likely]]
    return found;
  try {
    w->marked({user.device(), user.handle()}, reinterpret_cast<address>(found.base));
  } catch (std::bad_alloc const&) {
    return {};
  }
  return found;
}

allocator::range device_allocator::use_in(region& r, address a, clock::stream_clock& by) noexcept {
  stream_heap& m = *r.owner.load(base::memory_order_acquire);
  clock::stream_clock& user = user_in(m, by);
  thread_table const& mine = thread_table::mine();
  auto const& e = mine.entries[m.bucket()];
  bool const has_word = mine.holds() && e.memory == &m;
  // A heap's owner enters by its word, without the lock.
  if (has_word) {
    if (owner_session in(m, *e.cache); in) {
      auto const found = in.use(r, a, user);
      return {found.base, found.bytes};
    }
  }
  session in(m);  // not a quiet one: at its end it lists a heap that this thread owns from now on
  auto const found = in.use(r, a, user);
  if (has_word && m.cacheable())
    in.may_own(*e.cache);
  return {found.base, found.bytes};
}

// Returns to the driver what is reserved past the limit, as far as it is free.
void device_allocator::set_limit(std::size_t bytes) {
  of_.counts.set_limit(bytes);
  if (!bytes)
    return;
  (void)bound_.narrow();  // the loop at the end returns what is too much
  if (of_.counts.reserved() <= bytes || of_.lost() || process_was_forked())
    return;
  base::internal_ordering const own_affair(of_.runtime.observer());
  graphs_.end_those_over();
  free_what_is_complete();
  // Releasing a segment waits for the work of all devices, which may wait for a rank of this thread.
  if (!of_.space.maps() && !of_.clocks.collectives_given().empty())
    return;
  while (of_.counts.reserved() > bytes && return_.some(of_.counts.reserved() - bytes)) {}
}

memory_report device_allocator::why_no_room(std::size_t requested, std::size_t rounded, driver::status last) {
  memory_report out = now().report();
  out.requested = requested, out.rounded = rounded;
  out.limit = 0;
  if (last == driver::no_addresses)
    out.recovery.push_back({"addresses", 0, 0});
  audit_.explain(out, nullptr, heaps_.rest());
  return out;
}

std::size_t device_allocator::empty_cache() {
  if (of_.lost() || process_was_forked())
    return 0;
  base::internal_ordering const own_affair(of_.runtime.observer());
  graphs_.end_those_over();
  for (memory_pool* const p : heaps_.ended_asleep())
    end(*p);
  std::size_t bytes = 0;
  for (stream_heap* m : heaps_.all()) {
    m->empty_caches();
    // So that all of it is reclaimed at once, in one order.
    if (of_.waits_for_all())
      m->finish();
    finish_pending(of_, *m);
    clock::stamp newest;
    {
      session in(*m);
      in.return_idle_cells();
      newest = newest_of_pages(in);
    }
    if (newest.n)
      (void)await(of_, newest);
    bytes += return_.of(*m, ~std::size_t{0});
  }
  bytes += memory_.return_orphans();
  return bytes;
}

}  // namespace weir::memory
