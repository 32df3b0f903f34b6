// Memory that stays free goes back to the driver, after that time and no earlier. A time of 1 ns has passed by the
// next look, so that a test says when it passes.
// Seeds: see tests/support/seeds.h.
// Threads: one, or several that are scheduled.
#include <random>

#include "tests/memory/counted_calls.h"
#include "tests/memory/reuse_machine.h"
#include "weir/memory.h"
#include "weir/sim.h"

namespace weir::tests {
namespace {
using driver::call;
constexpr std::int64_t hour = 3'600'000'000'000;

struct idle_machine : reuse_machine {
  explicit idle_machine(std::int64_t after_ns = 1) { device().let_idle_go_after(after_ns); }
  void look() {
    ASSERT_TRUE(bench.control->run());
    device().return_idle();
    sound();
  }
  std::size_t reserved() { return static_cast<std::size_t>(stats().reserved_bytes.all.current); }
  std::size_t left() { return bench.machine().memory(0).value.free; }
};

TEST(device_idle, memory_that_stays_free_goes_back) {
  idle_machine m;
  std::size_t const all = m.left();
  void* const p = m.take(m.a, 8 * page);
  void* const small = m.take(m.b, 100);
  m.busy(m.a);
  m.give(p), m.give(small);
  m.look();
  EXPECT_GE(m.reserved(), 9 * page) << "the time begins at a look";
  m.look();
  EXPECT_EQ(m.reserved(), 0u);
  EXPECT_EQ(m.left(), all);
  EXPECT_EQ(m.stats().segment.all.current, 0);
  EXPECT_EQ(m.stats().segment.all.allocated, m.stats().segment.all.freed);
  m.give(m.take(m.a, 8 * page));
  EXPECT_EQ(m.reserved(), 8 * page);
}

TEST(device_idle, memory_stays_until_the_time_has_passed) {
  for (std::int64_t const after : {std::int64_t{0}, hour}) {
    idle_machine m(after);
    m.give(m.take(m.a, 8 * page));
    counted_calls const calls(*m.bench.control);
    for (int i = 0; i < 4; ++i)
      m.look();
    EXPECT_EQ(m.reserved(), 8 * page);
    EXPECT_EQ(calls.of({call::unmap, call::release}), 0u);
    if (!after) {
      EXPECT_EQ(calls.events(), 0u);
    }
  }
}

// No work of the stream lies between the first free and the second.
TEST(device_idle, memory_that_was_used_again_waits_anew) {
  idle_machine m;
  void* const p = m.take(m.a, 8 * page);
  m.give(p);
  m.look();
  ASSERT_EQ(m.take(m.a, 8 * page), p);
  m.give(p);
  ASSERT_TRUE(m.bench.clocks().synchronize(m.a.now()).ok());  // complete is not old
  m.look();
  EXPECT_EQ(m.reserved(), 8 * page);
  m.look();
  EXPECT_EQ(m.reserved(), 0u);
}

TEST(device_idle, handles_under_live_blocks_stay) {
  idle_machine m;
  void* const low = m.take(m.a, page * 3 / 4);
  void* const p = m.take(m.a, 8 * page);
  void* const high = m.take(m.a, page * 3 / 4);
  m.give(p);
  m.look(), m.look();
  EXPECT_EQ(m.reserved(), 3 * page) << "of the first, and of the ninth and tenth";
  m.give(low), m.give(high);
  m.look(), m.look();
  EXPECT_EQ(m.reserved(), 0u);
}

TEST(device_idle, memory_pending_on_another_stream_stays) {
  idle_machine m;
  void* const p = m.take(m.a, 4 * page);
  m.give(m.take(m.a, page / 2));  // so that there is a mark
  m.look();
  m.device().record_use(p, m.b, at);
  m.busy(m.b);
  m.give(p);
  for (int i = 0; i < 4; ++i)
    m.device().return_idle();
  EXPECT_GE(m.reserved(), 4 * page);
  m.sound();
  m.look(), m.look();
  EXPECT_EQ(m.reserved(), 0u);
}

TEST(device_idle, a_refused_call_leaves_the_rest_for_the_next_look) {
  for (call const refused : {call::unmap, call::release}) {
    SCOPED_TRACE(static_cast<int>(refused));
    idle_machine m;
    m.give(m.take(m.a, 8 * page));
    m.look();
    m.bench.control->refusing().refuse({.of = refused, .k = 3, .more = driver::fault_injector::without_end});
    m.look();
    EXPECT_EQ(m.reserved(), 6 * page);
    m.bench.control->refusing().forget_orders();
    m.look();
    EXPECT_EQ(m.reserved(), 0u);
  }
  idle_machine m;  // without a fence nothing separates the frees before a look from those after it
  void* const p = m.take(m.a, page);
  m.give(p);
  m.bench.control->refusing().refuse({.of = call::record, .more = driver::fault_injector::without_end});
  for (int i = 0; i < 4; ++i)
    m.look();
  EXPECT_EQ(m.reserved(), page);
}

// An allocation that finds no free block looks, and the one that finds one does not.
TEST(device_idle, a_miss_looks) {
  idle_machine m;
  m.give(m.take(m.a, 8 * page));
  m.take(m.b, 100);
  ASSERT_TRUE(m.bench.control->run());
  EXPECT_EQ(m.reserved(), 9 * page);
  counted_calls calls(*m.bench.control);
  for (int i = 0; i < 8; ++i)
    m.take(m.b, 100);
  EXPECT_EQ(calls.all(), 0u);
  m.take(m.b, 5000);
  EXPECT_EQ(m.reserved(), 2 * page) << "of a run each";
}

// Each thread allocates, frees, and looks at any time.
TEST(device_idle, threads_look_while_others_allocate) {
  for (std::uint64_t const seed : seeds("device_idle_threads", 100)) {
    SCOPED_TRACE("WEIR_TEST_SEED=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    runtime own(simulated{.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::seeded, .seed = seed});
    runtime_guard const in(own);
    auto& device = static_cast<memory::device_allocator&>(own.get().part<memory::device_memory>().on(0));
    device.let_idle_go_after(1);
    auto controls = simulation::of(own);
    std::vector<stream> streams(2);
    auto const play = [&](stream_ref mine, stream_ref other, std::uint64_t chosen) {
      std::mt19937_64 draw(chosen);
      std::vector<void*> live;
      for (int i = 0; i < 30; ++i) {
        switch (draw() % 4) {
          case 0: device.return_idle(); break;
          case 1:
            if (live.empty())
              break;
            std::swap(live[draw() % live.size()], live.back());
            deallocate(draw() % 2 ? mine : other, live.back()), live.pop_back();
            break;
          default: live.push_back(allocate(mine, draw() % 4 ? 64_KiB + draw() % 200'000 : draw() % 1000));
        }
      }
      for (void* p : live)
        deallocate(p);
    };
    for (std::size_t i = 0; i < 2; ++i) {
      controls.spawn("thread " + std::to_string(i),
                     [&, i, chosen = random()] { play(streams[i], streams[1 - i], chosen); });
    }
    controls.join();
    EXPECT_EQ(device.validate(), std::vector<std::string>{});
  }
}

TEST(device_idle, is_refused_in_deterministic_mode) {
  options const both{.device_idle = std::chrono::milliseconds(30'000), .deterministic = true};
  try {
    runtime const own(simulated{.devices = 1}, both);
    FAIL();
  } catch (invalid_use const& e) {
    EXPECT_NE(std::string(e.what()).find("weir-429"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("options::device_idle of 30 s"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace weir::tests
