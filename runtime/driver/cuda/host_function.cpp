// Host functions on CUDA: run once in stream order, or dropped unrun when their device is lost.
// Threads: any; the functions run on threads of CUDA's, drops after a loss on a thread of this driver's.
#include <exception>
#include <memory>

#include "runtime/driver/cuda/cuda_driver.h"

namespace weir::driver::cuda {
namespace {
base::atomic<int> running{0};  // so that a call need not look at its thread while no host function runs anywhere
}  // namespace

bool inside_host_function() noexcept { return running.load(base::memory_order_relaxed) != 0 && inside_work::here(); }

void host_call::arrive(void* self) noexcept {
  auto* const c = static_cast<host_call*>(self);
  if (!c->take()) return;  // dropped after a loss; left in memory for this one look
  running.fetch_add(1);
  {
    inside_work const inside;
    if (c->what.run) c->what.run(c->what.state);
    if (c->what.drop) c->what.drop(c->what.state);
  }
  running.fetch_sub(1);
  std::unique_ptr<host_call> const self_no_more(c);
  auto p = c->owner->pending_.lock();
  p->calls.erase(c->id);
  c->owner->call_over_.notify_all();  // with the lock held: the owner may be gone as soon as it is free
}

status cuda_driver::host_function(int device, stream_handle s, work w) {
  status said{code::failed, 0};
  try {
    said = enqueue_host_call(device, s, w);
  } catch (...) {
    if (w.drop) w.drop(w.state);
    throw;
  }
  if (!said.ok() && w.drop) w.drop(w.state);
  return said;
}

status cuda_driver::enqueue_host_call(int device, stream_handle s, work w) {
  if (!w.run) return {code::invalid, 0};
  // a graph may run it any number of times: no place for a drop
  if (status const said = refuse_captured(device, s); !said.ok()) return said;
  call in(*this, device, call::mode::enqueues);
  if (in.refused()) return in.refusal();
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
  host_call* const c = made.release();  // from here `arrive` may delete it, or a loss leave it behind
  CUresult const r = api_.cuLaunchHostFunc(stream_of(s), &host_call::arrive, c);
  if (r == CUDA_SUCCESS) {
    // A loss found by another thread before the launch took it has dropped it:
    // then it was given, and dropped once.
    return {};
  }
  bool const ours = c->take();
  if (ours) {
    pending_.lock()->calls.erase(id);
    delete c;
  }
  status const said = in.answer(r);
  if (!ours) return {};  // a loss in between has dropped it: as if it had been given just before
  return said;
}

// Drops what can no longer run. On a thread of its own: whoever met the loss may hold a lock that a drop
// needs. What was dropped stays in memory, for CUDA may still look at it once.
void cuda_driver::drop_pending(int device) noexcept {
  std::vector<host_call*> taken;
  try {
    auto p = pending_.lock();
    taken.reserve(p->calls.size());
    for (auto c = p->calls.begin(); c != p->calls.end();) {
      if (c->second->device == device && c->second->take()) {
        taken.push_back(c->second);
        c = p->calls.erase(c);
      } else {
        ++c;
      }
    }
    if (taken.empty()) return;
    p->droppers.emplace_back([taken] {
      for (host_call const* c : taken) {
        if (c->what.drop) c->what.drop(c->what.state);
      }
    });
  } catch (std::exception const&) {  // no memory or no thread: then here, rather than never
    for (host_call const* c : taken) {
      if (c->what.drop) c->what.drop(c->what.state);
    }
  }
}

}  // namespace weir::driver::cuda
