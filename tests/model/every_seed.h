// Runs a random program for each seed, until one fails.
// Threads: the program's.
#pragma once
#include <gtest/gtest.h>

#include "tests/model/verdict.h"
#include "tests/support/seeds.h"

namespace weir::tests {

// run(seed): the verdict of that seed's program.
template <class Run>
void expect_every_seed_is_right(seeds const& all, Run run) {
  for (auto const seed : all) {
    verdict const wrong = run(seed);
    ASSERT_TRUE(wrong.ok()) << wrong << "; replay with WEIR_TEST_SEED=" << seed;
  }
}

}  // namespace weir::tests
