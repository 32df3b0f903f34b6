// What a thread notes of its call.
// Threads: one.
#include "runtime/base/call_site.h"

#include <gtest/gtest.h>

namespace weir::base {
namespace {

// A copy of a pool may need memory, and so put another pool to sleep.
TEST(moving_a_pool, nests) {
  EXPECT_FALSE(this_call().moves_a_pool);
  {
    moving_a_pool const outer;
    { moving_a_pool const inner; }
    EXPECT_TRUE(this_call().moves_a_pool);
  }
  EXPECT_FALSE(this_call().moves_a_pool);
}

}  // namespace
}  // namespace weir::base
