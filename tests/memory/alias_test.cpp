// Handles that move leave aliases: a handle that returns costs no driver call, and a released one leaves
// nothing mapped.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "runtime/memory/device/device_allocator.h"
#include "tests/memory/names.h"
#include "tests/model/aliases_program.h"
#include "tests/support/sanitized.h"

namespace weir {
namespace {

using tests::memory_bench;

// Counts the calls that a move makes.
class counting : public driver::fault_injector {
 public:
  explicit counting(std::unique_ptr<weir::driver::driver> m) : fault_injector(std::move(m)) {}
  weir::driver::status map(weir::driver::address a, std::size_t bytes, weir::driver::memory_handle h) override {
    return ++maps, fault_injector::map(a, bytes, h);
  }
  weir::driver::status unmap(weir::driver::address a, std::size_t bytes) override {
    return ++unmaps, fault_injector::unmap(a, bytes);
  }
  int maps = 0, unmaps = 0;
};

// Two holes of 16 pages between walls, and a block of 32 pages that took both holes' pages. No more memory
// may be reserved.
struct moved {
  counting* calls = nullptr;
  memory_bench bench{{.devices = 1, .memory = 64 << 20, .schedule = simulated::scheduling::stepped, .seed = 1},
                     options{.epsilon = 0},
                     [&](std::unique_ptr<weir::driver::driver> m) {
                       auto made = std::make_unique<counting>(std::move(m));
                       calls = made.get();
                       return made;
                     }};
  clock::stream_clock& s = bench.stream(0);
  memory::device_allocator& device = static_cast<memory::device_allocator&>(bench.on(0));
  char* holes[2];
  std::vector<void*> walls;
  char* large = nullptr;

  char* take(std::size_t pages) { return static_cast<char*>(device.allocate(s, pages * page, 0, at)); }
  void give(void* p) { device.deallocate(p, nullptr, at); }
  moved() {
    for (char*& h : holes)
      h = take(16), walls.push_back(take(1));
  }
  void move() {
    for (char* h : holes)
      give(h);
    large = take(32);
  }
  std::size_t reserved() const { return static_cast<std::size_t>(device.statistics().reserved_bytes.all.current); }
  void expect_sound() {
    EXPECT_EQ(device.validate(), std::vector<std::string>{});
    EXPECT_TRUE(bench.control->findings().empty());
  }
};

TEST(ghosts, a_handle_returns_home_without_a_driver_call) {
  moved m;
  m.move();
  EXPECT_EQ(m.calls->unmaps, 0) << "a move unmaps nothing";
  m.expect_sound();
  m.walls.push_back(m.take(17));  // behind the large block: too large for a hole
  m.give(m.large);
  char* const low = m.take(20);
  EXPECT_EQ(low, m.large);
  int const before = m.calls->maps;
  char* const back = m.take(13);  // of the 12 pages left above, which return to their old place
  EXPECT_TRUE(back == m.holes[0] || back == m.holes[1] || (back > m.holes[0] && back < m.holes[1] + 16 * page))
      << (back - m.holes[0]) / static_cast<std::ptrdiff_t>(page) << " pages from the first hole, "
      << (m.holes[1] - m.holes[0]) / static_cast<std::ptrdiff_t>(page) << " and "
      << (m.large - m.holes[0]) / static_cast<std::ptrdiff_t>(page);
  EXPECT_LE(m.calls->maps - before, 1) << "twelve come home, one is new";
  EXPECT_EQ(m.calls->unmaps, 0);
  m.expect_sound();
}

// The handles are unmapped only when that work is complete.
TEST(ghosts, ordered_handles_move_while_work_still_uses_them) {
  moved m;
  auto const work = [&](char* p, std::size_t pages) {
    driver::touch const use{reinterpret_cast<driver::address>(p), pages * page, true};
    ASSERT_TRUE(m.bench.machine().enqueue(0, m.s.handle(), {&use, 1}, {[](void*) {}, nullptr, nullptr}).ok());
  };
  for (char* h : m.holes)
    work(h, 16);
  std::size_t const before = m.reserved();
  m.move();
  EXPECT_LE(m.reserved(), before + page) << "taken from work that is ordered, not made anew";
  work(m.large, 32);
  m.expect_sound();
  EXPECT_EQ(m.calls->unmaps, 0);
  m.give(m.large);
  for (void* w : m.walls)
    m.give(w);
  EXPECT_TRUE(m.bench.control->run());
  m.expect_sound();
  m.device.empty_cache();
  EXPECT_EQ(m.reserved(), 0u);
  EXPECT_EQ(m.calls->maps, m.calls->unmaps) << "no ghost of what has gone";
  m.expect_sound();
}

TEST(ghosts, nothing_is_unmapped_before_work_is_complete) {
  moved m;
  auto const in_a_hole = [&](char const* p) {
    return p < m.holes[0] + 16 * page || (p >= m.holes[1] && p < m.holes[1] + 16 * page);
  };
  for (char* h : m.holes) {
    driver::touch const use{reinterpret_cast<driver::address>(h), 16 * page, true};
    ASSERT_TRUE(m.bench.machine().enqueue(0, m.s.handle(), {&use, 1}, {[](void*) {}, nullptr, nullptr}).ok());
  }
  m.move();
  EXPECT_FALSE(in_a_hole(m.take(16))) << "a hole as large as the block, and a queue that still uses it";
  EXPECT_EQ(m.calls->unmaps, 0);
  EXPECT_TRUE(m.bench.control->run());
  m.expect_sound();
}

// Behind work that has not begun, blocks of many sizes come and go. Each handle that moves stays mapped wherever it
// was.
TEST(ghosts, unfinished_work_leaves_a_handle_few_of_them) {
  moved m;
  std::mt19937 random(1);
  std::vector<char*> live;
  int begun = 0;
  auto const give_one = [&] {
    std::swap(live[random() % live.size()], live.back());
    m.give(live.back());
    live.pop_back();
  };
  for (int i = 0; i < 3000; ++i) {
    if (live.size() == 8)
      give_one();
    live.push_back(m.take(1 + random() % 40));
    driver::touch const use{reinterpret_cast<driver::address>(live.back()), page, true};
    driver::work const counted{[](void* n) { ++*static_cast<int*>(n); }, nullptr, &begun};
    ASSERT_TRUE(m.bench.machine().enqueue(0, m.s.handle(), {&use, 1}, counted).ok());
  }
  std::size_t const handles = m.reserved() / page;
  EXPECT_LE(static_cast<std::size_t>(m.calls->maps), handles * (memory::alias_table::most_under_work + 1));
  EXPECT_EQ(m.calls->unmaps, 0);
  EXPECT_EQ(m.device.validate(), std::vector<std::string>{});
  // Where memory is short, they move all the same: nothing can complete meanwhile.
  m.device.set_limit(m.reserved());
  while (!live.empty())
    give_one();
  for (std::size_t pages = 20; pages < handles - handles / 8; pages += 20) {
    m.give(m.take(pages));
    EXPECT_EQ(begun, 0) << pages;
    if (begun)
      break;
  }
  live.push_back(m.take(handles - m.walls.size() - 2 * 16));
  m.device.set_limit(0);
  EXPECT_EQ(m.reserved(), handles * page);
  EXPECT_EQ(m.device.validate(), std::vector<std::string>{});
  // All work is complete: what stayed serves the next block.
  give_one();
  m.give(m.holes[0]), m.give(m.holes[1]);
  for (void* w : m.walls)
    m.give(w);
  m.walls.clear();
  (void)m.bench.clocks().poll(m.s.now());
  EXPECT_TRUE(m.bench.control->run());
  m.give(m.take(handles - 1));
  EXPECT_LE(m.reserved(), (handles + 1) * page) << "the bound allows a page more";
  m.device.empty_cache();
  EXPECT_EQ(m.reserved(), 0u);
  EXPECT_EQ(m.calls->maps, m.calls->unmaps) << "no ghost of what has gone";
  m.expect_sound();
}

// Two pages move behind work of their stream that the next stream waits for on the device. A third stream knows nothing
// of that work, so it waits before it gets the rest of them.
TEST(ghosts, the_rest_of_pages_that_moved_waits_for_their_last_use) {
  memory_bench bench{{.devices = 1, .memory = 64 << 20, .schedule = simulated::scheduling::stepped, .seed = 1},
                     options{.epsilon = 0, .device_waits = options::wait_policy::never}};
  auto& device = static_cast<memory::device_allocator&>(bench.on(0));
  clock::stream_clock &last = bench.stream(0), &next = bench.stream(0), &third = bench.stream(0);
  char* blocks[4];  // used, wall, used, wall
  for (char*& b : blocks)
    b = static_cast<char*>(device.allocate(last, page, 0, at));
  int done = 0;
  for (int i : {0, 2}) {
    driver::touch const use{reinterpret_cast<driver::address>(blocks[i]), page, true};
    driver::work const counted{[](void* n) { ++*static_cast<int*>(n); }, nullptr, &done};
    ASSERT_TRUE(bench.machine().enqueue(0, last.handle(), {&use, 1}, counted).ok());
    device.deallocate(blocks[i], nullptr, at);
  }
  ASSERT_TRUE(next.wait({last.id(), last.now().n}).ok());
  device.set_limit(4 * page);
  void* const moved_here = device.allocate(next, page + page / 2, 0, at);
  EXPECT_EQ(done, 0) << "the stream waits, not the host";
  void* const rest = device.allocate(third, page / 2, 0, at);
  EXPECT_EQ(done, 2) << "the third stream got memory that is in use";
  device.deallocate(rest, nullptr, at);
  device.deallocate(moved_here, nullptr, at);
  for (int i : {1, 3})
    device.deallocate(blocks[i], nullptr, at);
  EXPECT_EQ(device.validate(), std::vector<std::string>{});
  EXPECT_TRUE(bench.control->findings().empty());
}

// The programs leave more aliases than weir keeps.
TEST(ghosts, random_programs_unmap_none_under_work) {
  for (auto const seed : tests::seeds("ghosts", tests::sanitized ? 30 : 100)) {
    auto const v = tests::aliases_program(seed).run();
    ASSERT_TRUE(v.ok()) << "WEIR_TEST_SEED=" << seed << ": " << v;
  }
}

TEST(ghosts, a_place_closed_to_the_device_is_unmapped_at_once) {
  moved m;
  int const before = m.calls->maps;
  // The first grant is for the new page, the second for the first page that moves.
  m.bench.control->fail_call("grant", 2, driver::code::failed);
  EXPECT_THROW(m.move(), error);
  EXPECT_EQ(m.calls->maps - before, 2);
  EXPECT_EQ(m.calls->unmaps, 2);
  m.expect_sound();
}

// Refuses each driver call of a move, a return home and a release: first that call only, then also the calls
// after it. In the end all memory is released.
TEST(ghosts, any_call_refused_leaves_every_list_whole) {
  auto const program = [](moved& m) {
    int failed = 0;
    auto const attempt = [&](auto act) {
      try {
        act();
      } catch (error const&) {
        ++failed;
      }
    };
    m.large = nullptr;
    attempt([&] { m.move(); });
    if (m.large)
      m.give(m.large);
    std::vector<void*> got;
    for (std::size_t const pages : {20, 13, 7, 30})
      attempt([&] { got.push_back(m.take(pages)); });
    for (void* p : got)
      m.give(p);
    m.device.empty_cache();
    return failed;
  };
  std::uint64_t calls = 0;
  {
    moved m;
    auto const before = driver::fault_injector_of(m.bench.machine())->calls_so_far();
    EXPECT_EQ(program(m), 0);
    calls = driver::fault_injector_of(m.bench.machine())->calls_so_far() - before;
  }
  ASSERT_GT(calls, 60u);
  for (std::uint64_t k = 1; k <= calls; ++k) {
    moved m;
    m.bench.control->fail_call("any", k, k % 2 ? driver::code::out_of_memory : driver::code::failed);
    (void)program(m);
    driver::fault_injector_of(m.bench.machine())->forget_orders();
    ASSERT_EQ(m.device.validate(), std::vector<std::string>{}) << "call " << k;
    for (void* w : m.walls)
      m.give(w);
    m.device.empty_cache();
    ASSERT_EQ(m.reserved(), 0u) << "call " << k;
    ASSERT_EQ(m.device.validate(), std::vector<std::string>{}) << "call " << k;
  }
}

}  // namespace
}  // namespace weir
