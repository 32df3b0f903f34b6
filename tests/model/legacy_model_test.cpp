// Many random programs beside the legacy stream, see legacy_program.h. Seeds: see tests/support/seeds.h.
// Threads: one.
#include <gtest/gtest.h>

#include "tests/model/legacy_program.h"

namespace weir {
namespace {

TEST(legacy_model, blocking_streams_need_no_wait_for_it) {
  std::uint64_t by_legacy_order = 0;
  for (auto const seed : tests::seeds("legacy_model", 1'000)) {
    tests::legacy_program p(seed);
    tests::verdict const wrong = p.run();
    ASSERT_TRUE(wrong.ok()) << wrong << "; replay with WEIR_TEST_SEED=" << seed;
    by_legacy_order += p.by_legacy_order();
  }
  EXPECT_GT(by_legacy_order, 0u) << "no pair of uses depended on the legacy order";
}

}  // namespace
}  // namespace weir
