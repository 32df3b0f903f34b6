// Memory of the simulated machine that other processes map: exported memory is an anonymous file.
// Threads: any; under the memory's lock.
#include "runtime/base/os.h"
#include "runtime/base/os_socket.h"
#include "runtime/base/room.h"
#include "simulator/machine/memory.h"

namespace weir::driver::sim {
// Each gets its own file. Processes that map it share its bytes, and none can shrink it.
result<memory_handle> memory::create_shared(int device, std::size_t bytes) {
  if (bytes == 0 || bytes % shape_.granularity != 0)
    return {invalid};
  base::lock_guard lock(mutex_);
  base::make_room(handles_);  // so that new_slot() does not throw, and no file descriptor leaks
  backing_memory& from = *backing_[static_cast<std::size_t>(device)];
  if (!from.count(bytes))
    return {{code::out_of_memory}};
  int const file = os::make_memory_file("weir shared memory");
  if (file < 0 || !os::resize_file(file, bytes) || !os::seal_size(file)) {
    if (file >= 0)
      os::close_file(file);
    from.uncount(bytes);
    return {{code::out_of_memory}};
  }
  std::uint32_t const index = new_slot();
  physical& p = handles_[index];
  p = {.device = device, .bytes = bytes, .turn = p.turn + 1, .file = file};
  return {fine, handle_of(index)};
}

result<int> memory::export_handle(memory_handle h) {
  base::lock_guard lock(mutex_);
  physical* const p = lookup(h);
  if (!p || p->file < 0 || p->foreign)
    return {invalid};
  int const file = os::duplicate_file(p->file);
  if (file < 0)
    return {{code::out_of_memory}};
  return {fine, file};
}

result<memory_handle> memory::import_handle(int device, std::size_t bytes, int file) {
  if (bytes == 0 || bytes % shape_.granularity != 0)
    return {invalid};
  if (os::unfit_to_map(file, bytes))
    return {invalid};
  base::lock_guard lock(mutex_);
  base::make_room(handles_);  // so that new_slot() does not throw, and no file descriptor leaks
  int const own = os::duplicate_file(file);
  if (own < 0)
    return {{code::out_of_memory}};
  std::uint32_t const index = new_slot();
  physical& p = handles_[index];
  p = {.device = device, .bytes = bytes, .turn = p.turn + 1, .file = own, .foreign = true};
  return {fine, handle_of(index)};
}

void memory::close_shared(physical& p) {
  if (p.file < 0)
    return;
  os::close_file(p.file);
  if (!p.foreign)
    backing_[static_cast<std::size_t>(p.device)]->uncount(p.bytes);
  p.file = -1;
}

}  // namespace weir::driver::sim
