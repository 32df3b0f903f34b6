// weir/peer.h: links between GPUs, and memory that several GPUs access.
// Threads: any.
#pragma once
#include <vector>

#include "weir/copy.h"

namespace weir WEIR_API {

struct peer_link {
  device from, to;  // `from` reads and writes memory of `to`
  // direct: PCIe, or NVLinks of unknown number; host: no access, copies go through host memory
  enum class kind : std::uint8_t { self, nvlink, direct, host } by;
  int nvlinks;  // 0: none or unknown
  bool access;  // what the driver reports
  bool native_atomics;
  bool verified;  // a link test read back the bytes that it wrote
  // The link test read back wrong bytes: copies go through host memory. Neither flag: not tested, because
  // `to` has its memory in segments or already has the maximum number of peers.
  bool wrong = false;
};
// Returns all pairs, row by row. Opens every device. Blocks: the first call tests each link, about 1 ms each.
std::vector<peer_link> links(source_location = source_location::current());
// Whether the driver reports access and no link test failed. Opens nothing.
// Throws: invalid_use (no such device), driver_error.
bool can_access_peer(device from, device to, source_location = source_location::current());
namespace detail {
void enable_peer_access(void const* block, device reader, source_location);
}
// Lets kernels of `reader` access the whole block at its address. For imported memory and exportable buffers
// (weir/share.h): the whole handle, with other buffers of its pool. Memory of the reader's own device and
// pinned memory need nothing. Blocks: the first call for a pair tests the link. Returns: block.
// Throws: not_supported (no link, a link that gives wrong bytes, memory in segments), invalid_use (no block
// of weir), out_of_memory (no memory for the link test), device_lost, driver_error.
template <class T>
T* enable_peer_access(T* block, device reader, source_location at = source_location::current()) {
  detail::enable_peer_access(block, reader, at);
  return block;
}
// Opens all memory that this stream, or every stream of the device, allocates from, now and later, to the
// readers. A device also opens its exportable memory. A later handle is opened before a block of it is handed
// out, so kernels read in place at once, without a first copy. weir does not move such memory, and these
// streams take over no memory from streams that have not opened theirs.
// Ends with the stream: its next lease begins with the device's readers. Memory opened until then stays open.
// Blocks already taken over from other streams are not opened. A reader lost later is dropped.
// Blocks: about 0.15 ms for each handle, and 50 us more for each reader after the first.
// Throws: not_supported naming the pair (no link, a link that gives wrong bytes, a ninth peer, memory in
// segments), invalid_use, out_of_memory, device_lost, driver_error. Nothing new is opened later then.
void enable_peer_access(stream_ref, std::vector<device> const& readers, source_location = source_location::current());
void enable_peer_access(device owner, std::vector<device> const& readers, source_location = source_location::current());
// Readers of the stream's memory, by device number, without its own device.
std::vector<device> memory_readers(stream_ref, source_location = source_location::current());

}  // namespace weir
