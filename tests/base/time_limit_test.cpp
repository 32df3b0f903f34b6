// Waits with a time limit, up to the longest one.
// Threads: as each test says.
#include <gtest/gtest.h>
#include <unistd.h>

#include <limits>

#include "runtime/base/os_socket.h"
#include "runtime/base/sync.h"

namespace weir::base {
namespace {

using namespace std::chrono_literals;
constexpr std::int64_t longest = std::numeric_limits<std::int64_t>::max();

TEST(time_limit, spans_outside_the_clocks_range_are_clamped) {
  EXPECT_EQ(time_limit(std::chrono::milliseconds::max()).ns(), longest);
  EXPECT_EQ(time_limit(std::chrono::hours::max()).ns(), longest);
  EXPECT_EQ(time_limit(std::chrono::nanoseconds::max()).ns(), longest);
  EXPECT_EQ(time_limit(std::chrono::milliseconds::min()).ns(), 0);
  EXPECT_EQ(time_limit(-1ms).ns(), 0);
  EXPECT_EQ(time_limit(3ms).ns(), 3'000'000);
}

TEST(sleep_ns, lasts_as_long_as_asked) {
  auto const from = std::chrono::steady_clock::now();
  sleep_ns(2'000'000);
  EXPECT_GE(std::chrono::steady_clock::now() - from, 2ms);  // never less, however busy the machine is
}

TEST(time_limit, the_longest_span_ends_at_the_last_moment) {
  EXPECT_EQ(time_limit(std::chrono::nanoseconds::max()).after(7), longest);
  EXPECT_EQ(time_limit(std::chrono::milliseconds::max()).after(longest), longest);
  EXPECT_EQ(time_limit(5ns).after(7), 12);
  EXPECT_EQ(time_limit(0ms).after(longest), longest);
}

TEST(time_limit, an_unlimited_wait_ends_with_its_event) {
  mutex m;
  condition changed;
  bool there = false;
  unique_lock hold(m);
  thread other([&] {  // starts only after the wait has begun
    unique_lock const held(m);
    there = true;
    changed.notify_all();
  });
  int looks = 0;
  EXPECT_TRUE(changed.wait_for(hold, std::chrono::milliseconds::max(), [&] { return ++looks, there; }));
  EXPECT_EQ(looks, 2) << "one before the wait, one when it was told";
  hold.unlock();
  other.join();
}

TEST(time_limit, a_message_may_be_waited_for_without_end) {
  auto const [here, there] = os::make_sockets();
  std::byte const one{1};
  thread other([to = there, &one] {
    sleep_ns(2'000'000);
    EXPECT_EQ(os::send_message(to, {&one, 1}, {}, std::chrono::milliseconds::max()), os::heard::message);
  });
  std::byte got{};
  EXPECT_EQ(os::receive_message(here, {&got, 1}, std::chrono::milliseconds::max()).is, os::heard::message);
  other.join();
  ::close(here), ::close(there);
}

}  // namespace
}  // namespace weir::base
