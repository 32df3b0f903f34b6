// weir/c.h from a C program (c_program.c), on simulated devices.
// Threads: one; the last error, two.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "tests/interop/c_program.h"
#include "tests/support/seeds.h"
#include "weir/c.h"
#include "weir/runtime.h"
#include "weir/sim.h"
#include "weir/stream.h"

namespace weir {
namespace {

struct c_interface : testing::Test {
  runtime rt{simulated{.devices = 2, .memory = 64_MiB}};
  runtime_guard in{rt};
};

// The functions answer with the line of c_program.c whose check failed.
TEST_F(c_interface, blocks_are_allocated_and_freed) {
  EXPECT_EQ(c_blocks_are_allocated_and_freed(), 0);
}
TEST_F(c_interface, statistics_count_every_block) {
  EXPECT_EQ(c_statistics_count_every_block(), 0);
}
TEST_F(c_interface, limits_are_set_and_met) {
  EXPECT_EQ(c_limits_are_set_and_met(), 0);
}
TEST_F(c_interface, pools_sleep_and_wake) {
  EXPECT_EQ(c_pools_sleep_and_wake(), 0);
}
TEST_F(c_interface, pinned_memory_carries_bytes) {
  EXPECT_EQ(c_pinned_memory_carries_bytes(), 0);
}
TEST_F(c_interface, bad_input_is_refused) {
  EXPECT_EQ(c_bad_input_is_refused_and_loses_nothing(), 0);
}
TEST_F(c_interface, peers_are_opened) {
  EXPECT_EQ(c_peers_are_opened(), 0);
}

TEST_F(c_interface, history_and_snapshot_are_written) {
  auto const path = std::filesystem::temp_directory_path() / ("weir_c_" + std::to_string(::getpid()) + ".pickle");
  EXPECT_EQ(c_history_and_snapshot_are_written(path.c_str()), 0);
  std::filesystem::remove(path);
}

TEST_F(c_interface, a_last_error_is_its_threads_own) {
  EXPECT_EQ(weir_set_device(9), WEIR_INVALID_USE);
  std::thread([] {
    EXPECT_EQ(weir_last_status(), WEIR_OK);
    EXPECT_STREQ(weir_last_error(), "");
  }).join();
  int count = 0;
  EXPECT_EQ(weir_device_count(&count), WEIR_OK);
  EXPECT_NE(std::string_view(weir_last_error()).find("gpu:9"), std::string_view::npos) << "a success clears nothing";
}

TEST_F(c_interface, a_lost_device_and_a_refusing_driver_have_names) {
  void* p = nullptr;
  ASSERT_EQ(weir_allocate(&p, 16, 0, 0, nullptr), WEIR_OK);
  (void)simulation::of(rt).fail_call("create", 1);
  simulation::of(rt).lose_device(0);
  EXPECT_EQ(weir_synchronize(0), WEIR_DEVICE_LOST);
  void* other = nullptr;
  EXPECT_EQ(weir_allocate(&other, 16, 0, 1, nullptr), WEIR_OK) << weir_last_error();
  EXPECT_EQ(weir_free(other), WEIR_OK);
  EXPECT_EQ(weir_free(p), WEIR_OK) << weir_last_error();
}

TEST_F(c_interface, a_registration_counts) {
  ASSERT_EQ(weir_register_stream(0, nullptr), WEIR_OK) << weir_last_error();
  ASSERT_EQ(weir_register_stream(0, nullptr), WEIR_OK);
  EXPECT_EQ(weir_unregister_stream(0, nullptr), WEIR_OK);
  EXPECT_EQ(weir_unregister_stream(0, nullptr), WEIR_OK);
  EXPECT_EQ(weir_unregister_stream(0, nullptr), WEIR_INVALID_USE);
}

// If both ended it, two later registrations would get one clock.
TEST(c_interface_among_threads, a_registration_is_ended_by_one) {
  for (auto const seed : tests::seeds("c_registrations_end", 40)) {
    runtime machine(simulated{.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::seeded, .seed = seed});
    runtime_guard const in(machine);
    simulated_stream const theirs(0);
    ASSERT_EQ(weir_register_stream(0, theirs.handle()), WEIR_OK) << weir_last_error();
    int ended = 0;
    auto control = simulation::of(machine);
    for (char const* const name : {"a", "b"})
      control.spawn(name, [&] { ended += weir_unregister_stream(0, theirs.handle()) == WEIR_OK; });
    control.join();
    EXPECT_EQ(ended, 1) << "WEIR_TEST_SEED=" << seed;
  }
}

}  // namespace
}  // namespace weir
