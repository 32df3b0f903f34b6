// One of two processes that share memory is killed or stopped at its k-th call of the driver or the system.
// The other process never sees a wrong byte and never waits longer than its timeout. It gets an error that
// the process is gone or silent, and continues if a stopped process does. Memory that a killed process had
// open returns.
// Threads: one; the other process has its own.
// WEIR_TEST_SEEDS=n tries n/25 calls of each side and mishap (6 by default, at least 2);
// WEIR_TEST_SEED=k that one call.
#include <algorithm>
#include <atomic>

#include "peer/share/exports.h"
#include "tests/peer/machine_fixture.h"
#include "tests/peer/other_process.h"

namespace weir::sharing_kills {
namespace {

using namespace std::chrono_literals;
constexpr std::size_t bytes = 100'000;
constexpr std::uint64_t rounds = 3;
simulated small() {
  return {.devices = 2, .memory = 64_MiB};
}
void write(void* to, std::uint64_t salt) {
  copy(default_stream(0), to, test::pattern(bytes, salt).data(), bytes, blocking::yes);
}
test::bytes_of_host read(void const* from) {
  return test::read_back(from, bytes, 0);
}
test::bytes_of_host read_by_another(void const* from) {
  buffer const mine(bytes, {.on = 1});
  copy(default_stream(1), mine.data(), from, bytes);
  return test::read_back(mine.data(), bytes, 1);
}

// The program of both ends. `again` makes one call on the channel, and repeats it after a timeout. One buffer
// has a handle of its own, the others are a pool's. Another device reads one of them, and later a second one.
template <class Again>
void own(share_channel& line, Again again) {
  share_pool pool({.handle_bytes = 2_MiB});
  exportable_buffer ring[2] = {exportable_buffer(bytes), pool.allocate(bytes)};
  for (auto const& b : ring)
    again([&] { line.send(b, default_stream(0)); });
  for (std::uint64_t r = 0; r < rounds; ++r) {
    write(ring[r % 2].data(), r);
    event written;
    written.record(default_stream(0));
    again([&] { r % 2 ? line.signal(r, written) : line.signal(r, default_stream(0)); });
    std::uint64_t heard = 0;
    again([&] { heard = line.wait(); });
    ASSERT_EQ(heard, r);
  }
  // Freed in transit: the next buffer must not be the same memory.
  exportable_buffer last = pool.allocate(1_MiB), lent = exportable_buffer(bytes);
  write(last.data(), 50);
  again([&] { line.send(last, default_stream(0)); });
  write(lent.data(), 52);
  again([&] { line.send(lent, default_stream(0)); });
  lent = exportable_buffer(bytes);
  write(lent.data(), 53);
  last = pool.allocate(1_MiB);
  write(last.data(), 51);
  again([&] { line.signal(60, default_stream(0)); });
  std::uint64_t heard = 0;
  again([&] { heard = line.wait(); });
  ASSERT_EQ(heard, 61u);
  (void)pool.trim();  // earlier, it would release memory in transit
}

template <class Again>
void look(share_channel& line, Again again) {
  imported_buffer ring[2];
  for (int k : {0, 1})
    again([&] { ring[k] = line.receive(k); });
  for (std::uint64_t r = 0; r < rounds; ++r) {
    std::uint64_t heard = 0;
    again([&] { heard = line.wait(); });
    ASSERT_EQ(heard, r);
    if (r == 2)
      (void)enable_peer_access(ring[0].data<char>(), 1);
    ASSERT_EQ(r ? read_by_another(ring[r % 2].data()) : read(ring[0].data()), test::pattern(bytes, r));
    again([&] { line.signal(r, default_stream(0)); });
  }
  imported_buffer last, lent;
  again([&] { last = line.receive(0); });
  again([&] { lent = line.receive(0); });
  std::uint64_t heard = 0;
  again([&] { heard = line.wait(); });
  ASSERT_EQ(heard, 60u);
  ASSERT_EQ(read(last.data()), test::pattern(bytes, 50)) << "another process has written it";
  ASSERT_EQ(read(lent.data()), test::pattern(bytes, 52)) << "another process has written it";
  ring[0].release(default_stream(0));
  ring[1].release(default_stream(1));
  last.release(default_stream(0));
  lent.reset();
  again([&] { line.signal(61, default_stream(0)); });
}

// // The process that is killed or stopped
// ---------------------------------------------------------------------

std::atomic<std::uint64_t> calls{0};
std::uint64_t fatal_call = 0;
int fatal_signal = 0;
void one_more() noexcept {
  if (++calls == fatal_call)
    ::kill(::getpid(), fatal_signal);
}

class counter final : public driver::fault_injector::watcher {
 public:
  void comes(driver::call) noexcept override { one_more(); }
};

void meet(share_channel& line, void (*play)(share_channel&)) {
  fatal_call = tests::number_from_environment("WEIR_MISHAP_CALL", 0);
  fatal_signal = static_cast<int>(tests::number_from_environment("WEIR_MISHAP_SIGNAL", SIGKILL));
  test::machine m(small());
  counter of_driver;
  driver::fault_injector_of(m.driver())->watch(&of_driver);
  os::refuse_by([](os::call) noexcept { return one_more(), false; });
  play(line);
  os::refuse_by(nullptr);
  driver::fault_injector_of(m.driver())->watch(nullptr);
  line.signal(calls, default_stream(0));
}
constexpr auto once = [](auto call) { call(); };
WEIR_ROLE(owner) {
  meet(line, [](share_channel& l) { own(l, once); });
}
WEIR_ROLE(importer) {
  meet(line, [](share_channel& l) { look(l, once); });
}

// // The process that goes on
// ----------------------------------------------------------------------------------

struct mishap {
  char const* who;
  int signal;
  friend void PrintTo(mishap const& m, std::ostream* out) {
    *out << m.who << (m.signal == SIGKILL ? "_killed" : "_stopped");
  }
};

struct outcome {
  bool gone = false;        // it got peer_disconnected
  std::uint64_t calls = 0;  // of the other process, to its end
};

outcome play(mishap const& m, std::uint64_t at) {
  test::machine here(small());
  synchronize(0);
  auto const room = here.driver().memory(0).value.free;
  outcome out;
  {
    test::other_process other(
        m.who, {"WEIR_MISHAP_CALL=" + std::to_string(at), "WEIR_MISHAP_SIGNAL=" + std::to_string(m.signal)}, 80ms);
    auto const again = [&](auto call) {
      for (int tries = 0; tries < 500; ++tries) {
        try {
          return call();
        } catch (timed_out const&) {
          other.tell(SIGCONT);
        }
      }
      FAIL() << "nothing for 500 leases";
    };
    try {
      if (m.who == std::string_view("owner"))
        look(other.line(), again);
      else
        own(other.line(), again);
      again([&] { out.calls = other.line().wait(); });
      other.tell(SIGCONT);
      EXPECT_EQ(other.end(), at == 0 || m.signal == SIGSTOP ? "exit 0" : "signal 9");
    } catch (peer_disconnected const&) {
      out.gone = true;
      EXPECT_EQ(other.end(), "signal 9");
    }
  }
  auto& lent = here.get().part<peer::exports>();
  { exportable_buffer const one(bytes); }  // looks at returned memory
  lent.forget_idle();
  empty_cache(0);
  EXPECT_EQ(here.driver().memory(0).value.free, room) << "memory is still held";
  return out;
}

struct a_process : ::testing::TestWithParam<mishap> {};

TEST_P(a_process, at_any_of_its_calls_leaves_the_other_whole) {
  auto const all = play(GetParam(), 0).calls;
  ASSERT_GT(all, 20u);
  test::at_some_calls(all, [&](std::uint64_t k) {
    auto const out = play(GetParam(), k);
    EXPECT_TRUE(!out.gone || GetParam().signal == SIGKILL);
  });
}

constexpr mishap mishaps[] = {{"owner", SIGKILL}, {"owner", SIGSTOP}, {"importer", SIGKILL}, {"importer", SIGSTOP}};
INSTANTIATE_TEST_SUITE_P(killed_or_stopped, a_process, ::testing::ValuesIn(mishaps),
                         [](auto const& i) { return ::testing::PrintToString(i.param); });

}  // namespace
}  // namespace weir::sharing_kills
