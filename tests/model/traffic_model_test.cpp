// Many random programs of traffic, see traffic_program.h. Seeds: see tests/support/seeds.h.
// Threads: one.
#include "tests/model/traffic_program.h"
#include "tests/support/memory_bench.h"

namespace weir {
namespace {

TEST(traffic_model, every_place_holds_its_bytes_under_copies) {
  for (auto const seed : tests::seeds("traffic_model", 1500)) {
    auto const wrong = tests::traffic_program(seed).run();
    ASSERT_TRUE(wrong.ok()) << wrong << "; replay with WEIR_TEST_SEED=" << seed;
  }
}

}  // namespace
}  // namespace weir
