// Many random rings; see ring_program.h.
// Seeds as tests/support/seeds.h says.
// Threads: one.
#include "tests/model/ring_program.h"

namespace weir::ring_models {
namespace {

TEST(random_rings, give_each_reader_the_published_bytes) {
  for (auto const seed : tests::seeds("rings", 60)) {
    auto const wrong = tests::ring_program(seed).run();
    ASSERT_TRUE(wrong.ok()) << wrong << "; WEIR_TEST_SEED=" << seed;
  }
}

}  // namespace
}  // namespace weir::ring_models
