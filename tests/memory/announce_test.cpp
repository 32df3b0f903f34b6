// options::nvtx_memory: tools are notified of every block from its allocation to its free, and the memory
// between two blocks belongs to none.
// Threads: one.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "runtime/core/parts.h"
#include "simulator/faults/fault_injector.h"
#include "simulator/machine/machine.h"
#include "weir/memory.h"

namespace weir {
namespace {

class listener : public driver::fault_injector {
 public:
  using fault_injector::fault_injector;
  std::map<weir::driver::address, std::size_t> blocks;
  int wrong = 0, asked = 0;
  bool nvtx_memory() override { return ++asked, true; }
  void block_taken(weir::driver::address at, std::size_t bytes) override { wrong += !blocks.emplace(at, bytes).second; }
  void block_given_back(weir::driver::address at) override { wrong += blocks.erase(at) == 0; }
};

struct rig {
  explicit rig(bool announce) {
    auto owned = std::make_unique<listener>(driver::sim::make({.devices = 1, .memory = 256_MiB}).machine);
    told = owned.get();
    runs = make_runtime(std::move(owned), {.nvtx_memory = announce}, "one that listens");
    in.emplace(*runs);
  }
  listener* told = nullptr;
  std::unique_ptr<runtime> runs;
  std::optional<runtime_guard> in;
};

TEST(announce, every_live_block_is_known_with_a_gap_of_256_bytes) {
  rig r(true);
  EXPECT_EQ(r.told->asked, 1);
  std::mt19937_64 random(1);
  stream a, b;
  std::map<void*, std::size_t> live;
  for (int i = 0; i < 2000; ++i) {
    if (live.empty() || random() % 5 < 3) {
      std::size_t const bytes = std::size_t{1} << random() % 21, some = bytes + random() % bytes;
      live.emplace(allocate(random() % 2 ? a.ref() : b.ref(), some), some);
    } else {
      auto const one = std::next(live.begin(), static_cast<std::ptrdiff_t>(random() % live.size()));
      deallocate(one->first);
      live.erase(one);
    }
  }
  ASSERT_EQ(r.told->blocks.size(), live.size());
  driver::address end = 0;
  for (auto const& [at, bytes] : r.told->blocks) {
    ASSERT_EQ(live.at(reinterpret_cast<void*>(at)), bytes);
    ASSERT_GE(at, end) << "too near to the block before";
    end = at + bytes + 256;
    std::size_t const units = (bytes + 15) / 16 * 16;
    ASSERT_EQ(at % std::min<std::size_t>(units & (~units + 1), 512), 0u) << "a natural alignment that changed";
  }
  for (auto const& one : live)
    deallocate(one.first);
  EXPECT_TRUE(r.told->blocks.empty());
  EXPECT_EQ(r.told->wrong, 0);
}

TEST(announce, nothing_is_announced_unless_asked) {
  rig r(false);
  buffer const b(1000);
  EXPECT_EQ(r.told->asked, 0);
  EXPECT_TRUE(r.told->blocks.empty());
}

}  // namespace
}  // namespace weir
