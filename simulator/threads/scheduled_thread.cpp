// The system threads kept for reuse, and the relay of each thread.
// Threads: any.
#include "simulator/threads/scheduled_thread.h"

#include "runtime/base/lasting.h"

namespace weir::base::detail {
namespace {

struct kept {
  baton_flag go{};
  std::shared_ptr<scheduler_thread> next{};
  std::shared_ptr<scheduler_thread> (*body)(scheduler_thread&) noexcept = nullptr;
};

// Never destroyed: kept threads sleep until the process ends.
struct shelf {
  std::mutex mutex{};
  std::vector<kept*> idle{};
};
lasting<shelf>& all() noexcept {
  static lasting<shelf> made;
  return made;
}

// Returns: the flag of the next thread, which its relay keeps alive until it has the baton.
// Ensures: holds nothing of the relay: its first thread may leave, and count what is left, before this one
// sleeps.
baton_flag& done_by(kept& me) {
  auto const mine = std::move(me.next);
  scheduled_thread::value = mine.get();
  baton_flag& next = *me.body(*mine)->go;
  scheduled_thread::value = nullptr;
  return next;
}

void labour(kept& me) {
  for (;;) {
    me.go.await();
    baton_flag& next = done_by(me);
    {
      shelf& kept_here = *all();
      std::lock_guard lock(kept_here.mutex);
      kept_here.idle.push_back(&me);
    }
    next.give();
  }
}

// A child of fork has one thread, in no relay. During the fork no switch point may choose another thread.
[[maybe_unused]] bool const watching_forks = os::around_forks(
    [] {
      if (auto* const me = this_scheduler_thread())
        ++me->quiet;
    },
    [] {
      if (auto* const me = this_scheduler_thread())
        --me->quiet;
    },
    [] {
      scheduled_thread::value = nullptr;
      relays.store(0);
      all().make_anew();
    });

}  // namespace

void run_on_kept_thread(std::shared_ptr<scheduler_thread> t,
                        std::shared_ptr<scheduler_thread> (*body)(scheduler_thread&) noexcept) {
  kept* by = nullptr;
  {
    shelf& kept_here = *all();
    std::lock_guard lock(kept_here.mutex);
    if (!kept_here.idle.empty()) {
      by = kept_here.idle.back();
      kept_here.idle.pop_back();
    }
  }
  if (!by) {
    auto made = std::make_unique<kept>();
    std::thread(labour, std::ref(*made)).detach();
    by = made.release();
  }
  t->go = &by->go;
  by->body = body;
  by->next = std::move(t);
}

}  // namespace weir::base::detail
