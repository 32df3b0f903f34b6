// What the long life measures, and what it calls growth.
// Threads: one.
#include "tests/soak/growth.h"

#include <gtest/gtest.h>

#include <thread>

namespace weir::soak {
namespace {

TEST(time_of_thread, counts_work_and_no_sleep) {
  auto const before = time_of_thread();
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_LT(time_of_thread() - before, std::chrono::milliseconds(20));
  auto const began = time_of_thread();
  while (time_of_thread() - began < std::chrono::milliseconds(1)) {}
}

}  // namespace
}  // namespace weir::soak
