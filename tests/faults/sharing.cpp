// Memory shared with another process, both sides in one: send, open, release, send again.
// Threads: one.
#include "peer/share/exports.h"
#include "runtime/base/os_socket.h"
#include "tests/faults/scenario.h"
#include "weir/copy.h"
#include "weir/device.h"

namespace weir::faults {

std::string shared_with_oneself() {
  constexpr std::size_t bytes = 3000;
  auto const both = os::make_sockets();
  peer::owned_file left(both.first), right(both.second);
  share_channel here(left.get());
  left.release();
  share_channel there(right.get());
  right.release();
  std::string seen;
  std::vector<char> host(bytes);
  for (char c : {'a', 'b'}) {
    exportable_buffer const b(bytes, 0);
    std::fill(host.begin(), host.end(), c);
    copy(b.data(), host.data(), bytes);
    here.send(b, current_stream(0));
    here.signal(5, current_stream(0));
    imported_buffer o = there.receive(c == 'a' ? 0 : 1);
    if (there.wait() != 5)
      seen += "another number";
    std::fill(host.begin(), host.end(), '-');
    copy(host.data(), o.data(), bytes);
    seen.append(host.begin(), host.end());
    if (c == 'a')
      o.release(current_stream(0));
  }
  share_pool pool({.on = 0, .readers = {1}});
  exportable_buffer const first = pool.allocate(bytes), second = pool.allocate(bytes);
  for (exportable_buffer const* b : {&first, &second}) {
    here.send(*b, current_stream(0));
    imported_buffer const o = there.receive(1);
    if (o.size() != bytes)
      seen += "another size";
  }
  return seen;
}

}  // namespace weir::faults
