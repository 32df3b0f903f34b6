// What tests of sharing stand on: a small machine, two ends of a line, bytes written and read.
// Threads: one.
#pragma once
#include "peer/share.h"
#include "runtime/base/os_socket.h"
#include "tests/peer/machine_fixture.h"

namespace weir::test::sharing {

using namespace std::chrono_literals;
inline constexpr std::size_t some_bytes = 300'000;
inline simulated small() { return {.devices = 2, .memory = 64_MiB}; }

inline std::pair<share_line, share_line> lines(std::chrono::milliseconds lease = 20s) {
  auto const [a, b] = os::make_sockets();
  return {share_line(a, lease), share_line(b, lease)};
}
inline void write(void* to, test::bytes_of_host const& what) { copy(default_stream(0), to, what.data(), what.size(), blocking::yes); }
inline test::bytes_of_host read(void const* from, std::size_t bytes = some_bytes) { return test::read_back(from, bytes, 0); }

}  // namespace weir::test::sharing
