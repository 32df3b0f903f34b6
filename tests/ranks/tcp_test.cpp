// TCP of the operating-system layer: every byte arrives, and each refusal is told.
// Threads: two.
#include <random>
#include <thread>

#include "tests/ranks/raw_tcp.h"

namespace weir {
namespace {

using namespace test;
using namespace std::chrono_literals;

TEST(tcp, carries_all_bytes_in_order_in_any_pieces) {
  auto [a, b] = connected();
  std::vector<std::byte> all(5'000'000), got(all.size());
  for (std::size_t i = 0; i < all.size(); ++i)
    all[i] = static_cast<std::byte>(i * 7 + i / 251);
  std::thread sender([&, to = a.get()] {
    std::mt19937 random(1);
    for (std::size_t at = 0; at < all.size();) {
      std::size_t const n = std::min<std::size_t>(1 + random() % 100'000, all.size() - at);
      ASSERT_EQ(os::send_bytes(to, std::span(all).subspan(at, n), os::no_limit), os::heard::message);
      at += n;
    }
  });
  std::mt19937 random(2);
  for (std::size_t at = 0; at < got.size();) {
    std::size_t const n = std::min<std::size_t>(1 + random() % 100'000, got.size() - at);
    ASSERT_EQ(os::receive_bytes(b.get(), std::span(got).subspan(at, n), os::no_limit), os::heard::message);
    at += n;
  }
  sender.join();
  EXPECT_EQ(got, all);
}

TEST(tcp, an_end_that_closes_is_heard_after_its_bytes) {
  auto [a, b] = connected();
  std::byte const one{7};
  std::byte got{};
  ASSERT_EQ(os::send_bytes(a.get(), {&one, 1}, 1s), os::heard::message);
  a.close();
  EXPECT_EQ(os::receive_bytes(b.get(), {&got, 1}, 1s), os::heard::message);
  EXPECT_EQ(got, one);
  EXPECT_EQ(os::receive_bytes(b.get(), {&got, 1}, 1s), os::heard::closed);
}

TEST(tcp, waits_no_longer_than_its_limit) {
  auto [a, b] = connected();
  std::byte got{};
  EXPECT_EQ(os::receive_bytes(b.get(), {&got, 1}, 30ms), os::heard::too_late);
  EXPECT_EQ(os::receive_bytes(b.get(), {&got, 1}, 0ms), os::heard::too_late);
  std::vector<std::byte> const much(64 << 20);
  EXPECT_EQ(os::send_bytes(a.get(), much, 30ms), os::heard::too_late);
}

TEST(tcp, shutting_down_wakes_a_thread_that_waits) {
  auto [a, b] = connected();
  std::thread ends([s = b.get()] { std::this_thread::sleep_for(20ms), os::shut_down(s); });
  std::byte got{};
  EXPECT_EQ(os::receive_bytes(b.get(), {&got, 1}, os::no_limit), os::heard::closed);
  ends.join();
}

TEST(tcp, a_refused_connection_says_why) {
  std::uint16_t const unused = os::listen_tcp(0).port;
  EXPECT_NE(os::connect_tcp("127.0.0.1", unused, 1s).why_not.find("refused"), std::string::npos);
  EXPECT_NE(os::connect_tcp("no.such.host.invalid", unused, 1s).why_not, "");
  os::tcp_socket const taken = os::listen_tcp(0);
  EXPECT_NE(os::listen_tcp(taken.port).why_not.find("in use"), std::string::npos);
  EXPECT_NE(os::own_address(), "");
}

TEST(tcp, each_refused_call_of_the_system_is_told) {
  auto [a, b] = connected();
  std::byte one{};
  os::refuse_by([](os::call c) noexcept { return c >= os::call::listen_tcp; });
  EXPECT_FALSE(os::listen_tcp(0).file.is_open());
  EXPECT_FALSE(os::connect_tcp("127.0.0.1", 1, 1s).file.is_open());
  EXPECT_FALSE(os::accept_tcp(a.get()).is_open());
  EXPECT_EQ(os::send_bytes(a.get(), {&one, 1}, 1s), os::heard::refused);
  EXPECT_EQ(os::receive_bytes(a.get(), {&one, 1}, 1s), os::heard::refused);
  os::refuse_by(nullptr);
}

TEST(tcp, a_wake_up_makes_a_file_readable_once) {
  os::owned_file const file = os::make_wake_up();
  std::vector<bool> ready;
  int const both[] = {file.get(), -1};
  os::wait_readable(both, ready, 0ms);
  EXPECT_EQ(ready, std::vector<bool>({false, false}));
  os::wake_up(file.get()), os::wake_up(file.get());
  os::wait_readable(both, ready, 1s);
  EXPECT_EQ(ready, std::vector<bool>({true, false}));
  os::take_wake_ups(file.get());
  os::wait_readable(both, ready, 0ms);
  EXPECT_FALSE(ready[0]);
}

}  // namespace
}  // namespace weir
