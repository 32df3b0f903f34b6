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
    if (of.complete(s))
      continue;
    if (clock::stream_clock* const t = clock::find(s.stream))
      (void)t->fence();
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
  if (auto const found = declared_.find(capture); found != declared_.end())
    return found->second;
  for (auto r = routes_.rbegin(); r != routes_.rend(); ++r) {
    if (r->device != s.device())
      continue;
    auto const native = machine_.native(s.device(), s.handle());
    if (r->accepts(native.ok() ? native.value : nullptr))
      return r->memory;
  }
  return nullptr;
}

graph_pools::~graph_pools() {
  auto all = contents_.lock();
  for (entry const& e : all->all)
    for (captured const& c : e.captures)
      of_.clocks.let_go(*c.keeper);
}

graph_pools::one graph_pools::known(clock::stream_clock const& lane) const noexcept {
  auto const all = contents_.lock();
  auto const found = all->by_capture.find(lane.capture());
  return found == all->by_capture.end() ? one{} : found->second;
}

memory_pool const* graph_pools::of_hold(graph_hold const& h) const noexcept {
  auto const all = contents_.lock();
  auto const found = std::ranges::find(all->all, h.life(), &entry::life);
  return found == all->all.end() ? nullptr : found->pool;
}

std::shared_ptr<graph_life> graph_pools::kept_by_the_graph(clock::stream_clock& s,
                                                           std::shared_ptr<graph_life> const& memory,
                                                           source_location at) const {
  struct both {
    std::shared_ptr<graph_life> graph, memory;
  };
  auto const drop = [](void* p) {
    std::unique_ptr<both> const its(static_cast<both*>(p));
    its->graph->let_go();  // first: who sees the memory over must see the graph over, too
    its->memory->let_go();
  };
  auto const graph = std::make_shared<graph_life>();
  auto its = std::make_unique<both>(graph, memory);
  memory->hold();
  // The stream may be of another device than the memory. The driver drops the holders also if it refuses.
  auto const kept = of_.machine.keep_with_graph(s.device(), s.handle(), drop, its.release());
  if (kept.what == driver::code::not_permitted) {
    throw invalid_use("allocate",
                      base::text("on stream ", s.id(), " of gpu:", s.device(), ", whose capture is spoiled"),
                      "End the capture, and look for the call that it does not allow", at, error_id{387});
  }
  require(kept, "allocate", base::text("on stream ", s.id(), " of gpu:", s.device(), ", which is being captured"), "",
          at);
  return graph;
}

graph_pools::one graph_pools::of(clock::stream_clock const& lane, source_location at) {
  if (one const there = known(lane); there.pool)
    return there;
  end_those_over();
  clock::stream_clock& s = *lane.stands_for();
  graph_holder hold = of_.runtime.part<graph_choices>().choose(lane.capture(), s);
  if (!hold) {
    hold = std::make_shared<graph_hold const>();
    hold->life()->set_unseen();
  }
  auto const graph = kept_by_the_graph(s, hold->life(), at);
  auto const let_go = [this](clock::stream_clock* keeper) { of_.clocks.let_go(*keeper); };
  auto const end_pool = [this](memory_pool* p) { heaps_.end_pool(*p); };
  std::unique_ptr<clock::stream_clock, decltype(let_go)> keeper(&of_.clocks.make_keeper(of_.device), let_go);
  std::unique_ptr<memory_pool, decltype(end_pool)> fresh(nullptr, end_pool);
  std::list<captured> mine(1);
  // A second time with a fresh pool, if no earlier capture has made one for the hold.
  for (;;) {
    {
      auto all = contents_.lock();
      auto const before = all->by_capture.find(lane.capture());
      if (before != all->by_capture.end())
        return before->second;  // another thread was first
      auto of_hold = std::ranges::find(all->all, hold->life(), &entry::life);
      if (of_hold == all->all.end() && fresh) {
        base::make_room(all->all);
        all->all.push_back({hold->life(), fresh.release(), {}});
        of_hold = all->all.end() - 1;
      }
      if (of_hold != all->all.end()) {
        one const its{of_hold->pool, keeper.get()};
        all->by_capture.emplace(lane.capture(), its);
        mine.front() = {lane.capture(), keeper.release(), graph};
        of_hold->captures.splice(of_hold->captures.end(), mine);
        return its;
      }
    }
    // Made without that lock: a thread that holds the lock of a heap may want it.
    fresh.reset(&heaps_.add_pool(memory_pool::kind::graph, base::text("graph ", lane.capture()), 0));
  }
}

void graph_pools::end(captured const& c) const noexcept {
  of_.clocks.capture_ended(c.number);
  of_.clocks.let_go(*c.keeper);
}

void graph_pools::end_captures() noexcept {
  std::list<captured> gone;
  {
    auto all = contents_.lock();
    for (entry& e : all->all) {
      for (auto c = e.captures.begin(); c != e.captures.end();) {
        auto const here = c++;
        if (!here->life->is_over())
          continue;
        all->by_capture.erase(here->number);
        gone.splice(gone.end(), e.captures, here);
      }
    }
  }
  for (captured const& c : gone)
    end(c);
}

void graph_pools::end_those_over() noexcept {
  std::uint64_t const changed = graph_life::changed();
  std::uint64_t const seen = seen_changed_.exchange(changed);
  if (seen == changed)
    return;
  end_captures();
  for (;;) {
    entry gone;
    {
      auto all = contents_.lock();
      for (entry const& e : all->all) {
        if (e.life->is_ending())
          e.pool->set_ending();
      }
      auto const found = std::ranges::find_if(all->all, [](entry const& e) { return e.life->is_over(); });
      if (found == all->all.end())
        return;
      gone = std::move(*found);
      all->all.erase(found);
      for (captured const& c : gone.captures)
        all->by_capture.erase(c.number);
    }
    for (captured const& c : gone.captures)
      end(c);
    mapping_lock::exclusive const stay(memory_.changes);
    heaps_.end_pool(*gone.pool);
  }
}

// False: ranks wait for each other in a stream, perhaps for this thread.
bool graph_pools::await_launches(graph_life const& its) const {
  bool const ranks_may_wait = !of_.clocks.collectives_given().empty();
  for (clock::stamp const s : its.launches()) {
    auto const done = ranks_may_wait ? of_.clocks.ask_for_a_while(s) : of_.clocks.synchronize(s);
    if (done.what == driver::code::not_ready)
      return false;
  }
  return true;
}

bool graph_pools::is_over_in_time(graph_life const& its) const {
  if (!of_.machine.moves_by_itself()) {
    for (int tries = 0; !its.is_over() && tries < most_looks; ++tries)
      base::yield_thread();
    return its.is_over();
  }
  std::int64_t const until = base::now_ns() + patience_ns;
  while (!its.is_over() && base::now_ns() < until)
    base::sleep_ns(nap_ns);
  return its.is_over();
}

bool graph_pools::await_those_ending() {
  std::vector<std::shared_ptr<graph_life>> ending;
  {
    auto const all = contents_.lock();
    for (entry const& e : all->all)
      if (e.life->is_ending() && !e.awaited_in_vain)
        ending.push_back(e.life);
  }
  for (auto const& life : ending) {
    if (!await_launches(*life))
      continue;
    if (is_over_in_time(*life)) {
      end_those_over();
      return true;
    }
    auto all = contents_.lock();
    auto const kept = std::ranges::find(all->all, life, &entry::life);
    if (kept != all->all.end())
      kept->awaited_in_vain = true;
  }
  return false;
}

}  // namespace weir::memory
