// Marks of all threads, in one list without a lock: a child of a fork waits for no thread of its parent.
// Threads: as calls_under_way.h.
#include "streams/api/calls_under_way.h"

#include <algorithm>

namespace weir::streams {

struct call_under_way::marks {
  static inline constinit base::atomic<mark*> first{nullptr};
  mark* its = nullptr;
  ~marks() {
    mark_of_thread::value = nullptr;
    if (its)
      its->taken.store(false);
  }
};

call_under_way::mark* call_under_way::first_of_thread() {
  base::no_switch const here;  // a thread's first call is no switch point, like its later ones
  static base::per_thread<marks> of_threads;
  marks& mine = of_threads.get();
  mark* m = marks::first.load();
  while (m && m->taken.exchange(true))
    m = m->next;
  if (!m) {
    m = new mark;
    m->fences = !base::has_process_wide_fence();
    m->next = marks::first.load();
    while (!marks::first.compare_exchange(m->next, m)) {}
  }
  mine.its = m;
  mark_of_thread::value = m;
  return m;
}

void earlier_calls::note() {
  if (base::has_process_wide_fence())
    base::process_wide_fence();
  for (call_under_way::mark const* m = call_under_way::marks::first.load(); m; m = m->next) {
    if (std::uint64_t const number = m->calls.get(); number % 2)
      all_.push_back({m, number});
  }
}

bool earlier_calls::are_over() {
  std::erase_if(all_, [](call const& c) { return c.of->calls.get() != c.number; });
  return all_.empty();
}

bool earlier_calls::has_mine() const {
  call_under_way::mark const* const mine = call_under_way::mark_of_thread::value;
  return std::ranges::any_of(all_, [&](call const& c) { return c.of == mine && mine->calls.get() == c.number; });
}

}  // namespace weir::streams
