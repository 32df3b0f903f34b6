// weir/peer.h: links between GPUs, and buffers several of them, or several processes, look at.
#pragma once
#include "weir/copy.h"

namespace weir {
struct link { device from, to; enum class kind { self, nvlink, pcie, host } by; int nvlinks; bool access, native_atomics, verified; double gb_per_s; };
std::vector<link> links();                                    // row-major; Blocks: the first call verifies by writing and reading back
bool can_access_peer(device from, device to);
void grant_access(void const* block, device reader, here = here::current());  // a kernel of `reader` may then use the address as it stands
template <class T> T* peer_data(buffer const&, device reader, here = here::current());  // the same, typed. Throws: not_supported where the link cannot

class exported {  // of a block of an exportable pool; the memory is not reused while an importer lives
 public:
  void send(int unix_socket) const; static exported receive(int unix_socket);
};
exported export_buffer(buffer const&, stream_ref last_write, here = here::current());
buffer open(exported const&, stream_ref first_use, here = here::current());  // Throws: invalid_use (stale, foreign, damaged), device_lost
}
