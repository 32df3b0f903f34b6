// Many random programs whose idle memory goes back, see idle_program.h. Seeds: see tests/support/seeds.h.
// Threads: one.
#include <gtest/gtest.h>

#include "tests/model/idle_program.h"

namespace weir {
namespace {

TEST(idle_model, memory_goes_after_its_time_and_no_earlier) {
  std::uint64_t returned = 0, young = 0;
  for (auto const seed : tests::seeds("idle_model", 1'000)) {
    tests::idle_program p(seed);
    tests::verdict const wrong = p.run();
    ASSERT_TRUE(wrong.ok()) << wrong << "; replay with WEIR_TEST_SEED=" << seed;
    returned += p.returned, young += p.young;
  }
  std::cout << returned << " B went back at looks that " << young << " younger blocks met\n";
  EXPECT_GT(returned, 0u);
  EXPECT_GT(young, 0u);
}

}  // namespace
}  // namespace weir
