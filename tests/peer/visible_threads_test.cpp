// Memory that is opened to peers while other threads allocate and free.
// Threads: four.
#include <vector>

#include "tests/peer/machine_fixture.h"

namespace weir {
namespace {

TEST(visible_among_threads, some_allocate_while_others_open) {
  test::machine m({.devices = 3, .memory = 256_MiB});
  std::vector<base::thread> all;
  for (int t = 0; t < 3; ++t) {
    all.emplace_back([&m, t] {
      runtime_guard const in(m.own);
      stream const s{device(0)};
      stream_guard const on(s);
      std::vector<buffer> mine;
      for (int i = 0; i < 60; ++i) {
        mine.emplace_back(static_cast<size_t>(1 + (i * 7 + t) % 9) * 300'000, buffer_options{.on = device(0)});
        if (mine.size() > 4)
          mine.erase(mine.begin());
        if (i % 20 == 10 + t)
          empty_cache(device(0));
        if (i == 20 + t)
          enable_peer_access(s, {device(1)});
        if (i > 20 + t) {
          EXPECT_TRUE(m.memory(0).granted(mine.back().data(), 1));
        }
      }
    });
  }
  enable_peer_access(device(0), {device(2)});
  buffer const b(1_MiB, {.on = device(0)});
  EXPECT_TRUE(m.memory(0).granted(b.data(), 2));
  for (auto& t : all)
    t.join();
  for (int d = 0; d < 3; ++d)
    synchronize(device(d));
  EXPECT_EQ(m.memory(0).validate(), std::vector<std::string>{});
  EXPECT_EQ(m.control().findings(), std::vector<std::string>{});
}

}  // namespace
}  // namespace weir
