// Pools of graphs, found by capture, and ended when nothing holds them.
// Threads: as graph_pools.h and graph_hold.h.
#include "runtime/memory/device/graph_pools.h"

#include <algorithm>

#include "runtime/base/room.h"

namespace weir::memory {

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
  auto const found = std::ranges::find(all->all, h.over(), &entry::over);
  return found == all->all.end() ? nullptr : found->its.pool;
}

graph_pools::one graph_pools::of(clock::stream_clock const& lane, source_location at) {
  if (one const there = known(lane); there.pool) return there;
  end_those_over();
  clock::stream_clock& s = *lane.stands_for();
  graph_holder hold = of_.runtime.part<graph_choices>().choose(lane.capture(), s);
  if (!hold) hold = std::make_shared<graph_hold const>();
  auto const drop = [](void* p) { delete static_cast<graph_holder*>(p); };
  auto const kept = of_.machine.keep_with_graph(of_.device, s.handle(), drop, new graph_holder(hold));
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
      auto known = std::ranges::find(all->all, hold->over(), &entry::over);
      if (known == all->all.end() && fresh.pool) {
        base::make_room(all->all);
        all->all.push_back({hold->over(), std::exchange(fresh, {}), {}});
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
  return known(lane);
}

void graph_pools::end_those_over() noexcept {
  std::uint64_t const ended = graph_hold::ended();
  if (seen_ended_.exchange(ended) == ended) return;
  for (;;) {
    entry gone;
    {
      auto all = contents_.lock();
      auto const found = std::ranges::find_if(all->all, [](entry const& e) { return e.over->load(); });
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

}  // namespace weir::memory
