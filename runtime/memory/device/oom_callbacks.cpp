// The user's callbacks of the out-of-memory ladder.
// Threads: as oom_callbacks.h.
#include "runtime/memory/device/oom_callbacks.h"

#include <algorithm>
#include <iterator>

#include "runtime/base/call_site.h"

namespace weir::memory {

std::uint64_t oom_callbacks::add(ladder_callback run, void* state, int order, kind is) {
  base::lock_guard hold(lock_);
  auto const at = std::find_if(all_.begin(), all_.end(), [&](entry const& e) { return e.order > order; });
  all_.insert(at, {next_, order, is, run, state});
  return next_++;
}

void oom_callbacks::remove(std::uint64_t id) noexcept {
  std::uint64_t const me = base::this_thread_id();
  base::unique_lock hold(lock_);
  if (std::erase_if(all_, [&](entry const& e) { return e.id == id; }) == 0)
    return;
  // Only for this callback: another one may be removing itself, or may wait for this thread.
  done_.wait(hold, [&] {
    return std::none_of(running_.begin(), running_.end(),
                        [&](caller const& c) { return c.in == id && c.thread != me; });
  });
}

// While it lives, this thread makes the calls; a call inside of them makes none.
class oom_callbacks::calling {
 public:
  explicit calling(oom_callbacks& in) : in_(in), first_(in.begin(me_)) {}
  ~calling() {
    if (!first_)
      return;
    base::lock_guard hold(in_.lock_);
    std::erase_if(in_.running_, [&](caller const& c) { return c.thread == me_; });
    in_.done_.notify_all();
  }
  calling(calling const&) = delete;
  bool is_outermost() const noexcept { return first_; }  // not inside a callback of this thread
  bool enter(std::uint64_t id) {                         // false: an earlier callback has removed it
    base::lock_guard hold(in_.lock_);
    bool const stands = std::any_of(in_.all_.begin(), in_.all_.end(), [&](entry const& a) { return a.id == id; });
    auto const mine =
        std::find_if(in_.running_.begin(), in_.running_.end(), [&](caller const& c) { return c.thread == me_; });
    mine->in = stands ? id : 0;
    in_.done_.notify_all();
    return stands;
  }

 private:
  oom_callbacks& in_;
  std::uint64_t const me_ = base::this_thread_id();
  bool const first_;
  base::program_ordering const its_own_{};
};

bool oom_callbacks::begin(std::uint64_t thread) {
  base::lock_guard hold(lock_);
  if (std::any_of(running_.begin(), running_.end(), [&](caller const& c) { return c.thread == thread; }))
    return false;
  running_.push_back({thread, 0});
  return true;
}

bool oom_callbacks::call_each(memory_report const& r, kind is) {
  std::vector<entry> now;
  {
    base::lock_guard hold(lock_);
    std::ranges::copy_if(all_, std::back_inserter(now), [is](entry const& e) { return e.is == is; });
  }
  if (now.empty())
    return false;
  calling mine(*this);
  if (!mine.is_outermost())
    return false;
  bool freed = false;
  for (entry const& e : now) {
    if (mine.enter(e.id))
      freed |= e.run(e.state, r);
  }
  return freed;
}

bool oom_callbacks::call(memory_report const& r) {
  return call_each(r, kind::at_once);
}
bool oom_callbacks::wait(memory_report const& r) {
  return call_each(r, kind::waits);
}

bool oom_callbacks::spill(memory_report const& r) {
  pool_spiller* const s = spiller_.load();
  if (!s)
    return false;
  calling const mine(*this);
  return mine.is_outermost() && s->make_room(r);
}

}  // namespace weir::memory
