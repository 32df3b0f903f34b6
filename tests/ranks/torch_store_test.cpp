// A client of torchrun's store, against a store that answers as PyTorch's does, and against hostile ones.
// WEIR_TEST_SEEDS and WEIR_TEST_SEED: tests/support/seeds.h.
// Threads: the client, and one that serves.
#include "peer/ranks/torch_store.h"

#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <thread>

#include "tests/ranks/raw_tcp.h"
#include "tests/support/seeds.h"
#include "weir/error.h"

namespace weir {
namespace {

using namespace test;
using namespace std::chrono_literals;
constexpr source_location nowhere{};

// Serves one client with that function, then hangs up.
class server {
 public:
  explicit server(std::function<void(raw_tcp&)> serve)
      : thread_([this, serve = std::move(serve)] {
          raw_tcp client = accepted(listener_);
          serve(client);
        }) {}
  ~server() { thread_.join(); }
  std::uint16_t port() const { return listener_.port; }

 private:
  os::tcp_socket listener_ = os::listen_tcp(0);
  std::thread thread_;
};

// The operations that weir uses, as PyTorch's store answers them.
void serve_store(raw_tcp& client, std::map<std::string, std::string>& values) {
  auto const number = [&]<class T>(T n) {
    std::string const bytes = client.hear(sizeof n);
    if (bytes.size() == sizeof n)
      std::memcpy(&n, bytes.data(), sizeof n);
    return n;
  };
  auto const text = [&] { return client.hear(number(std::uint64_t{})); };
  while (true) {
    std::string const call = client.hear(1);
    if (call.empty())
      return;
    switch (call[0]) {
      case 0: ASSERT_EQ(number(std::uint32_t{}), 0x3C85F7CEu); break;
      case 13: client.say(raw(number(std::uint32_t{}))); break;
      case 1: {
        std::string const key = text();
        values[key] = text();
        break;
      }
      case 3: client.say(raw_text(values.at(text()))); break;
      case 5: {
        ASSERT_EQ(number(std::uint64_t{}), 1u);
        client.say(values.count(text()) ? std::string(1, '\0') : std::string(1, '\1'));
        break;
      }
      default: FAIL() << "operation " << static_cast<int>(call[0]);
    }
  }
}

TEST(torch_store, keeps_what_was_set) {
  std::map<std::string, std::string> values;
  server s([&](raw_tcp& c) { serve_store(c, values); });
  peer::torch_store store("127.0.0.1", s.port(), long_enough, nowhere);
  EXPECT_EQ(store.get("a"), std::nullopt);
  store.set("a", "one");
  store.set("empty", "");
  std::string const bytes("\0\xff two", 6);
  store.set("b", bytes);
  EXPECT_EQ(store.get("a"), "one");
  EXPECT_EQ(store.get("b"), bytes);
  EXPECT_EQ(store.get("empty"), "");
  store.set("a", "three");
  EXPECT_EQ(store.get("a"), "three");
}

TEST(torch_store, that_starts_late_is_waited_for) {
  std::uint16_t const port = os::listen_tcp(0).port;
  std::thread late([port] {
    std::this_thread::sleep_for(150ms);
    os::tcp_socket const listener = os::listen_tcp(port);
    std::map<std::string, std::string> values;
    raw_tcp client = accepted(listener);
    serve_store(client, values);
  });
  { peer::torch_store store("127.0.0.1", port, long_enough, nowhere); }
  late.join();
}

std::string refusal_of(std::function<void()> const& action) {
  try {
    action();
  } catch (driver_error const& e) {
    EXPECT_NE(e.operands().find("torchrun's store at 127.0.0.1 port "), std::string_view::npos) << e.what();
    EXPECT_NE(e.remedy(), "");
    return std::string(e.operands());
  }
  return "";
}

// What a server says after the handshake, and what the client makes of it.
struct attack {
  char const* name;
  std::string says;
  char const* told;
};

TEST(torch_store, that_answers_nonsense_is_refused) {
  std::string const ready(1, '\0');
  attack const all[] = {
      {"an answer that is none", "\2", "answers 2"},
      {"no answer to a check", "", "hung up"},
      {"a value without a length", ready, "hung up"},
      {"half a length", ready + "\1\0\0", "hung up"},
      {"a length of 2^64 - 1", ready + raw(~std::uint64_t{0}), "18446744073709551615 B"},
      {"a length of 4097", ready + raw(std::uint64_t{4097}) + std::string(4097, 'x'), "4097 B"},
      {"a value that ends early", ready + raw(std::uint64_t{10}) + "123", "hung up"},
  };
  for (attack const& a : all) {
    server s([&](raw_tcp& c) {
      c.hear(5 + 1);
      c.say(c.hear(4));
      c.say(a.says);
      if (a.told != std::string("hung up"))
        c.hear(1000);  // until the client ends
    });
    peer::torch_store store("127.0.0.1", s.port(), 2s, nowhere);
    EXPECT_NE(refusal_of([&] { (void)store.get("k"); }).find(a.told), std::string::npos) << a.name;
  }
}

TEST(torch_store, that_is_another_program_is_refused) {
  {
    server s([](raw_tcp& c) { c.say("HTTP/1.1 400 Bad Request\r\n\r\n"); });
    EXPECT_NE(refusal_of([&] { peer::torch_store("127.0.0.1", s.port(), 2s, nowhere); }).find("another number"),
              std::string::npos);
  }
  {
    server s([](raw_tcp& c) { c.hang_up(); });
    EXPECT_NE(refusal_of([&] { peer::torch_store("127.0.0.1", s.port(), 2s, nowhere); }).find("hung up"),
              std::string::npos);
  }
  {
    server s([](raw_tcp& c) { c.hear(10), std::this_thread::sleep_for(150ms); });
    EXPECT_NE(refusal_of([&] { peer::torch_store("127.0.0.1", s.port(), 60ms, nowhere); }).find("60 ms"),
              std::string::npos);
  }
  std::uint16_t const unused = os::listen_tcp(0).port;
  EXPECT_NE(refusal_of([&] { peer::torch_store("127.0.0.1", unused, 80ms, nowhere); }).find("cannot be reached"),
            std::string::npos);
}

// Whatever comes, the client takes little memory, ends in time, and says which store it was.
TEST(torch_store, random_bytes_are_a_value_or_an_error) {
  for (std::uint64_t const seed : tests::seeds("hostile stores", 150)) {
    std::mt19937_64 random(seed);
    server s([&](raw_tcp& c) {
      c.hear(6);
      std::string const nonce = c.hear(4);
      c.say(random() % 8 ? nonce : raw(random()));
      std::string bytes(random() % 3 ? 1 : 0, '\0');
      if (random() % 2)
        bytes += raw(std::uint64_t{random() % 20});
      std::size_t const more = random() % 64;
      for (std::size_t i = 0; i < more; ++i)
        bytes += static_cast<char>(random() % 4 ? 0 : random());
      c.say(bytes);
    });
    std::string text;
    try {
      peer::torch_store store("127.0.0.1", s.port(), 2s, nowhere);
      for (int i = 0; i < 3; ++i) {
        auto const value = store.get("k");
        ASSERT_LE(value.value_or("").size(), 4096u);
      }
    } catch (driver_error const& e) {
      text = e.operands();
      ASSERT_NE(text.find("torchrun's store"), std::string::npos) << "WEIR_TEST_SEED=" << seed << ": " << text;
    }
  }
}

}  // namespace
}  // namespace weir
