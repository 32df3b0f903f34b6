// Every driver call refused in turn: the allocator's lists stay whole, and the same program then runs.
// Threads: one.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "tests/memory/names.h"
#include "tests/support/memory_bench.h"
#include "tests/support/sanitized.h"

namespace weir {
namespace {

using tests::memory_bench;

constexpr driver::code codes[] = {driver::code::failed, driver::code::out_of_memory, driver::code::not_permitted};
struct refused_calls : ::testing::TestWithParam<driver::code> {
  // Under sanitizers each call is refused by one of the codes, otherwise by each.
  static constexpr std::uint64_t stride = tests::sanitized ? std::size(codes) : 1;
  static std::uint64_t first() {
    return stride == 1 ? 1
                       : 1 + static_cast<std::uint64_t>(std::find(std::begin(codes), std::end(codes), GetParam()) -
                                                        std::begin(codes));
  }
};

// Small and large blocks on two streams, marks, waits, a handover, all recovery steps, and released memory.
struct scenario {
  memory_bench bench{{.devices = 2, .memory = 2 << 20, .schedule = simulated::scheduling::seeded, .seed = 5}};
  clock::stream_clock& a = bench.stream(0);
  clock::stream_clock& b = bench.stream(0);
  memory::allocator& device = bench.on(0);
  int failed = 0;

  template <class Do>
  void attempt(Do act) {
    try {
      act();
    } catch (error const&) {  // a typed error; any other ends the test
      ++failed;
    }
  }
  void run() {
    std::vector<void*> live;
    auto const take = [&](clock::stream_clock& s, std::size_t bytes) {
      attempt([&] { live.push_back(device.allocate(s, bytes, 0, at)); });
    };
    auto const give = [&](std::size_t i) {
      if (i < live.size() && live[i])
        device.deallocate(std::exchange(live[i], nullptr), nullptr, at);
    };
    for (std::size_t bytes : {100, 3000, 40'000, 300'000})
      take(a, bytes), take(b, bytes);
    if (live.size() > 5) {
      for (std::size_t i = 3; i < 6; ++i)
        device.record_use(live[i], i % 2 ? a : b, at);
    }
    for (std::size_t i = 2; i < 8; ++i)
      give(i);
    take(a, 500'000);
    if (!live.empty() && live.back())
      attempt([&] { device.set_stream(live.back(), b, at); });
    give(live.size() - 1);
    take(b, 1'500'000);
    take(a, 1'000'000);
    take(a, 100'000);
    if (!live.empty() && live.back())
      (void)device.grant(live.back(), 1);
    (void)a.wait(b.now());
    for (std::size_t i = 0; i < live.size(); ++i)
      give(i);
    device.empty_cache();
  }
  void expect_sound(std::string const& when) {
    EXPECT_EQ(device.validate(), std::vector<std::string>{}) << when;
    EXPECT_EQ(bench.clocks().validate(), std::vector<std::string>{}) << when;
  }
};

// The program runs afterwards.
TEST_P(refused_calls, the_kth_call_refused_leaves_every_list_whole) {
  std::uint64_t calls = 0;
  int failures_without = 0;
  {
    scenario s;
    auto const before = driver::fault_injector_of(s.bench.machine())->calls_so_far();
    s.run();
    calls = driver::fault_injector_of(s.bench.machine())->calls_so_far() - before;
    failures_without = s.failed;
    s.expect_sound("without a refusal");
    EXPECT_EQ(s.device.statistics().reserved_bytes.all.current, 0);
  }
  ASSERT_GT(calls, 50u);
  int felt = 0;
  for (std::uint64_t k = first(); k <= calls; k += stride) {
    std::string const which = "call " + std::to_string(k);
    scenario s;
    s.bench.control->fail_call("any", k, GetParam());
    s.run();
    felt += s.failed > failures_without;
    s.expect_sound(which);
    driver::fault_injector_of(s.bench.machine())->forget_orders();
    s.failed = 0;
    s.run();
    EXPECT_EQ(s.failed, failures_without) << "again after " << which;
    s.expect_sound("again after " + which);
    s.device.empty_cache();
    EXPECT_EQ(s.device.statistics().reserved_bytes.all.current, 0) << which;
    EXPECT_EQ(s.bench.control->findings(), std::vector<std::string>{}) << which;
    if (::testing::Test::HasFailure())
      return;
  }
  EXPECT_GT(felt, 0) << "no refusal was ever felt";
}

TEST_P(refused_calls, all_calls_of_a_kind_refused_leave_lists_whole) {
  for (std::string_view name : driver::fault_injector::call_names()) {
    scenario s;
    for (std::uint64_t k = 1; k <= 60; ++k)
      s.bench.control->fail_call(name, k, GetParam());
    s.run();
    s.expect_sound(std::string(name));
    driver::fault_injector_of(s.bench.machine())->forget_orders();
    s.failed = 0;
    s.run();
    EXPECT_LE(s.failed, 1) << name;
    s.expect_sound("again after " + std::string(name));
    s.device.empty_cache();
    EXPECT_EQ(s.device.statistics().reserved_bytes.all.current, 0) << name;
    if (::testing::Test::HasFailure())
      return;
  }
}

// The driver refuses the handle's use and its release. weir releases it later.
TEST(refused_pairs, an_unusable_unreleasable_handle_is_kept_aside) {
  scenario s;
  s.bench.control->fail_call("grant", 1, driver::code::failed);
  s.bench.control->fail_call("unmap", 1, driver::code::failed);
  EXPECT_THROW((void)s.device.allocate(s.a, 60'000, 0, at), driver_error);
  EXPECT_EQ(s.device.statistics().reserved_bytes.all.current, 64 << 10) << "it is still held of the driver";
  s.expect_sound("while it is held");
  s.bench.control->fail_call("unmap", 1, driver::code::failed);
  EXPECT_EQ(s.device.empty_cache(), 0u);
  EXPECT_EQ(s.device.statistics().reserved_bytes.all.current, 64 << 10) << "the driver would not take it again";
  s.expect_sound("while it is held still");
  void* const p = s.device.allocate(s.a, 60'000, 0, at);
  EXPECT_TRUE(s.bench.machine().fill(0, s.a.handle(), p, 1, 4, 15'000).ok());
  ASSERT_TRUE(s.bench.clocks().synchronize(s.a.now()).ok());
  EXPECT_EQ(s.bench.control->findings(), std::vector<std::string>{});
  s.device.deallocate(p, nullptr, at);
  s.device.empty_cache();
  EXPECT_EQ(s.device.statistics().reserved_bytes.all.current, 0);
  s.expect_sound("after all was given back");
}

TEST(refused_pairs, unmapped_memory_not_released_stays_counted) {
  scenario s;
  void* const p = s.device.allocate(s.a, 60'000, 0, at);
  s.device.deallocate(p, nullptr, at);
  s.bench.control->fail_call("release", 1, driver::code::failed);
  s.bench.control->fail_call("release", 2, driver::code::failed);
  EXPECT_EQ(s.device.empty_cache(), 0u);
  EXPECT_EQ(s.device.statistics().reserved_bytes.all.current, 64 << 10);
  s.expect_sound("while the driver would not take it");
  EXPECT_EQ(s.device.empty_cache(), std::size_t{64} << 10);
  EXPECT_EQ(s.device.statistics().reserved_bytes.all.current, 0);
}

// Refuses to release memory while told to, and runs a test's action inside such a call.
struct keeps_memory final : weir::driver::fault_injector {
  using fault_injector::fault_injector;
  weir::driver::status release(weir::driver::memory_handle h) override {
    if (!refuses)
      return fault_injector::release(h);
    if (auto const act = std::exchange(inside, nullptr))
      act();
    return {weir::driver::code::failed};
  }
  bool refuses = false;
  std::function<void()> inside;
};

TEST(refused_pairs, memory_that_was_not_freed_goes_later) {
  keeps_memory* keeper = nullptr;
  memory_bench bench({.devices = 1, .memory = 2 << 20, .schedule = simulated::scheduling::stepped, .seed = 1}, {},
                     [&](auto machine) {
                       auto around = std::make_unique<keeps_memory>(std::move(machine));
                       keeper = around.get();
                       return around;
                     });
  clock::stream_clock& s = bench.stream(0);
  memory::allocator& d = bench.on(0);
  auto const come_and_go = [&] { d.deallocate(d.allocate(s, 60'000, 0, at), nullptr, at); };
  come_and_go();
  keeper->refuses = true;
  EXPECT_EQ(d.empty_cache(), 0u);
  keeper->inside = [&] {  // another thread's call, while this thread tries again
    come_and_go();
    EXPECT_EQ(d.empty_cache(), 0u);
  };
  EXPECT_EQ(d.empty_cache(), 0u);
  EXPECT_EQ(d.statistics().reserved_bytes.all.current, 128 << 10);
  keeper->refuses = false;
  EXPECT_EQ(d.empty_cache(), 128u << 10);
  EXPECT_EQ(d.statistics().reserved_bytes.all.current, 0);
  EXPECT_EQ(d.validate(), std::vector<std::string>{});
  EXPECT_EQ(bench.control->findings(), std::vector<std::string>{});
}

INSTANTIATE_TEST_SUITE_P(codes, refused_calls, ::testing::ValuesIn(codes), [](auto const& info) {
  std::string name(driver::name_of(info.param));
  for (char& c : name)
    c = c == ' ' ? '_' : c;
  return name;
});

}  // namespace
}  // namespace weir
