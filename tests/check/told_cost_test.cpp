// What launches past weir cost: time, and host memory while nothing is complete.
// Threads: one.
#include <chrono>

#include "tests/check/told.h"
#include "tests/support/sanitized.h"

namespace weir::driver::check {
namespace {

struct told_cost : told {
  static constexpr int launches = tests::sanitized ? 200'000 : 1'000'000, streams = 4, buffers = 64;

  // Launches of three pointers on all streams; `between` comes after each. Returns: us a launch.
  template <class Between>
  double run(Between between) {
    address at[buffers];
    stream_handle on[streams];
    for (stream_handle& s : on)
      s = stream();
    for (address& b : at)
      b = block(on[0]);
    auto const begin = std::chrono::steady_clock::now();
    for (int i = 0; i < launches; ++i) {
      auto const k = static_cast<std::size_t>(i);
      pointers const p{writes_at(at[k % buffers]), reads_at(at[(k * 7 + 1) % buffers]),
                       inside_at(at[(k * 13 + 2) % buffers])};
      launch(on[k % streams], p, 1 + i % 50);
      between(i, on);
    }
    std::chrono::duration<double, std::micro> const all = std::chrono::steady_clock::now() - begin;
    RecordProperty("microseconds", std::to_string(all.count() / launches));
    return all.count() / launches;
  }
  void expect_bounded(double us, std::size_t before) {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    constexpr double most_us = 20;  // some 1 on a machine that does nothing else
    EXPECT_LT(us, most_us);
    EXPECT_LT(resident() - std::min(resident(), before), 64_MiB);
#endif
    std::printf("%.2f us a launch, %.1f MiB more\n", us,
                static_cast<double>(resident() - std::min(resident(), before)) / (1 << 20));
  }
};

TEST_F(told_cost, is_bounded_while_nothing_is_complete) {
  std::size_t const before = resident();
  expect_bounded(run([](int, stream_handle const*) {}), before);
  EXPECT_FALSE(judge->findings().empty());
}

TEST_F(told_cost, is_bounded_beside_events) {
  std::size_t const before = resident();
  expect_bounded(run([this](int i, stream_handle const* on) {
                   if (i % 4 == 0)
                     told_order(on[i / 4 % streams], on[(i / 4 + 1) % streams]);
                 }),
                 before);
}

}  // namespace
}  // namespace weir::driver::check
