// weir/copy.h: copies and fills. The addresses decide the route. For each pair of places,
// docs/reference/copies.md says what blocks and when the source may change.
// Threads: any. If two threads copy on one stream, their order is undefined unless they synchronize.
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "weir/memory.h"

namespace weir WEIR_API {

// Copies `bytes` on the stream. Default: the current stream of the device that the copy concerns; between two
// devices, the source's. A copy between devices is ordered after the current streams of both, and before
// their next work. Zero bytes are valid at any address.
// Requires: no part of the ranges is freed before this call. Afterwards they may be: weir delays reuse.
// Ensures: with blocking::yes the host may use both ranges on return. A copy between devices returns at once.
// Throws: invalid_use (null, past the end of a known block, ranges that overlap, freed memory, another
// device's stream), out_of_memory (no room for staging), device_lost, driver_error, not_supported.
stamp copy(void* dst, void const* src, size_t bytes, blocking = blocking::yes,
           source_location = source_location::current());
stamp copy(stream_ref, void* dst, void const* src, size_t bytes, blocking = blocking::yes,
           source_location = source_location::current());

struct copy_item {
  void* dst;
  void const* src;
  size_t bytes;
};
// Copies all items in order. weir checks all of them before it enqueues the first.
stamp copy(stream_ref, std::span<copy_item const>, blocking = blocking::yes,
           source_location = source_location::current());

// Sets every byte to the value. Default stream: the current stream of dst's device. Throws: as copy.
// Blocks: not for device memory. Host memory: until the stream is done; this thread writes it.
stamp fill(void* dst, std::byte, size_t bytes, source_location = source_location::current());
stamp fill(stream_ref, void* dst, std::byte, size_t bytes, source_location = source_location::current());

enum class copy_route : std::uint8_t {
  automatic,
  same_device,  // on the device's copy engine
  engine,       // between pinned memory and a device
  peer,         // between devices
  staged,       // through staging slots of pinned memory
  host,         // by the calling thread
  striped,      // between pinned memory and a device, also over the links of lent devices
};
std::string_view name_of(copy_route) noexcept;
struct route_choice {
  copy_route by;
  std::string reason;
};
// Returns the route that copy would choose, and why. Enqueues nothing. Throws: as copy before it enqueues.
route_choice explain_copy(void const* dst, void const* src, size_t bytes, source_location = source_location::current());

class [[nodiscard]] route_guard {  // copies of this thread use this route; throws invalid_use if a copy cannot
 public:
  explicit route_guard(copy_route);
  ~route_guard();
  route_guard(route_guard const&) = delete;
  route_guard& operator=(route_guard const&) = delete;

 private:
  copy_route found_;
};

// Lends the host links of the devices to this thread's large copies between pinned memory and a device. Such
// a copy is split into parts, which run at the same time over the device's own link and over the lent links.
// The lent devices forward their parts; this takes 24 MiB of their memory for each device copied to or from.
// Lent devices without a peer link to the device are skipped. A pool that sleeps and wakes uses them, too.
class [[nodiscard]] link_sharing_guard {
 public:
  // Throws: invalid_use (cpu, no such device). Blocks: no; the first striped copy allocates what it needs
  explicit link_sharing_guard(std::span<device const>, source_location = source_location::current());
  ~link_sharing_guard();  // Requires: on its thread, in reverse order of construction
  link_sharing_guard(link_sharing_guard const&) = delete;
  link_sharing_guard& operator=(link_sharing_guard const&) = delete;

 private:
  std::vector<int> found_;
};

}  // namespace weir
