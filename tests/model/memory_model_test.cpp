// Many random programs of device memory; memory_program.h says what they do.
// WEIR_TEST_SEED=s replays program s; WEIR_TEST_SEEDS=n runs n programs.
#include <gtest/gtest.h>

#include "tests/model/memory_program.h"

namespace weir {
namespace {

constexpr std::uint64_t parts = 8;  // so that each stays well within a test's time
class memory_model : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(memory_model, in_random_programs_every_byte_of_every_block_is_its_owners) {
  std::uint64_t const only = tests::number_from_environment("WEIR_TEST_SEED", 0);
  std::uint64_t const count = only ? (GetParam() == 0) : tests::number_from_environment("WEIR_TEST_SEEDS", 20'000) / parts;
  std::uint64_t const first = only ? only : 1 + GetParam() * count;
  std::uint64_t allocations = 0, ooms = 0;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    tests::memory_program p(seed);
    tests::verdict const wrong = p.run();
    ASSERT_TRUE(wrong.ok()) << wrong << "; replay with WEIR_TEST_SEED=" << seed;
    allocations += p.allocations, ooms += p.ooms;
  }
  std::cout << count << " programs from seed " << first << ", " << allocations << " allocations, " << ooms << " times out of memory\n";
  if (count > 1000) {
    EXPECT_GT(ooms, count / 10) << "the ladder is hardly ever climbed to its end";
  }
}
INSTANTIATE_TEST_SUITE_P(seeds, memory_model, ::testing::Range<std::uint64_t>(0, parts));

}  // namespace
}  // namespace weir
