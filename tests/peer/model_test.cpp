// Many random programs of collectives, buckets, groups, rings and shared memory, see tests/model. Seeds as
// tests/support/seeds.h says.
// Threads: those of each run.
#include "tests/model/buckets_program.h"
#include "tests/model/every_seed.h"
#include "tests/model/exchange_program.h"
#include "tests/model/groups_program.h"
#include "tests/model/ring_program.h"
#include "tests/model/share_program.h"

namespace weir {
namespace {

using tests::expect_every_seed_is_right;

TEST(buckets_model, random_steps_agree_with_the_model) {
  expect_every_seed_is_right({"bucket programs", 60}, [](auto seed) { return tests::buckets_program(seed).run(); });
}
TEST(exchange_model, random_collectives_agree_with_the_model) {
  expect_every_seed_is_right({"exchange programs", 60}, [](auto seed) { return tests::exchange_program(seed).run(); });
}
TEST(groups_model, random_groups_bring_what_is_computed_here) {
  expect_every_seed_is_right({"group programs", 60}, [](auto seed) { return tests::groups_program(seed).run(); });
}
TEST(random_rings, give_each_reader_the_published_bytes) {
  expect_every_seed_is_right({"rings", 60}, [](auto seed) { return tests::ring_program(seed).run(); });
}
TEST(random_sharing, shows_the_sent_bytes_only) {
  expect_every_seed_is_right({"sharing", 300}, [](auto seed) { return tests::share_program(seed).run(); });
}

}  // namespace
}  // namespace weir
