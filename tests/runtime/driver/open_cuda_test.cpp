// open_cuda's answer with and without a usable GPU, and the
// meaning of CUDA's results behind the driver interface.
#include <gtest/gtest.h>

#include "runtime/driver/driver.h"

namespace weir::driver {
namespace {

TEST(open_cuda, answers_a_machine_or_says_why_there_is_none) {
  auto const [machine, why] = open_cuda();
  EXPECT_FALSE(why.empty());
  if (!machine)
    return;
  EXPECT_GT(machine->device_count(), 0) << why;
  EXPECT_FALSE(machine->simulated());
}

TEST(open_cuda, calls_on_an_absent_or_closed_device_are_invalid) {
  auto const [machine, why] = open_cuda();
  if (!machine)
    GTEST_SKIP() << why;
  int const absent = machine->device_count();
  EXPECT_EQ(machine->info(absent).is.what, code::invalid);
  EXPECT_EQ(machine->open(absent).what, code::invalid);
  EXPECT_EQ(machine->open(-1).what, code::invalid);
  EXPECT_EQ(machine->create_stream(0, stream_kind::independent, 0).is.what, code::invalid);
  EXPECT_EQ(machine->create(0, 2 << 20).is.what, code::invalid);
}

}  // namespace
}  // namespace weir::driver
