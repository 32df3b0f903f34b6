// Devices and errors as values.
// Threads: one.
#include "weir/types.h"

#include <gtest/gtest.h>

#include "weir/error.h"

namespace weir {
namespace {

TEST(device, text_names_the_cpu_the_current_gpu_and_gpus_by_number) {
  EXPECT_EQ(device("cpu"), cpu);
  EXPECT_EQ(device("gpu"), gpu);
  EXPECT_EQ(device("cuda"), gpu);
  EXPECT_EQ(device("gpu:3"), device(3));
  EXPECT_EQ(device("cuda:12"), device(12));
  EXPECT_EQ(device(7).str(), "gpu:7");
  EXPECT_EQ(cpu.str(), "cpu");
}

TEST(device, text_that_names_no_device_is_refused) {
  for (char const* text : {"", "gpu:", "gpu:x", "gpu:-1", "gpu:1x", "tpu", "cpu:0", "gpu:99999999999"})
    EXPECT_THROW(device{text}, invalid_use) << text;
}

TEST(error, every_kind_is_both_an_error_and_a_standard_exception) {
  try {
    throw invalid_use("copy", "dst gpu:1 0x10 holds 4096 B, asked 8192 B", "Ask for less", source_location::current());
  } catch (std::exception const& e) {
    auto const* ours = dynamic_cast<error const*>(&e);
    ASSERT_NE(ours, nullptr);
    EXPECT_EQ(ours->operation(), "copy");
    EXPECT_EQ(ours->operands(), "dst gpu:1 0x10 holds 4096 B, asked 8192 B");
    EXPECT_EQ(ours->remedy(), "Ask for less");
    EXPECT_NE(std::string(e.what()).find("copy: dst gpu:1 0x10 holds 4096 B, asked 8192 B. Ask for less"),
              std::string::npos);
    EXPECT_NE(std::string(e.what()).find("types_test.cpp"), std::string::npos);
  }
  EXPECT_THROW(throw out_of_memory("allocate", memory_report{}, source_location::current()), std::bad_alloc);
  try {  // all of weir's errors in one clause
    throw timed_out("wait", "1 s", "Wait longer", source_location::current());
  } catch (error const& e) {
    EXPECT_NE(std::string(e.what()).find("wait: 1 s. Wait longer"), std::string::npos) << e.what();
  }
  EXPECT_THROW(throw device_lost(700, "a", "b", "c", source_location::current()), driver_error);
}

}  // namespace
}  // namespace weir
