// Pools of graphs, found by capture, and ended when nothing holds them.
// Threads: as graph_pools.h and graph_hold.h.
#include "runtime/memory/device/graph_pools.h"

#include <algorithm>

#include "runtime/base/room.h"

namespace weir::memory {
namespace {
// The driver lets go of a graph on a thread of its own, some time after the last launch.
constexpr std::int64_t patience_ns = 2'000'000'000, nap_ns = 100'000;
constexpr int most_looks = 64;  // where no time passes by itself
constexpr std::size_t few_streams = 8;
constexpr std::size_t most_captures = 16;  // known of one pool, before those that have ended are forgotten
}  // namespace

void graph_life::note_launch(clock::clocks const& of, clock::stamp s) noexcept try {
  auto all = launches_.lock();
  auto const same = std::ranges::find(*all, s.stream, &clock::stamp::stream);
  if (same != all->end()) {
    same->n = s.n;
    return;
  }
  if (all->size() >= few_streams && all->size() == all->capacity())
    std::erase_if(*all, [&](clock::stamp old) { return of.complete(old); });
  all->push_back(s);
} catch (std::bad_alloc const&) {}

void graph_life::fence_launches(clock::clocks const& of) const noexcept try {
  for (clock::stamp const s : launches()) {
    clock::stream_clock* const t = of.complete(s) ? nullptr : clock::find(s.stream);
    if (t) (void)t->fence();
  }
} catch (std::bad_alloc const&) {}

void graph_choices::declare(std::uint64_t capture, graph_holder h) {
  base::lock_guard const hold(lock_);
  declared_[capture] = std::move(h);
}

void graph_choices::forget(std::uint64_t capture) noexcept {
  decltype(declared_)::node_type gone;  // released after the lock
  base::lock_guard const hold(lock_);
  gone = declared_.extract(capture);
}

std::uint64_t graph_choices::add(int device, filter accepts, graph_holder h) {
  base::lock_guard const hold(lock_);
  routes_.push_back({++last_, device, std::move(accepts), std::move(h)});
  return last_;
}

void graph_choices::remove(std::uint64_t number) noexcept {
  std::vector<route> gone;
  base::lock_guard const hold(lock_);
  std::erase_if(routes_, [&](route const& r) { return r.number == number; });
}

graph_holder graph_choices::choose(std::uint64_t capture, clock::stream_clock& s) {
  base::lock_guard const hold(lock_);
  if (auto const found = declared_.find(capture); found != declared_.end()) return found->second;
  for (auto r = routes_.rbegin(); r != routes_.rend(); ++r) {
    if (r->device != s.device()) continue;
    auto const native = machine_.native(s.device(), s.handle());
    if (r->accepts(native.ok() ? native.value : nullptr)) return r->memory;
  }
  return nullptr;
}

graph_pools::~graph_pools() {
  auto all = contents_.lock();
  for (entry const& e : all->all) of_.clocks.let_go(*e.its.keeper);
}

graph_pools::one graph_pools::known(clock::stream_clock const& lane) const noexcept {
  auto const all = contents_.lock();
  auto const found = all->by_capture.find(lane.capture());
  return found == all->by_capture.end() ? one{} : found->second;
}

memory_pool const* graph_pools::of_hold(graph_hold const& h) const noexcept {
  auto const all = contents_.lock();
  auto const found = std::ranges::find(all->all, h.life(), &entry::life);
  return found == all->all.end() ? nullptr : found->its.pool;
}

graph_pools::one graph_pools::of(clock::stream_clock const& lane, source_location at) {
  if (one const there = known(lane); there.pool) return there;
  end_those_over();
  clock::stream_clock& s = *lane.stands_for();
  graph_holder hold = of_.runtime.part<graph_choices>().choose(lane.capture(), s);
  if (!hold) {
    hold = std::make_shared<graph_hold const>();
    hold->life()->set_unseen();
  }
  using driver_hold = std::shared_ptr<graph_life>;
  auto const drop = [](void* p) {
    std::unique_ptr<driver_hold> const its(static_cast<driver_hold*>(p));
    (*its)->let_go();
  };
  auto its_own = std::make_unique<driver_hold>(hold->life());
  hold->life()->hold();
  auto const kept = of_.machine.keep_with_graph(of_.device, s.handle(), drop, its_own.release());
  if (kept.what == driver::code::not_permitted) {
    throw invalid_use("allocate",
                      base::text("on stream ", s.id(), " of gpu:", of_.device, ", whose capture is spoiled"),
                      "End the capture, and look for the call that it does not allow", at, error_id{387});
  }
  require(kept, "allocate", base::text("on stream ", s.id(), " of gpu:", of_.device, ", which is being captured"), "",
          at);
  one fresh;
  for (;;) {
    {
      auto all = contents_.lock();
      auto const before = all->by_capture.find(lane.capture());
      if (before != all->by_capture.end()) break;  // another thread was first
      auto known = std::ranges::find(all->all, hold->life(), &entry::life);
      if (known == all->all.end() && fresh.pool) {
        base::make_room(all->all);
        all->all.push_back({hold->life(), std::exchange(fresh, {}), {}});
        known = all->all.end() - 1;
      }
      if (known != all->all.end()) {
        base::make_room(known->captures);
        all->by_capture.emplace(lane.capture(), known->its);
        known->captures.push_back(lane.capture());
        break;
      }
    }
    // Without the lock, which a thread may want that holds the lock of a heap.
    fresh.keeper = &of_.clocks.make_keeper(of_.device);
    fresh.pool = &heaps_.add_pool(memory_pool::kind::graph, base::text("graph ", lane.capture()), 0);
  }
  if (fresh.pool) of_.clocks.let_go(*fresh.keeper), heaps_.end_pool(*fresh.pool);
  forget_ended_captures(hold->life());
  return known(lane);
}

// Of a pool that many captures share, one after the other.
void graph_pools::forget_ended_captures(std::shared_ptr<graph_life> const& life) {
  std::vector<std::uint64_t> ended;
  {
    auto const all = contents_.lock();
    auto const its = std::ranges::find(all->all, life, &entry::life);
    if (its == all->all.end() || its->captures.size() < most_captures) return;
    ended = its->captures;
  }
  std::erase_if(ended, [&](std::uint64_t c) { return of_.clocks.is_under_way(c); });
  auto all = contents_.lock();
  auto const its = std::ranges::find(all->all, life, &entry::life);
  for (std::uint64_t const c : ended) all->by_capture.erase(c);
  if (its != all->all.end()) std::erase_if(its->captures, [&](std::uint64_t c) { return !all->by_capture.contains(c); });
}

void graph_pools::end_those_over() noexcept {
  std::uint64_t const changed = graph_life::changed();
  if (seen_changed_.exchange(changed) == changed) return;
  for (;;) {
    entry gone;
    {
      auto all = contents_.lock();
      for (entry const& e : all->all)
        if (e.life->is_ending()) e.its.pool->set_ending();
      auto const found = std::ranges::find_if(all->all, [](entry const& e) { return e.life->is_over(); });
      if (found == all->all.end()) return;
      gone = std::move(*found);
      all->all.erase(found);
      for (std::uint64_t const c : gone.captures) all->by_capture.erase(c);
    }
    for (std::uint64_t const c : gone.captures) of_.clocks.capture_ended(c);
    of_.clocks.let_go(*gone.its.keeper);
    mapping_lock::exclusive const stay(memory_.changes);
    heaps_.end_pool(*gone.its.pool);
  }
}

// False: ranks wait for each other in a stream, perhaps for this thread.
bool graph_pools::await_launches(graph_life const& its) const {
  bool const ranks_may_wait = !of_.clocks.collectives_given().empty();
  for (clock::stamp const s : its.launches()) {
    auto const done = ranks_may_wait ? of_.clocks.ask_for_a_while(s) : of_.clocks.synchronize(s);
    if (done.what == driver::code::not_ready) return false;
  }
  return true;
}

bool graph_pools::is_over_in_time(graph_life const& its) const {
  bool const moves = of_.machine.moves_by_itself();
  std::int64_t const until = moves ? base::now_ns() + patience_ns : 0;
  for (int looks = 0; !its.is_over() && (moves ? base::now_ns() < until : looks < most_looks); ++looks)
    moves ? base::sleep_ns(nap_ns) : base::yield_thread();
  return its.is_over();
}

bool graph_pools::await_those_ending() {
  std::vector<std::shared_ptr<graph_life>> ending;
  {
    auto const all = contents_.lock();
    for (entry const& e : all->all)
      if (e.life->is_ending() && !e.awaited_in_vain) ending.push_back(e.life);
  }
  for (auto const& life : ending) {
    if (!await_launches(*life)) continue;
    if (is_over_in_time(*life)) {
      end_those_over();
      return true;
    }
    auto all = contents_.lock();
    auto const kept = std::ranges::find(all->all, life, &entry::life);
    if (kept != all->all.end()) kept->awaited_in_vain = true;
  }
  return false;
}

}  // namespace weir::memory
