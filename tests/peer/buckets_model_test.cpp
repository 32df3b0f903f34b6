// Many random steps of gradient buckets; see buckets_program.h.
// Seeds as tests/support/seeds.h says.
// Threads: those of each run.
#include "tests/model/buckets_program.h"

#include "tests/support/seeds.h"

namespace weir {
namespace {

TEST(buckets_model, random_steps_agree_with_the_model) {
  for (auto const seed : tests::seeds("bucket programs", 60)) {
    auto const wrong = tests::buckets_program(seed).run();
    ASSERT_TRUE(wrong.ok()) << "seed " << seed << ": " << wrong;
  }
}

}  // namespace
}  // namespace weir
