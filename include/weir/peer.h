// weir/peer.h: links between GPUs, and memory that several of them look at.
// Threads: any.
#pragma once
#include <vector>

#include "weir/copy.h"

namespace weir {

struct peer_link {
  device from, to;              // `from` reads and writes memory of `to`
  // direct: PCIe, or NVLinks nobody counted; host: no access, copies go through host memory
  enum class kind : std::uint8_t { self, nvlink, direct, host } by;
  int nvlinks;                  // 0: none, or not known
  bool access;                  // what the driver claims
  bool native_atomics;
  bool verified;                // bytes were written and read back, and were right
  // they were, and were not: copies go through host memory. Neither: not tried, as `to` has its memory in
  // segments, or as many peers as it can
  bool wrong = false;
};
// All pairs, row by row. Opens every device. Blocks:
// the first call verifies each pair, about a millisecond each
std::vector<peer_link> links(source_location = source_location::current());
// The driver claims it, and no test has found it wrong. Opens nothing. Throws:
// invalid_use (no such device), driver_error
bool can_access_peer(device from, device to, source_location = source_location::current());
namespace detail {
void enable_peer_access(void const* block, device reader, source_location);
}
// A kernel of `reader` may then use the whole block at the address it has. Memory of the reader's own device,
// and pinned memory: nothing to do. Blocks: the first for a pair verifies the link
// Shared memory of weir/share.h, too: then the whole handle, with what else a pool has there.
// Throws: not_supported (no link, or one that gives wrong bytes, memory in segments), invalid_use (no block
// of weir's), out_of_memory (the link could not be tried), device_lost, driver_error
// Returns: block
template <class T>
T* enable_peer_access(T* block, device reader, source_location at = source_location::current()) {
  detail::enable_peer_access(block, reader, at);
  return block;
}
// All memory that allocations of this stream, or of all streams of a device, those to come as well, draw on,
// and of a device what it shares with other processes, is open to these devices from now on: what is held
// now, and each further handle before a block of it is handed out. No copy has to be worth it first, and
// kernels read in place at once. Such memory is not moved, and streams that it is open for take over no
// memory that is not. It stays so until the stream ends: who leases it next begins with the device's readers.
// What was open then stays open; blocks handed out before from what other streams had left idle stay as they
// are. A reader that is lost later is left out. Blocks:
// some 0.15 ms for each handle, 50 us more for each reader after the first
// Throws: not_supported, naming the pair (no link, one that gives wrong bytes, a ninth peer; memory in
// segments), invalid_use, out_of_memory, device_lost, driver_error;
// nothing is open from now on then that was not
void enable_peer_access(stream_ref, std::vector<device> const& readers, source_location = source_location::current());
void enable_peer_access(device owner, std::vector<device> const& readers, source_location = source_location::current());
// by number; not the stream's own
std::vector<device> memory_readers(stream_ref, source_location = source_location::current());

}  // namespace weir
