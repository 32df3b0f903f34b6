// The user's callbacks of the out-of-memory ladder.
// Threads: as oom_callbacks.h.
#include "runtime/memory/device/oom_callbacks.h"

#include <algorithm>

namespace weir::memory {

std::uint64_t oom_callbacks::add(ladder_callback run, void* state, int order) {
  base::lock_guard hold(lock_);
  auto const at = std::find_if(all_.begin(), all_.end(), [&](entry const& e) { return e.order > order; });
  all_.insert(at, {next_, order, run, state});
  return next_++;
}

void oom_callbacks::remove(std::uint64_t id) noexcept {
  std::uint64_t const me = base::this_thread_id();
  base::unique_lock hold(lock_);
  if (std::erase_if(all_, [&](entry const& e) { return e.id == id; }) == 0) return;
  // Only for this callback: another one may be removing itself, or may wait for this thread.
  done_.wait(hold, [&] {
    return std::none_of(running_.begin(), running_.end(),
                        [&](caller const& c) { return c.in == id && c.thread != me; });
  });
}

bool oom_callbacks::call(memory_report const& r) {
  std::uint64_t const me = base::this_thread_id();
  std::vector<entry> now;
  {
    base::lock_guard hold(lock_);
    if (all_.empty() || std::any_of(running_.begin(), running_.end(), [&](caller const& c) { return c.thread == me; }))
      return false;
    now = all_;
    running_.push_back({me, 0});
  }
  struct leave {
    oom_callbacks& in;
    std::uint64_t me;
    ~leave() {
      base::lock_guard hold(in.lock_);
      std::erase_if(in.running_, [&](caller const& c) { return c.thread == me; });
      in.done_.notify_all();
    }
  } const on_exit{*this, me};
  bool freed = false;
  for (entry const& e : now) {
    {
      base::lock_guard hold(lock_);  // an earlier callback may have removed it
      bool const stands = std::any_of(all_.begin(), all_.end(), [&](entry const& a) { return a.id == e.id; });
      std::find_if(running_.begin(), running_.end(), [&](caller const& c) { return c.thread == me; })->in =
          stands ? e.id : 0;
      done_.notify_all();
      if (!stands) continue;
    }
    freed |= e.run(e.state, r);
  }
  return freed;
}

}  // namespace weir::memory
