// Many random programs of each kind, see *_program.h. Seeds: see tests/support/seeds.h.
// Threads: one.
#include <iostream>

#include "tests/model/doors_program.h"
#include "tests/model/every_seed.h"
#include "tests/model/idle_program.h"
#include "tests/model/legacy_program.h"
#include "tests/model/told_program.h"
#include "tests/model/traffic_program.h"

namespace weir {
namespace {

using tests::expect_every_seed_is_right;

TEST(doors_model, streams_that_end_leave_no_race_and_no_memory) {
  std::uint64_t ended = 0, orphans = 0, handed_on = 0;
  expect_every_seed_is_right({"doors_model", 100}, [&](auto seed) {
    tests::doors_program p(seed);
    tests::verdict wrong = p.run();
    ended += p.ended, orphans += p.orphans, handed_on += p.handed_on;
    return wrong;
  });
  std::cout << ended << " streams ended, " << orphans << " blocks were freed after theirs, " << handed_on
            << " streams had the handle of such a block's\n";
  EXPECT_GT(orphans, 0u);
  EXPECT_GT(handed_on, 0u);
}
TEST(idle_model, memory_goes_after_its_time_and_no_earlier) {
  std::uint64_t returned = 0, young = 0;
  expect_every_seed_is_right({"idle_model", 1'000}, [&](auto seed) {
    tests::idle_program p(seed);
    tests::verdict wrong = p.run();
    returned += p.returned, young += p.young;
    return wrong;
  });
  std::cout << returned << " B went back at looks that " << young << " younger blocks met\n";
  EXPECT_GT(returned, 0u);
  EXPECT_GT(young, 0u);
}
TEST(legacy_model, blocking_streams_need_no_wait_for_it) {
  std::uint64_t by_legacy_order = 0;
  expect_every_seed_is_right({"legacy_model", 1'000}, [&](auto seed) {
    tests::legacy_program p(seed);
    tests::verdict wrong = p.run();
    by_legacy_order += p.by_legacy_order();
    return wrong;
  });
  EXPECT_GT(by_legacy_order, 0u) << "no pair of uses depended on the legacy order";
}
TEST(told_model, has_the_reports_of_an_oracle) {
  std::set<std::string> kinds;
  std::size_t programs = 0;
  expect_every_seed_is_right({"told_model", 1'000}, [&](auto seed) {
    tests::told_program p(seed);
    tests::verdict wrong = p.run();
    kinds.merge(p.kinds());
    ++programs;
    return wrong;
  });
  bool const has_all =
      kinds == std::set<std::string>{"freed in use", "host too early", "possible race", "race", "use after free"};
  EXPECT_TRUE(has_all || programs < 100) << "programs without clashes prove little";
}
TEST(traffic_model, every_place_holds_its_bytes_under_copies) {
  expect_every_seed_is_right({"traffic_model", 1500}, [](auto seed) { return tests::traffic_program(seed).run(); });
}

}  // namespace
}  // namespace weir
