// All allocators of one runtime: which of them owns an address, and the callbacks of all.
// Threads: any.
#include "runtime/memory/device/device_memory.h"

#include <algorithm>

#include "runtime/base/lasting.h"
#include "runtime/base/room.h"
#include "runtime/core/parts.h"
#include "runtime/memory/device/device_allocator.h"
#include "runtime/memory/space/mapped_spaces.h"

namespace weir::memory {

struct device_memory::state {
  explicit state(weir::runtime::impl& r) : runtime(r) {}
  weir::runtime::impl& runtime;
  oom_callbacks callbacks;
  base::mutex making;
  std::unique_ptr<base::atomic<device_allocator*>[]> at;
  std::vector<std::unique_ptr<device_allocator>> made;  // under making
};

namespace {
base::guarded<std::vector<device_memory*>>& alive() noexcept {
  static base::lasting<base::guarded<std::vector<device_memory*>>> all;  // outlives every runtime
  return *all;
}
}  // namespace

device_memory::device_memory(weir::runtime::impl& r) : state_(new state(r)) {
  (void)r.part<clock::clocks>();  // destroyed after this one
  state_->at.reset(new base::atomic<device_allocator*>[static_cast<std::size_t>(r.device_count())]);
  alive().lock()->push_back(this);
}
device_memory::~device_memory() {
  std::erase(*alive().lock(), this);
}

bool device_memory::is_alive(device_memory const* m) noexcept {
  auto const all = alive().lock();
  return std::find(all->begin(), all->end(), m) != all->end();
}

allocator* device_memory::owner_in_process(void const* p) noexcept {
  // Memory of devices that map is found without a lock that all threads share.
  if (region const* const r = mapped_spaces::find(reinterpret_cast<address>(p)))
    return r->owner.load()->entry();
  auto const all = alive().lock();
  for (device_memory* m : *all) {
    if (allocator* const a = m->owner(p))
      return a;
  }
  return nullptr;
}

allocator& device_memory::on(int device, source_location const& at) {
  if (allocator* const a = if_made(device))
    return *a;
  state_->runtime.open(device, "allocate", at);
  base::lock_guard hold(state_->making);
  auto& slot = state_->at[static_cast<std::size_t>(device)];
  if (device_allocator* const a = slot.load())
    return *a;
  base::make_room(state_->made);  // first: an allocator that was made in a capture could not go again
  state_->made.push_back(std::make_unique<device_allocator>(state_->runtime, device, state_->callbacks, at));
  slot.store(state_->made.back().get());
  return *state_->made.back();
}

allocator* device_memory::if_made(int device) noexcept {
  if (device < 0 || device >= state_->runtime.device_count())
    return nullptr;
  return state_->at[static_cast<std::size_t>(device)].load(base::memory_order_acquire);
}

void device_memory::return_idle(weir::runtime::impl& r, int device) noexcept try {
  if (!r.options().device_idle.count()) [[likely]]
    return;
  if (allocator* const a = r.part<device_memory>().if_made(device))
    a->return_idle();
} catch (std::bad_alloc const&) {}

allocator* device_memory::owner(void const* p) noexcept {
  for (int d = 0; d < state_->runtime.device_count(); ++d) {
    device_allocator* const a = state_->at[static_cast<std::size_t>(d)].load(base::memory_order_acquire);
    if (a && a->addresses().find(p))
      return a;
  }
  return nullptr;
}

std::uint64_t device_memory::add_callback(ladder_callback c, void* argument, int order) {
  return state_->callbacks.add(c, argument, order);
}
std::uint64_t device_memory::add_waiting_callback(ladder_callback c, void* argument) {
  return state_->callbacks.add(c, argument, 0, oom_callbacks::kind::waits);
}
void device_memory::remove_callback(std::uint64_t id) noexcept {
  state_->callbacks.remove(id);
}
bool device_memory::call_back(memory_report const& why) {
  return state_->callbacks.call(why);
}
void device_memory::set_spiller(pool_spiller* s) noexcept {
  state_->callbacks.set_spiller(s);
}

}  // namespace weir::memory
