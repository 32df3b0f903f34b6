// weir/copy.h: one call; the addresses decide the route. docs/copies.md says for every pair of places what
// blocks and when the source may be touched; each line there is a test.
// Threads: any; two threads that copy on one stream decide between them who comes first.
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "weir/memory.h"

namespace weir {

// Requires: nothing of the ranges is freed before this call;
// after it they may be freed at once, memory waits for its copies.
// Without a stream: the current stream of the device that the copy concerns; between two devices that of the
// source's. Between two devices the copy is ordered after the current streams of both, and they after it.
// Ensures: blocking::yes: the host may touch both when it returns (between devices:
// at once, there is nothing of the host's).
// Throws: invalid_use (null, past the end of a known block, ranges that overlap, freed memory, another
// device's stream), out_of_memory (no room for staging), device_lost, driver_error, not_supported.
// Zero bytes are fine, wherever they lie.
stamp copy(void* dst, void const* src, size_t bytes, blocking = blocking::yes,
           source_location = source_location::current());
stamp copy(stream_ref, void* dst, void const* src, size_t bytes, blocking = blocking::yes,
           source_location = source_location::current());

struct copy_item {
  void* dst;
  void const* src;
  size_t bytes;
};
// Many as one: all are looked at before the first is enqueued, in order.
stamp copy(stream_ref, std::span<copy_item const>, blocking = blocking::yes,
           source_location = source_location::current());

// Every byte becomes that one. Blocks: not for device memory; for memory of the host, which this thread
// writes, until the stream is done. Without a stream: the current stream of dst's device. Throws: as copy
stamp fill(void* dst, std::byte, size_t bytes, source_location = source_location::current());
stamp fill(stream_ref, void* dst, std::byte, size_t bytes, source_location = source_location::current());

enum class copy_route : std::uint8_t {
  automatic,
  same_device,  // the device's own engine
  engine,       // between pinned memory and a device
  peer,         // from device to device
  staged,       // through slots of pinned memory
  host,         // by the calling thread
  striped,      // between pinned memory and a device, over the links of lent devices too
};
std::string_view name_of(copy_route) noexcept;
struct route_choice {
  copy_route by;
  std::string reason;
};
// What copy would do with these, and why. Throws: what copy would throw before it enqueues anything
route_choice explain_copy(void const* dst, void const* src, size_t bytes, source_location = source_location::current());

class [[nodiscard]] route_guard {  // copies of this thread take that route; one that cannot be throws invalid_use
 public:
  explicit route_guard(copy_route);
  ~route_guard();
  route_guard(route_guard const&) = delete;
  route_guard& operator=(route_guard const&) = delete;

 private:
  copy_route found_;
};

// While this lives, large copies of this thread between pinned memory and a device go in parts, at the same
// time, over that device's own link to the host and over those of the devices lent here, which pass them on
// between devices. Nothing else of them is used but 24 MiB of their memory for each device copied to or from.
// Those that do not reach the device are left out.
class [[nodiscard]] link_sharing_guard {
 public:
  // Throws: invalid_use (cpu, no such device). Blocks: no; the first striped copy makes what it needs
  explicit link_sharing_guard(std::span<device const>, source_location = source_location::current());
  ~link_sharing_guard();  // requires: on its thread, in reverse order of making
  link_sharing_guard(link_sharing_guard const&) = delete;
  link_sharing_guard& operator=(link_sharing_guard const&) = delete;

 private:
  std::vector<int> found_;
};

}  // namespace weir
