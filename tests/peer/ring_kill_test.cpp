// One of a ring's processes is killed or stopped at its k-th call of the driver or the system. The others see right
// bytes only, in order, and wait no longer than their timeout. They get an error that names it, and go on.
// Threads: one; each other process has its own.
// WEIR_TEST_SEEDS=n tries n/25 calls of each side and mishap (6 by default, at least 2);
// WEIR_TEST_SEED=k that one call.
#include <algorithm>
#include <atomic>

#include "tests/peer/other_process.h"
#include "tests/peer/ring_fixture.h"
#include "tests/support/seeds.h"

namespace weir::ring_kills {
namespace {

using namespace test::rings;
using test::sharing::small;
constexpr unsigned items = 7;
constexpr std::size_t bytes = 3000;
std::size_t size_of(unsigned item) {
  return bytes - item * 100;
}

// ---- the process that is killed or stopped ----------------------------------------------------------------

std::atomic<std::uint64_t> ring_calls{0};
std::uint64_t last_call = 0;
int last_signal = 0;
void count_call() noexcept {
  if (++ring_calls == last_call)
    ::kill(::getpid(), last_signal);
}
class call_counter final : public driver::fault_injector::watcher {
 public:
  void comes(driver::call) noexcept override { count_call(); }
};

void meet(share_channel& line, void (*play)()) {
  last_call = tests::number_from_environment("WEIR_MISHAP_CALL", 0);
  last_signal = static_cast<int>(tests::number_from_environment("WEIR_MISHAP_SIGNAL", SIGKILL));
  test::machine m(small());
  call_counter of_driver;
  driver::fault_injector_of(m.driver())->watch(&of_driver);
  os::refuse_by([](os::call) noexcept { return count_call(), false; });
  play();
  os::refuse_by(nullptr);
  driver::fault_injector_of(m.driver())->watch(nullptr);
  line.signal(ring_calls, default_stream(0));
}

WEIR_ROLE(writes_a_ring) {
  meet(line, [] {
    ring_writer to({test::its_ring_socket}, {.bytes = bytes, .slots = 2, .on = 0, .timeout = 20s});
    for (unsigned n = 0; n < items; ++n)
      publish(to, n, size_of(n));
    to.close();
  });
}
WEIR_ROLE(reads_a_ring) {
  meet(line, [] {
    ring_reader from(test::its_ring_socket, 0, 20s);
    unsigned n = 0;
    while (auto const item = from.take()) {
      ASSERT_TRUE(holds(*item, n, size_of(n)));
      ++n;
    }
    ASSERT_EQ(n, items);
  });
}

// ---- the process that goes on -----------------------------------------------------------------------------

struct ring_mishap {
  char const* who;
  int signal;
  friend void PrintTo(ring_mishap const& m, std::ostream* out) {
    *out << m.who << (m.signal == SIGKILL ? "_killed" : "_stopped");
  }
};
struct ring_outcome {
  bool gone = false;        // the other process was named as gone
  std::uint64_t calls = 0;  // of the other process, to its end
};

struct ring_play {
  ring_play(ring_mishap const& m, std::uint64_t at)
      : other(m.who, {"WEIR_MISHAP_CALL=" + std::to_string(at), "WEIR_MISHAP_SIGNAL=" + std::to_string(m.signal)}, 20s,
              true) {}

  template <class Call>
  void again(Call call) {  // after each timeout, a stopped process goes on
    for (int tries = 0; tries < 500; ++tries) {
      try {
        return call();
      } catch (timed_out const&) {
        other.tell(SIGCONT);
      }
    }
    FAIL() << "nothing for 500 timeouts";
  }

  void read() {
    std::optional<ring_reader> from;
    again([&] { from.emplace(other.ring(), 1, 80ms); });
    for (unsigned n = 0;; ++n) {
      std::optional<ring_item> item;
      again([&] { item = from->take(); });
      if (!item) {
        ASSERT_EQ(n, items);
        return;
      }
      ASSERT_TRUE(holds(*item, n, size_of(n))) << n;
    }
  }

  // With a reader of its own, which misses nothing when the other process is killed.
  void write() {
    auto const [a, b] = os::make_sockets();
    ring_writer to({a, other.ring()}, {.bytes = bytes, .slots = 2, .on = 0, .timeout = 80ms});
    ring_reader own(b, 1, 20s);
    auto const or_without_it = [&](auto call) {
      try {
        again(call);
      } catch (peer_disconnected const& e) {
        EXPECT_NE(std::string(e.what()).find("reader 1"), std::string::npos) << e.what();
        gone = true;
        again(call);
      }
    };
    for (unsigned n = 0; n < items; ++n) {
      or_without_it([&] { publish(to, n, size_of(n)); });
      ASSERT_TRUE(holds(*own.take(), n, size_of(n)));
    }
    or_without_it([&] { to.close(); });
    ASSERT_FALSE(own.take());
  }

  test::other_process other;
  bool gone = false;
};

ring_outcome play_ring(ring_mishap const& m, std::uint64_t at) {
  test::machine here(small());
  ring_play play(m, at);
  ring_outcome out;
  try {
    m.who == std::string_view("writes_a_ring") ? play.read() : play.write();
    out.gone = play.gone;
    if (!out.gone)
      play.again([&] { out.calls = play.other.line().wait(); });
  } catch (peer_disconnected const&) {
    out.gone = true;
  }
  play.other.tell(SIGCONT);
  EXPECT_EQ(play.other.end(), out.gone || (at > 0 && at <= out.calls && m.signal == SIGKILL) ? "signal 9" : "exit 0");
  return out;
}

struct a_ring_process : ::testing::TestWithParam<ring_mishap> {};

TEST_P(a_ring_process, at_any_of_its_calls_leaves_the_others_whole) {
  auto const all = play_ring(GetParam(), 0).calls;
  ASSERT_GT(all, 20u);
  test::at_some_calls(all, [&](std::uint64_t k) {
    auto const out = play_ring(GetParam(), k);
    EXPECT_TRUE(!out.gone || GetParam().signal == SIGKILL);
  });
}

constexpr ring_mishap ring_mishaps[] = {
    {"writes_a_ring", SIGKILL}, {"writes_a_ring", SIGSTOP}, {"reads_a_ring", SIGKILL}, {"reads_a_ring", SIGSTOP}};
INSTANTIATE_TEST_SUITE_P(killed_or_stopped, a_ring_process, ::testing::ValuesIn(ring_mishaps),
                         [](auto const& i) { return ::testing::PrintToString(i.param); });

}  // namespace
}  // namespace weir::ring_kills
