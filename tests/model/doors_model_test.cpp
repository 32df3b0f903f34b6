// Many random programs whose streams end, see doors_program.h. Seeds: see tests/support/seeds.h.
// Threads: one.
#include <gtest/gtest.h>

#include <iostream>

#include "tests/model/doors_program.h"
#include "tests/support/seeds.h"

namespace weir {
namespace {

TEST(doors_model, streams_that_end_leave_no_race_and_no_memory) {
  std::uint64_t ended = 0, orphans = 0, handed_on = 0;
  for (auto const seed : tests::seeds("doors_model", 100)) {
    tests::doors_program p(seed);
    tests::verdict const wrong = p.run();
    ASSERT_TRUE(wrong.ok()) << wrong << "; replay with WEIR_TEST_SEED=" << seed;
    ended += p.ended, orphans += p.orphans, handed_on += p.handed_on;
  }
  std::cout << ended << " streams ended, " << orphans << " blocks were freed after theirs, " << handed_on
            << " streams had the handle of such a block's\n";
  EXPECT_GT(orphans, 0u);
  EXPECT_GT(handed_on, 0u);
}

}  // namespace
}  // namespace weir
