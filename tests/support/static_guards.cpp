// Initialisers of function-local statics, among threads of a relay. The language's own guard puts whoever
// meets a static that another thread is making to sleep in the system; where one thread runs at a time the
// other then never goes on. So test programs have these in front of the language's calls: an initialiser is
// one step of a relay, and if it has to wait all the same (for a lock), others that come to the static wait
// as threads of a relay do. Linked into every test program, see cmake/weir_tests.cmake.
// Threads: any; those of no relay find the language's calls as they are.
#include <algorithm>
#include <vector>

#include "simulator/threads/thread_scheduler.h"

namespace weir::tests {
namespace {

using guard = long long;  // its first byte: the static is made

using give_back_call = void(guard*);

struct maker {
  guard* of;
  base::thread_scheduler* in;
  int number;  // of the thread
};
struct makers {  // threads of relays
  std::vector<maker> all{};
  base::condition fewer{};
  auto find(guard* g) {
    return std::find_if(all.begin(), all.end(), [g](maker const& m) { return m.of == g; });
  }
};
constinit base::mutex lock{base::quiet};
constinit makers* now = nullptr;  // never destroyed

// What comes before a thread of a relay asks the language. Requires: it is undivided: nothing here is a
// switch point, for only the first run of a process comes here.
void wait_for_others(guard* g, base::thread_scheduler* here) {
  base::unique_lock hold(lock);
  if (!now) now = new makers;
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
    if (mine) now->all.erase(at);
  }
  call(g);
  if (!mine) return;
  now->fewer.notify_all();
  base::detail::keep_baton(false);
}

}  // namespace
}  // namespace weir::tests

extern "C" {
using weir::tests::guard;

// The linker's --wrap: calls of __cxa_guard_X come to __wrap___cxa_guard_X,
// and __real___cxa_guard_X is the language's, wherever it lies.
int __real___cxa_guard_acquire(guard*);
void __real___cxa_guard_release(guard*);
void __real___cxa_guard_abort(guard*);

int __wrap___cxa_guard_acquire(guard* g) {
  auto* const here = weir::base::thread_scheduler::here();
  if (!here) return __real___cxa_guard_acquire(g);
  weir::base::detail::keep_baton(true);
  weir::tests::wait_for_others(g, here);
  int const mine = __real___cxa_guard_acquire(g);  // no thread of this relay has it: one of none goes on by itself
  if (mine) {
    weir::base::unique_lock hold(weir::tests::lock);
    try {
      weir::tests::now->all.push_back({g, here, weir::base::thread_scheduler::number()});
      return mine;
    } catch (std::bad_alloc const&) {}  // then it may be switched away from, as without this file
  }
  weir::base::detail::keep_baton(false);
  return mine;
}
void __wrap___cxa_guard_release(guard* g) { weir::tests::give_back(g, __real___cxa_guard_release); }
void __wrap___cxa_guard_abort(guard* g) { weir::tests::give_back(g, __real___cxa_guard_abort); }
}
