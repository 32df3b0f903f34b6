// The bound on reserved memory, at every step of random programs: reserved <= max((1 + epsilon) x most live + a page, covered).
// WEIR_TEST_SEED=s replays program s; WEIR_TEST_SEEDS=n runs n programs.
#include <gtest/gtest.h>

#include <random>

#include "tests/support/memory_bench.h"

namespace weir {
namespace {

using tests::memory_bench;
constexpr here at{"a test", "a test", 1};
constexpr std::size_t page = 64 << 10;  // of machines that are stepped

// Blocks of one stream or two on a machine where all work is done at once; survivors are chosen to lie apart. With two streams what
// an allocation itself finds to be settled is not yet known to be complete, so that it counts as covered: only the lists are checked.
struct program {
  std::mt19937_64 random;
  double const epsilon;
  memory_bench bench;
  std::vector<clock::timeline*> streams;
  memory::allocator& device;
  std::vector<std::pair<char*, std::size_t>> live;
  std::size_t most_live = 0;

  explicit program(std::uint64_t seed)
      : random(seed),
        epsilon(std::array{0.0, 0.01, 0.027, 0.25}[random() % 4]),
        bench({.devices = 1, .memory = 256 << 20, .how = simulated::running::stepped, .seed = seed}, options{.epsilon = epsilon}),
        streams{&bench.stream(0)},
        device(bench.on(0)) {
    if (random() % 2) streams.push_back(&bench.stream(0));
  }
  std::size_t size() {  // no slabs: the rest of one is covered
    std::size_t const largest = std::size_t{1} << (14 + random() % 9);
    return random() % largest + (32 << 10) + 1;
  }
  void complete() {  // and let it be seen
    for (clock::timeline* s : streams) ASSERT_TRUE(s->fence().ok());
    (void)bench.control->run();
  }
  void take() {
    complete();
    std::size_t const bytes = size();
    live.emplace_back(static_cast<char*>(device.allocate(*streams[random() % streams.size()], bytes, 0, at)), bytes);
  }
  void give(std::size_t i) {
    device.deallocate(live[i].first, nullptr, at);
    live[i] = live.back();
    live.pop_back();
  }
  void step() {
    switch (random() % 12) {
      case 0:  // grow
        for (std::size_t n = random() % 8; n > 0; --n) take_checked();
        break;
      case 1: {  // all but every k-th: survivors keep handles apart
        std::size_t const k = random() % 8 + 2;
        for (std::size_t i = live.size(); i-- > 0;) {
          if (i % k) give(i);
        }
        break;
      }
      default:
        if (!live.empty() && random() % 2) give(random() % live.size());
        else take_checked();
    }
  }
  void take_checked() {
    auto const before = static_cast<std::size_t>(device.statistics().reserved_bytes.all.current);
    take();
    expect_bound(before);
  }
  std::size_t in_use() const { return static_cast<std::size_t>(device.statistics().allocated_bytes.all.current); }
  // When the last step made reserved memory grow past the first term, no handle lies wholly free now: there is nothing to give back.
  void expect_bound(std::size_t reserved_before) {
    memory_statistics const n = device.statistics();
    auto const reserved = static_cast<std::size_t>(n.reserved_bytes.all.current);
    most_live = std::max(most_live, in_use());
    auto const first = static_cast<std::size_t>(static_cast<double>(most_live) * (1 + epsilon)) + page;
    if (reserved <= first || reserved <= reserved_before || streams.size() > 1) return;
    complete();
    ASSERT_EQ(device.empty_cache(), 0u) << "a handle was made while others lay free, reserved " << reserved << " of " << first;
  }
};

TEST(bound, a_handle_is_made_past_the_first_term_only_when_none_lies_free) {
  std::uint64_t const only = tests::number_from_environment("WEIR_TEST_SEED", 0);
  std::uint64_t const count = only ? 1 : tests::number_from_environment("WEIR_TEST_SEEDS", 60);
  for (std::uint64_t seed = only ? only : 1, end = seed + count; seed < end; ++seed) {
    SCOPED_TRACE("replay with WEIR_TEST_SEED=" + std::to_string(seed));
    program p(seed);
    for (int i = 0; i < 150; ++i) {
      p.step();
      if (HasFatalFailure()) return;
    }
    EXPECT_EQ(p.device.validate(), std::vector<std::string>{});
    while (!p.live.empty()) p.give(0);
    p.device.empty_cache();
    EXPECT_EQ(p.device.statistics().reserved_bytes.all.current, 0);
  }
}

TEST(bound, a_moved_handle_keeps_every_other_blocks_bytes_where_they_are) {
  memory_bench bench({.devices = 1, .memory = 64 << 20, .how = simulated::running::stepped, .seed = 1}, options{.epsilon = 0});
  auto& s = bench.stream(0);
  auto& device = bench.on(0);
  std::vector<char*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(static_cast<char*>(device.allocate(s, 16 * page, 0, at)));
  for (int i = 0; i < 8; i += 2) device.deallocate(blocks[static_cast<std::size_t>(i)], nullptr, at);
  ASSERT_TRUE(s.fence().ok());
  ASSERT_TRUE(bench.control->run());
  auto const reserved = device.statistics().reserved_bytes.all.current;
  auto const made = device.statistics().pages_mapped;
  void* const large = device.allocate(s, 60 * page, 0, at);
  EXPECT_LE(device.statistics().reserved_bytes.all.current, reserved + static_cast<std::int64_t>(page));
  EXPECT_LE(device.statistics().pages_mapped, made + 1) << "what lay free is moved, not made anew";
  for (std::size_t i = 1; i < 8; i += 2) EXPECT_TRUE(device.find(blocks[i])) << i;
  EXPECT_EQ(device.validate(), std::vector<std::string>{});
  EXPECT_TRUE(bench.control->findings().empty());
  device.deallocate(large, nullptr, at);
}

}  // namespace
}  // namespace weir
