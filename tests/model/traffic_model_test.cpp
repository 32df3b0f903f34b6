// Many random programs of traffic; traffic_program.h says what they do. WEIR_TEST_SEED replays one program, WEIR_TEST_SEEDS=n runs n.
#include "tests/model/traffic_program.h"
#include "tests/support/memory_bench.h"

namespace weir {
namespace {

TEST(traffic_model, whatever_comes_and_goes_under_copies_every_place_holds_its_own_bytes) {
  for (auto seed = test::first_seed(); seed < test::end_of_seeds(tests::number_from_environment("WEIR_TEST_SEEDS", 1500)); ++seed) {
    auto const wrong = tests::traffic_program(seed).run();
    ASSERT_TRUE(wrong.ok()) << wrong << "; replay with WEIR_TEST_SEED=" << seed;
  }
}

}  // namespace
}  // namespace weir
