// Fixtures for tests of sharing: a small machine, two ends of a channel, bytes written and read.
// Threads: one.
#pragma once
#include "peer/share/exports.h"
#include "runtime/base/os_socket.h"
#include "tests/peer/machine_fixture.h"
#include "weir/launch.h"
#include "weir/observe.h"

namespace weir::test::sharing {

using namespace std::chrono_literals;
inline constexpr std::size_t some_bytes = 300'000;
inline simulated small() {
  return {.devices = 2, .memory = 64_MiB};
}

inline std::pair<share_channel, share_channel> lines(std::chrono::milliseconds timeout = 20s) {
  auto const [a, b] = os::make_sockets();
  return {share_channel(a, timeout), share_channel(b, timeout)};
}
inline void write(void* to, test::bytes_of_host const& what) {
  copy(default_stream(0), to, what.data(), what.size(), blocking::yes);
}
inline test::bytes_of_host read(void const* from, std::size_t bytes = some_bytes) {
  return test::read_back(from, bytes, 0);
}

// Buffers of this process, of a pool, and of another process (which is this one), on gpu:0, each with its own
// bytes.
struct shared_kinds {
  shared_kinds() : own(n), pooled(pool.allocate(n)) {
    write(own.data(), test::pattern(n, 1));
    write(pooled.data(), test::pattern(n, 2));
    ends.first.send(own, default_stream(0));
    opened = ends.second.receive();
  }
  void expect_readable_by(test::machine& m, int reader) {
    for (auto const& [at, salt] :
         {std::pair<void const*, std::uint64_t>{own.data(), 1}, {pooled.data(), 2}, {opened.data(), 1}}) {
      std::vector<std::byte> seen(n);
      std::byte* const to = seen.data();
      weir::launch(
          current_stream(device(reader)), {reads(at, n)}, [](auto) {}, [=] { std::memcpy(to, at, n); });
      synchronize(device(reader));
      EXPECT_TRUE(seen == test::pattern(n, salt)) << "gpu:" << reader;
      EXPECT_NE(
          std::string(explain_copy(buffer(n, {.on = device(reader)}).data(), at, n).reason).find("the peer has access"),
          std::string::npos);
    }
    EXPECT_EQ(m.control().findings(), std::vector<std::string>{});
  }
  bool any_open_to(int reader) const {
    std::uint64_t all = 0;
    for (auto const& segment : memory_snapshot(device(0)))
      all |= segment.shared == memory_sharing::none ? 0 : segment.readers;
    return all >> reader & 1;
  }
  static constexpr size_t n = 30'000;
  std::pair<share_channel, share_channel> ends = lines();
  share_pool pool{{.on = 0}};
  exportable_buffer own, pooled;
  imported_buffer opened;
};

}  // namespace weir::test::sharing
