// Many random programs of device memory; memory_program.h says what they do.
// Seeds as tests/support/seeds.h says.
// Threads: one.
#include <gtest/gtest.h>

#include "tests/model/memory_program.h"

namespace weir {
namespace {

constexpr std::uint64_t parts = 8;  // so that each stays well within a test's time
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
// Programs that once were not: a wait of weir's closed a circle of ranks through a third stream; blocks were
// complete when memory was said to be out, for completion was seen only behind the rungs that look for it.
TEST(memory_model_once_found, these_programs_are_right) {
  for (std::uint64_t const seed : {47'590u, 80'451u, 112'095u, 156'673u, 195'287u, 1'653'302'169u}) {
    tests::verdict const wrong = tests::memory_program(seed, false).run();
    EXPECT_TRUE(wrong.ok()) << wrong << "; seed " << seed;
  }
  // `deterministic`: a new stream waited for what an ended one's blocks were used for,
  // a collective that this thread had yet to join.
  tests::verdict const wrong = tests::memory_program(3'015'669'105).run();
  EXPECT_TRUE(wrong.ok()) << wrong;
}
INSTANTIATE_TEST_SUITE_P(seeds, memory_model, ::testing::Range<std::uint64_t>(0, parts));

}  // namespace
}  // namespace weir
