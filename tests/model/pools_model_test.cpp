// Many random programs of device memory in pools, see pools_program.h. Seeds: see tests/support/seeds.h.
// Threads: one.
#include <gtest/gtest.h>

#include "tests/model/pools_program.h"

namespace weir {
namespace {

constexpr std::uint64_t parts_of_pools = 4;  // to keep each within a test's time limit
class pools_model : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(pools_model, every_byte_of_every_block_is_right) {
  tests::seeds const wanted("pools_model", 6'000, GetParam(), parts_of_pools);
  std::uint64_t allocations = 0, ooms = 0, made = 0, slept = 0, registered = 0;
  for (auto const seed : wanted) {
    tests::pools_program p(seed);
    tests::verdict const wrong = p.run();
    ASSERT_TRUE(wrong.ok()) << wrong << "; replay with WEIR_TEST_SEED=" << seed;
    allocations += p.program().allocations, ooms += p.program().ooms, made += p.made, slept += p.slept,
        registered += p.registered;
  }
  std::cout << wanted.count() << " programs from seed " << wanted.first() << ", " << made << " pools, " << registered
            << " registered, " << slept << " slept, " << allocations << " allocations, " << ooms
            << " times out of memory\n";
}
INSTANTIATE_TEST_SUITE_P(seeds, pools_model, ::testing::Range<std::uint64_t>(0, parts_of_pools));

}  // namespace
}  // namespace weir
