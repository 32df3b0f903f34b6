// Handles released to the driver, and those that it refuses.
// Threads: as physical_memory.h.
#include "runtime/memory/space/physical_memory.h"

namespace weir::memory {

bool physical_memory::charge(memory_pool& pool, std::size_t bytes) {
  if (of_.may_take(bytes) < bytes || !pool.charge(bytes))
    return false;
  if (of_.counts.charge(bytes))
    return true;
  pool.refund(bytes);
  return false;
}

void physical_memory::refund(memory_pool& pool, std::size_t bytes) {
  of_.counts.gave(0, bytes);
  pool.refund(bytes);
}

void physical_memory::release(driver::memory_handle h, std::size_t bytes, batch& out) {
  if (of_.machine.release(h).ok())
    return;
  out.orphaned += bytes;
  try {
    orphans_.lock()->push_back({h, 0, bytes});
  } catch (...) {}  // no host memory to note it either: it is held until the process ends
}

void physical_memory::undo(batch& out) {
  std::erase_if(out.handles, [&](handle const& h) {
    if (!of_.machine.unmap(h.at, h.bytes).ok())
      return false;
    release(h.physical, h.bytes, out);
    return true;
  });
}

std::size_t physical_memory::return_orphans() {
  std::size_t bytes = 0;
  std::vector<handle> all;
  all.swap(*orphans_.lock());
  std::erase_if(all, [&](handle const& h) {
    bool const gone = of_.machine.release(h.physical).ok();
    bytes += gone ? h.bytes : 0;
    return gone;
  });
  of_.counts.refund(bytes);
  auto orphans = orphans_.lock();
  orphans->swap(all);
  // Those that other threads have added meanwhile.
  try {
    orphans->insert(orphans->end(), all.begin(), all.end());
  } catch (std::bad_alloc const&) {}  // no host memory to note them: as in release()
  return bytes;
}

std::size_t physical_memory::orphaned_bytes() const {
  std::size_t bytes = 0;
  auto const all = orphans_.lock();
  for (handle const& h : *all)
    bytes += h.bytes;
  return bytes;
}

}  // namespace weir::memory
