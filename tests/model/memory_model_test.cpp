// Many random programs of device memory, see memory_program.h. Seeds: see tests/support/seeds.h.
// Threads: one.
#include <gtest/gtest.h>

#include "tests/model/memory_program.h"

namespace weir {
namespace {

constexpr std::uint64_t parts = 8;  // to keep each within a test's time limit
class memory_model : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(memory_model, every_byte_of_every_block_is_right) {
  tests::seeds const wanted("memory_model", 12'000, GetParam(), parts);
  std::uint64_t allocations = 0, ooms = 0;
  for (auto const seed : wanted) {
    tests::memory_program p(seed);
    tests::verdict const wrong = p.run();
    ASSERT_TRUE(wrong.ok()) << wrong << "; replay with WEIR_TEST_SEED=" << seed;
    allocations += p.allocations, ooms += p.ooms;
  }
  std::cout << wanted.count() << " programs from seed " << wanted.first() << ", " << allocations << " allocations, "
            << ooms << " times out of memory\n";
  if (wanted.count() > 1000) {
    EXPECT_GT(ooms, wanted.count() / 10) << "the ladder is hardly ever climbed to its end";
  }
}
TEST(memory_model_shared, every_byte_of_every_shared_page_is_right) {
  tests::seeds const wanted("memory_model_shared", 3'000, 0, 1);
  for (auto const seed : wanted) {
    tests::verdict const wrong = tests::memory_program(seed, tests::about::small_blocks).run();
    ASSERT_TRUE(wrong.ok()) << wrong << "; replay with WEIR_TEST_SEED=" << seed;
  }
}
// Regressions: a wait of weir closed a cycle of ranks, and out_of_memory came before completion was polled.
TEST(memory_model_once_found, these_programs_are_right) {
  for (std::uint64_t const seed : {47'590u, 80'451u, 112'095u, 156'673u, 195'287u, 1'653'302'169u}) {
    tests::verdict const wrong = tests::memory_program(seed, tests::about::default_policies).run();
    EXPECT_TRUE(wrong.ok()) << wrong << "; seed " << seed;
  }
  // With `deterministic`, a new stream waited for a collective that used an
  // ended stream's blocks and that this thread had yet to join.
  tests::verdict const wrong = tests::memory_program(3'015'669'105).run();
  EXPECT_TRUE(wrong.ok()) << wrong;
}
INSTANTIATE_TEST_SUITE_P(seeds, memory_model, ::testing::Range<std::uint64_t>(0, parts));

}  // namespace
}  // namespace weir
