// Many random programs of copies and of loops through slots, see tests/model. Seeds as tests/support/seeds.h says.
// Threads: those of each run.
#include "tests/model/copy_program.h"
#include "tests/model/every_seed.h"
#include "tests/model/pipeline_program.h"

namespace weir {
namespace {

TEST(copy_model, random_copies_leave_the_bytes_of_program_order) {
  tests::expect_every_seed_is_right({"copy_model", 2000}, tests::run_copies);
}
TEST(pipeline_model, random_loops_agree_with_the_model) {
  tests::expect_every_seed_is_right({"pipeline programs", 600},
                                    [](auto seed) { return tests::pipeline_program(seed).run(); });
}

}  // namespace
}  // namespace weir
