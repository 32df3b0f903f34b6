// Host functions on CUDA: run once in stream order, or dropped after a loss.
// Threads: any; functions run on CUDA's threads, drops after a loss on a thread of this driver.
#include <exception>
#include <memory>

#include "runtime/driver/cuda/cuda_driver.h"

namespace weir::driver::cuda {
namespace {
base::atomic<int> running{0};  // lets a call skip the per-thread check while no host function runs

void drop_each(std::vector<host_call*> const& calls) {
  for (host_call const* c : calls)
    if (c->what.drop)
      c->what.drop(c->what.state);
}
}  // namespace

bool inside_host_function() noexcept {
  return running.load(base::memory_order_relaxed) != 0 && inside_work::here();
}

void host_call::arrive(void* self) noexcept {
  auto* const c = static_cast<host_call*>(self);
  if (!c->take())
    return;  // dropped after a loss; kept in memory for this look
  running.fetch_add(1);
  {
    inside_work const inside;
    if (c->what.run)
      c->what.run(c->what.state);
    if (c->what.drop)
      c->what.drop(c->what.state);
  }
  running.fetch_sub(1);
  std::unique_ptr<host_call> const deleted_at_the_end(c);
  auto p = c->owner->pending_.lock();
  p->calls.erase(c->id);
  c->owner->call_over_.notify_all();  // under the lock: the owner may be destroyed once it is released
}

status cuda_driver::host_function(int device, stream_handle s, work w) {
  status said{code::failed, 0};
  try {
    said = enqueue_host_call(device, s, w);
  } catch (...) {
    if (w.drop)
      w.drop(w.state);
    throw;
  }
  if (!said.ok() && w.drop)
    w.drop(w.state);
  return said;
}

status cuda_driver::enqueue_host_call(int device, stream_handle s, work w) {
  if (!w.run)
    return {code::invalid, 0};
  // a graph may run it any number of times, so that no moment is right for drop
  if (status const said = refuse_captured(device, s); !said.ok())
    return said;
  call in(*this, device, call::mode::enqueues);
  if (in.refused())
    return in.refusal();
  auto made = std::make_unique<host_call>();
  made->owner = this;
  made->device = device;
  made->what = w;
  {
    auto p = pending_.lock();
    made->id = p->next++;
    p->calls.emplace(made->id, made.get());
  }
  std::uint64_t const id = made->id;
  host_call* const c = made.release();  // from here on `arrive` may delete it, or a loss may drop it
  CUresult const r = api_.cuLaunchHostFunc(stream_of(s), &host_call::arrive, c);
  if (r == CUDA_SUCCESS)
    return {};
  // CUDA has refused it. If a loss took it meanwhile, drop_pending() drops it, and it stays in memory.
  bool const ours = c->take();
  if (ours) {
    pending_.lock()->calls.erase(id);
    delete c;
  }
  status const said = in.answer(r);
  if (!ours)
    return {};  // a loss has dropped it: as if it had been enqueued before
  return said;
}

// Drops host functions that can no longer run, on a thread of their own: the caller may hold a lock that a
// drop needs. Dropped calls stay in memory, because CUDA may still look at them once.
void cuda_driver::drop_pending(int device) noexcept {
  std::vector<host_call*> taken;
  try {
    auto p = pending_.lock();
    taken.reserve(p->calls.size());
    for (auto c = p->calls.begin(); c != p->calls.end();) {
      // One that runs is not taken: it ends by itself.
      bool const is_taken = c->second->device == device && c->second->take();
      if (is_taken) {
        taken.push_back(c->second);
        c = p->calls.erase(c);
      } else {
        ++c;
      }
    }
    if (taken.empty())
      return;
    p->droppers.emplace_back([taken] { drop_each(taken); });
  } catch (std::exception const&) {  // no memory or no thread: what is taken is dropped here
    drop_each(taken);
  }
}

}  // namespace weir::driver::cuda
