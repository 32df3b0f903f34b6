// Many random loops through slots; see pipeline_program.h.
// Seeds as tests/support/seeds.h says. Threads: those of each run.
#include "tests/model/pipeline_program.h"

#include "tests/support/seeds.h"

namespace weir {
namespace {

TEST(pipeline_model, random_loops_agree_with_the_model) {
  for (auto const seed : tests::seeds("pipeline programs", 600)) {
    auto const wrong = tests::pipeline_program(seed).run();
    ASSERT_TRUE(wrong.ok()) << wrong << "; replay with WEIR_TEST_SEED=" << seed;
  }
}

}  // namespace
}  // namespace weir
