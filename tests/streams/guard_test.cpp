// Current devices and streams, and the guards that restore them, in order and out of it.
#include <thread>

#include "tests/streams/stepped_machine.h"

namespace weir {
namespace {

using guards = stepped_machine;

TEST_F(guards, a_device_guard_restores_the_previous_device) {
  EXPECT_EQ(current_device(), device(0));
  {
    device_guard on{1};
    EXPECT_EQ(current_device(), device(1));
    device_guard nothing{cpu};
    EXPECT_EQ(current_device(), device(1));
    set_device(0);
  }
  EXPECT_EQ(current_device(), device(0));
}

TEST_F(guards, a_stream_guard_sets_and_restores_stream_and_device) {
  stream a{0}, b{1};
  stream_ref const before = current_stream(1);
  EXPECT_EQ(before, default_stream(1));
  {
    stream_guard in_a{a};
    EXPECT_EQ(current_stream(), a.ref());
    {
      stream_guard in_b{b};
      EXPECT_EQ(current_device(), device(1));
      EXPECT_EQ(current_stream(), b.ref());
      EXPECT_EQ(current_stream(0), a.ref());
    }
    EXPECT_EQ(current_device(), device(0));
    EXPECT_EQ(current_stream(1), before);
  }
  EXPECT_EQ(current_stream(), default_stream());
}

TEST_F(guards, a_thread_begins_on_device_0_and_its_default_stream) {
  stream b{1};
  set_stream(b);
  std::thread([&] {
    runtime_guard here{rt};
    EXPECT_EQ(current_device(), device(0));
    EXPECT_EQ(current_stream(1), default_stream(1));
  }).join();
  EXPECT_EQ(current_stream(), b.ref());
}

TEST_F(guards, guards_out_of_order_restore_the_first_state) {
  auto const before = streams::misplaced_guards();
  stream a{1};
  auto outer = std::make_unique<device_guard>(1);
  auto inner = std::make_unique<stream_guard>(a);
  auto innermost = std::make_unique<device_guard>(0);
  outer.reset();
  EXPECT_EQ(current_device(), device(0));  // the innermost one still stands
  EXPECT_EQ(current_stream(1), a.ref());
  inner.reset();
  EXPECT_EQ(streams::misplaced_guards(), before + 2);
  set_device(1);
  innermost.reset();
  EXPECT_EQ(current_device(), device(0));
  EXPECT_EQ(current_stream(1), default_stream(1));
}

// It is restored with the next older one.
TEST_F(guards, a_guard_that_ends_on_another_thread_is_harmless) {
  auto const before = streams::misplaced_guards();
  auto outer = std::make_unique<device_guard>(1);
  auto inner = std::make_unique<device_guard>(0);
  std::thread([&] {
    runtime_guard here{rt};
    device_guard mine{1};
    inner.reset();
    EXPECT_EQ(current_device(), device(1));
  }).join();
  EXPECT_EQ(streams::misplaced_guards(), before + 1);
  EXPECT_EQ(current_device(), device(0));
  set_device(1);
  outer.reset();
  EXPECT_EQ(current_device(), device(0));
  device_guard again{1};
  EXPECT_EQ(current_device(), device(1));
}

TEST_F(guards, a_guard_may_outlive_its_runtime) {
  std::optional<device_guard> on;
  {
    runtime other{simulated{.devices = 2, .memory = 64_MiB, .schedule = simulated::scheduling::stepped, .seed = 1}};
    runtime_guard inside{other};
    on.emplace(1);
  }
  on.reset();
  EXPECT_EQ(current_device(), device(0));
}

TEST_F(guards, a_refused_guard_changes_nothing) {
  control.fail_call("make_current", 1, driver::code::failed);
  refused<driver_error>([&] { device_guard on{1}; });
  EXPECT_EQ(current_device(), device(0));
  std::string const said = refused<invalid_use>([&] { device_guard on{7}; });
  EXPECT_NE(said.find("gpu:7 of 2"), std::string::npos) << said;
  EXPECT_EQ(current_device(), device(0));
}

TEST_F(guards, two_runtimes_keep_their_own_current_devices) {
  runtime other{simulated{.devices = 3, .memory = 64_MiB, .schedule = simulated::scheduling::stepped, .seed = 1}};
  set_device(1);
  {
    runtime_guard inside{other};
    EXPECT_EQ(current_device(), device(0));
    device_guard on{2};
    EXPECT_EQ(current_device(), device(2));
  }
  EXPECT_EQ(current_device(), device(1));
}

TEST_F(guards, a_device_guard_sets_the_drivers_device_too) {
  set_device(0);
  auto const second = control.fail_call("make_current", 2, driver::code::failed);
  { device_guard const on{1}; }
  EXPECT_FALSE(control.cancel_failure(second)) << "its end made no device current";
}

}  // namespace
}  // namespace weir
