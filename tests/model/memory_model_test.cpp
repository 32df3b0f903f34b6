// Many random programs of device memory, see memory_program.h. Seeds: see tests/support/seeds.h.
// Threads: one.
#include <gtest/gtest.h>

#include "tests/explore/explore.h"
#include "tests/model/memory_program.h"

namespace weir {
namespace {

using tests::about;
using tests::memory_program;

// What the shortest list of numbers does with which the program of that seed still fails.
std::string shortest(std::uint64_t seed, about what, memory_program::numbers numbers) {
  numbers = tests::shrink(std::move(numbers), 1000, [&](memory_program::numbers& fewer) {
    return !memory_program(seed, what, fewer).run().ok();
  });
  std::ostringstream story;
  memory_program p(seed, what, std::move(numbers));
  p.trace = &story;
  story << p.run();
  return story.str();
}

void run(memory_program& p, std::uint64_t seed, about what) {
  tests::verdict const wrong = p.run();
  ASSERT_TRUE(wrong.ok()) << wrong << "; replay with WEIR_TEST_SEED=" << seed << "; the shortest such program:\n"
                          << shortest(seed, what, p.drawn());
}

constexpr std::uint64_t parts = 8;  // to keep each within a test's time limit
class memory_model : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(memory_model, every_byte_of_every_block_is_right) {
  tests::seeds const wanted("memory_model", 12'000, GetParam(), parts);
  std::uint64_t allocations = 0, ooms = 0;
  for (auto const seed : wanted) {
    memory_program p(seed);
    ASSERT_NO_FATAL_FAILURE(run(p, seed, about::drawn_policies));
    allocations += p.allocations, ooms += p.ooms;
  }
  std::cout << wanted.count() << " programs from seed " << wanted.first() << ", " << allocations << " allocations, "
            << ooms << " times out of memory\n";
  if (wanted.count() > 1000) {
    EXPECT_GT(ooms, wanted.count() / 10) << "the ladder is hardly ever climbed to its end";
  }
}
TEST(memory_model_shared, every_byte_of_every_shared_page_is_right) {
  for (auto const seed : tests::seeds("memory_model_shared", 3'000, 0, 1)) {
    memory_program p(seed, about::small_blocks);
    ASSERT_NO_FATAL_FAILURE(run(p, seed, about::small_blocks));
  }
}
// Regressions: a wait of weir closed a cycle of ranks, and out_of_memory came before completion was polled.
TEST(memory_model_once_found, these_programs_are_right) {
  for (std::uint64_t const seed : {47'590u, 80'451u, 112'095u, 156'673u, 195'287u, 1'653'302'169u}) {
    memory_program p(seed, about::default_policies);
    run(p, seed, about::default_policies);
  }
  // With `deterministic`, a new stream waited for a collective that used an
  // ended stream's blocks and that this thread had yet to join.
  memory_program p(3'015'669'105);
  run(p, 3'015'669'105, about::drawn_policies);
}
INSTANTIATE_TEST_SUITE_P(seeds, memory_model, ::testing::Range<std::uint64_t>(0, parts));

TEST(memory_numbers, play_a_program_again_and_shrink) {
  std::ostringstream by_seed, by_numbers;
  memory_program first(1);
  first.trace = &by_seed;
  EXPECT_TRUE(first.run().ok());
  memory_program again(1, about::drawn_policies, first.drawn());
  again.trace = &by_numbers;
  EXPECT_TRUE(again.run().ok());
  EXPECT_EQ(by_numbers.str().size(), by_seed.str().size());
  EXPECT_EQ(again.drawn(), first.drawn());
  auto const hands_over = [](memory_program::numbers const& numbers) {
    std::ostringstream story;
    memory_program p(1, about::drawn_policies, numbers);
    p.trace = &story;
    return p.run().ok() && story.str().find("set_stream") != std::string::npos;
  };
  ASSERT_TRUE(hands_over(first.drawn()));
  auto const few = tests::shrink(first.drawn(), 1000, hands_over);
  EXPECT_TRUE(hands_over(few));
  EXPECT_LT(few.size() * 4, first.drawn().size());
}

}  // namespace
}  // namespace weir
