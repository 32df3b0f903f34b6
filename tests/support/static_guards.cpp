// Guards of function-local statics for scheduled threads. The C++ runtime's guard blocks a thread in the
// system if another one initializes the static. If only one thread may run, the initializing one then never
// continues. Here an initializer is one step of the scheduler, and threads wait for the static as scheduled
// threads. Linked into every test program, see cmake/weir_tests.cmake.
// Threads: any; unscheduled threads use the C++ runtime's calls.
#include <algorithm>
#include <vector>

#include "simulator/threads/thread_scheduler.h"

namespace weir::tests {
namespace {

using guard = long long;  // its first byte: the static is initialised

using give_back_call = void(guard*);

struct maker {
  guard* of;
  base::thread_scheduler* in;
  int number;  // of the thread
};
struct makers {  // scheduled threads
  std::vector<maker> all{};
  base::condition fewer{};
  auto find(guard* g) {
    return std::find_if(all.begin(), all.end(), [g](maker const& m) { return m.of == g; });
  }
};
constinit base::mutex lock{base::quiet};
constinit makers* now = nullptr;  // never destroyed

// Makes a scheduled thread wait before it calls the C++ runtime's guard. Nothing here is a switch point,
// because only a process's first run gets here. Requires: no switch in between.
void wait_for_others(guard* g, base::thread_scheduler* here) {
  base::unique_lock hold(lock);
  if (!now)
    now = new makers;
  for (auto at = now->find(g); at != now->all.end() && at->in == here && at->number != base::thread_scheduler::number();
       at = now->find(g))
    now->fewer.wait(hold);
}

void give_back(guard* g, give_back_call* call) {
  base::thread_scheduler* const here = base::thread_scheduler::here();
  bool mine = false;
  if (here) {
    base::no_switch const here_too;
    base::unique_lock hold(lock);
    auto const at = now ? now->find(g) : std::vector<maker>::iterator{};
    mine = now && at != now->all.end() && at->in == here && at->number == base::thread_scheduler::number();
    if (mine)
      now->all.erase(at);
  }
  call(g);
  if (!mine)
    return;
  now->fewer.notify_all();
  base::detail::keep_baton(false);
}

}  // namespace
}  // namespace weir::tests

extern "C" {
using weir::tests::guard;

// The linker's --wrap redirects calls of __cxa_guard_X to __wrap___cxa_guard_X. __real___cxa_guard_X is the
// C++ runtime's.
int __real___cxa_guard_acquire(guard*);
void __real___cxa_guard_release(guard*);
void __real___cxa_guard_abort(guard*);

int __wrap___cxa_guard_acquire(guard* g) {
  auto* const here = weir::base::thread_scheduler::here();
  if (!here)
    return __real___cxa_guard_acquire(g);
  weir::base::detail::keep_baton(true);
  weir::tests::wait_for_others(g, here);
  int const mine = __real___cxa_guard_acquire(g);  // held by no thread of this scheduler; others continue by themselves
  if (mine) {
    weir::base::unique_lock hold(weir::tests::lock);
    try {
      weir::tests::now->all.push_back({g, here, weir::base::thread_scheduler::number()});
      return mine;
    } catch (std::bad_alloc const&) {}  // then a switch may happen inside, as without this file
  }
  weir::base::detail::keep_baton(false);
  return mine;
}
void __wrap___cxa_guard_release(guard* g) {
  weir::tests::give_back(g, __real___cxa_guard_release);
}
void __wrap___cxa_guard_abort(guard* g) {
  weir::tests::give_back(g, __real___cxa_guard_abort);
}
}
