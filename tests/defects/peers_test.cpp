// The defects that users reported of other allocators, one test each where weir could have it too: docs/peers-defects.md
// has the list, with the tests that stand elsewhere. Each names its report.
#include <gtest/gtest.h>

#include "tests/support/memory_bench.h"

namespace weir {
namespace {

using tests::memory_bench;
constexpr here at{"a test", "a test", 1};

struct no_mapping final : weir::driver::faulty {  // segments only: what cudaMalloc and cudaFree are
  using faulty::faulty;
  weir::driver::result<weir::driver::device_info> info(int device) override {
    auto i = faulty::info(device);
    i.value.maps = false;
    return i;
  }
};

struct peers : ::testing::Test {
  explicit peers(bool maps = true, simulated::running how = simulated::running::stepped)
      : bench({.devices = 2, .memory = 4 << 20, .how = how, .seed = 1}, {}, [maps](std::unique_ptr<driver::driver> m) {
          if (!maps) m = std::make_unique<no_mapping>(std::move(m));
          return m;
        }) {}
  memory::allocator& device() { return bench.on(0); }
  void* take(clock::timeline& s, std::size_t bytes) { return device().allocate(s, bytes, 0, at); }
  void give(void* p, clock::timeline* last = nullptr) { device().deallocate(p, last, at); }
  void sound() {
    EXPECT_EQ(device().validate(), std::vector<std::string>{});
    EXPECT_EQ(bench.control->findings(), std::vector<std::string>{});
  }
  memory_bench bench;
  clock::timeline& a = bench.stream(0);
  clock::timeline& b = bench.stream(0);
};

// pytorch#50925, cutorch#710, nccl#48: cudaFree waits for all devices, so a rank's kernel that waits for the next rank's never ends.
struct peers_without_mapping : peers {
  peers_without_mapping() : peers(false, simulated::running::seeded) {}
};
TEST_F(peers_without_mapping, memory_is_not_given_back_while_a_collective_waits_for_a_rank_that_this_thread_has_still_to_serve) {
  give(take(b, 3 << 20));
  ASSERT_TRUE(bench.clocks().synchronize(b.now()).ok());
  auto const rank = bench.machine().hold(1, bench.stream(1).handle());
  clock::timeline& collective = bench.stream(0);
  collective.set_carries_collectives(true);
  auto const gate = bench.machine().hold(0, collective.handle());
  ASSERT_TRUE(rank.ok() && gate.ok());
  EXPECT_THROW(take(a, 3'500 << 10), out_of_memory);
  EXPECT_EQ(bench.control->findings(), std::vector<std::string>{}) << "the thread waited in the driver";
  ASSERT_TRUE(bench.machine().open_gate(rank.value).ok() && bench.machine().open_gate(gate.value).ok());
  ASSERT_TRUE(bench.control->run());
  EXPECT_NE(take(a, 3'500 << 10), nullptr);
  sound();
}

}  // namespace
}  // namespace weir
