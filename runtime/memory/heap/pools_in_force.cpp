// A thread's pools: a table of allocations for each choice that it made, so that an allocation looks at none.
// Threads: each has its own.
#include <algorithm>

#include "runtime/base/room.h"
#include "runtime/memory/heap/thread_caches.h"

namespace weir::memory {

namespace {
constexpr std::size_t most_choices = 32;  // of a thread, before one that is not in force is used anew
}

thread_caches::thread_caches() {
  choices_.push_back(std::make_unique<choice>());
  now_ = choices_.front().get();
}

void thread_caches::choose(choice& c) noexcept {
  now_ = &c;
  base::thread_pointer<allocation_table, &no_allocations>::value = &c.table;
}

thread_caches::choice& thread_caches::choice_within(choice& before, pool_in_force const& p) {
  if (before.last_pool == p.number)
    return *before.last;
  // Its pools: p takes the place of the one of its device.
  std::vector<pool_in_force> pools = before.pools;
  auto const at = std::ranges::lower_bound(pools, p.of, {}, &pool_in_force::of);
  if (at != pools.end() && at->of == p.of)
    *at = p;
  else
    pools.insert(at, p);
  auto found = std::ranges::find_if(choices_, [&](auto const& c) { return c->pools == pools; });
  // There are many choices: one that is not in force, and that no guard leads back to, is used anew.
  if (found == choices_.end() && choices_.size() >= most_choices) {
    found = std::ranges::find_if(choices_, [&](auto const& c) {
      return c != choices_.front() && c.get() != &before && c.get() != now_ &&
             std::ranges::none_of(entered_, [&](entered const& e) { return e.before == c.get(); });
    });
    // What led there leads there no more.
    for (auto const& c : choices_) {
      if (found != choices_.end() && c->last == found->get())
        c->last_pool = 0;
    }
  }
  if (found == choices_.end()) {
    base::make_room(choices_);
    choices_.push_back(std::make_unique<choice>());
    found = choices_.end() - 1;
  }
  choice& c = **found;
  if (c.pools != pools) {
    c.pools = std::move(pools);
    c.last_pool = 0;
    c.table.entries = {};
    c.table.pools = c.pools;
  }
  before.last_pool = p.number, before.last = &c;
  return c;
}

std::uint64_t thread_caches::enter(memory_pool& pool) {
  thread_caches* const mine = of_this_thread();
  if (!mine)
    return 0;
  pool_in_force const p{pool.of, pool.number(), &pool};
  base::make_room(mine->entered_);
  choice& before = *mine->now_;
  mine->choose(mine->choice_within(before, p));
  mine->entered_.push_back({mine->next_number_, p, &before});
  return mine->next_number_++;
}

void thread_caches::leave(std::uint64_t number) noexcept try {
  thread_caches* const mine = of_this_thread();
  if (!mine)
    return;
  auto& all = mine->entered_;
  auto const gone = std::ranges::find(all, number, &entered::number);
  if (gone == all.end())
    return;
  // The pools that were entered after it lead to other choices than before.
  choice* now = gone->before;
  for (auto later = all.erase(gone); later != all.end(); ++later) {
    later->before = now;
    now = &mine->choice_within(*now, later->pool);
  }
  mine->choose(*now);
} catch (std::bad_alloc const&) {}  // then the pool stays in force until the thread has left those after it

memory_pool* thread_caches::in_force(std::uint64_t heap_table) noexcept {
  for (pool_in_force const& p : allocation_table::mine().pools) {
    if (p.of == heap_table)
      return p.pool->is_open_as(p.number) ? p.pool : outer(heap_table);
  }
  return nullptr;
}

// Of guards within each other the innermost whose pool is there.
memory_pool* thread_caches::outer(std::uint64_t heap_table) noexcept {
  thread_caches const* const mine = of_this_thread();  // it has entered a pool
  for (auto e = mine->entered_.rbegin(); e != mine->entered_.rend(); ++e) {
    if (e->pool.of == heap_table && e->pool.pool->is_open_as(e->pool.number))
      return e->pool.pool;
  }
  return nullptr;
}

}  // namespace weir::memory
