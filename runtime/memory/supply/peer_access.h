// Which devices a stream's memory is open to: each handle is granted to all readers, with its own device.
// Threads: any. No handle is mapped or unmapped while a stream's memory is opened. No heap's lock is held
// over a driver call.
//
// Invariants: a handle at rest is open to all readers of its heap except lost ones; a handle that is open to
// a peer does not move, and none moves to where peers read. A reader that the driver refuses is removed.
#pragma once
#include <string>
#include <vector>

#include "runtime/memory/heap/heap_table.h"
#include "runtime/memory/space/physical_memory.h"

namespace weir::memory {

class peer_access {
 public:
  peer_access(device_context& of, heap_table& heaps, physical_memory& memory)
      : of_(of), heaps_(heaps), memory_(memory) {}

  driver::status grant(void const*, int reader);  // as allocator::grant
  bool granted(void const*, int reader) const noexcept;
  driver::status open_to(clock::stream_clock* home, std::uint64_t readers);  // as allocator::open_to
  // While it is held, no other thread opens a handle. For handles of live blocks that come and go: those of a
  // pool that sleeps or wakes. Requires: memory_.changes is not held
  [[nodiscard]] base::unique_lock no_grants() { return base::unique_lock(granting_); }
  void forget(std::uint64_t devices) { heaps_.remove_readers(devices); }
  std::uint64_t living(std::uint64_t devices) const noexcept;  // those that are not lost
  void validate(excluded const&, std::vector<std::string>& wrong, std::string const& subject) const;

 private:
  driver::status open_devices(std::uint64_t readers);
  // Require: mapping_lock::exclusive
  driver::status open_handles(stream_heap&, std::uint64_t readers);
  driver::status open_each_of(std::span<stream_heap* const>, std::uint64_t readers);
  driver::status open_heaps_of(clock::stream_clock& home, std::uint64_t readers);
  driver::status open_all_heaps(std::uint64_t readers);

  device_context& of_;
  heap_table& heaps_;
  physical_memory& memory_;
  // Held over the driver call, which refuses (208) two grants of one handle at once. Taken before memory_.changes
  base::mutex granting_;
};

}  // namespace weir::memory
