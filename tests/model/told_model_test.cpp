// Many random programs of calls past weir, see told_program.h. Seeds: see tests/support/seeds.h.
// Threads: one.
#include <gtest/gtest.h>

#include "tests/model/told_program.h"
#include "tests/support/seeds.h"

namespace weir {
namespace {

TEST(told_model, has_the_reports_of_an_oracle) {
  std::set<std::string> kinds;
  std::size_t programs = 0;
  for (auto const seed : tests::seeds("told_model", 1'000)) {
    tests::told_program p(seed);
    tests::verdict const wrong = p.run();
    ASSERT_TRUE(wrong.ok()) << wrong << "; replay with WEIR_TEST_SEED=" << seed;
    kinds.merge(p.kinds());
    ++programs;
  }
  bool const has_all =
      kinds == std::set<std::string>{"freed in use", "host too early", "possible race", "race", "use after free"};
  EXPECT_TRUE(has_all || programs < 100) << "programs without clashes prove little";
}

}  // namespace
}  // namespace weir
