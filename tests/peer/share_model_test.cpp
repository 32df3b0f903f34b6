// Many random programs that share memory with themselves; see share_program.h.
// Seeds as tests/support/seeds.h says.
// Threads: one.
#include "tests/model/share_program.h"

namespace weir {
namespace {

TEST(random_sharing, shows_the_sent_bytes_only) {
  for (auto const seed : tests::seeds("sharing", 300)) {
    auto const wrong = tests::share_program(seed).run();
    ASSERT_TRUE(wrong.ok()) << wrong << "; WEIR_TEST_SEED=" << seed;
  }
}

}  // namespace
}  // namespace weir
