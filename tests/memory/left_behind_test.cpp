// Addresses that the handles of a graph's pool leave: how many stay, and who may use them.
// Threads: one.
#include <gtest/gtest.h>

#include "runtime/memory/device/graph_hold.h"
#include "tests/memory/names.h"
#include "tests/support/memory_bench.h"
#include "tests/support/on_purpose.h"

namespace weir {
namespace {

// Counts the bytes that are mapped, at every address.
class mapped_bytes : public driver::fault_injector {
 public:
  explicit mapped_bytes(std::unique_ptr<weir::driver::driver> m) : fault_injector(std::move(m)) {}
  weir::driver::status map(weir::driver::address a, std::size_t bytes, weir::driver::memory_handle h) override {
    auto const is = fault_injector::map(a, bytes, h);
    now += is.ok() ? bytes : 0;
    return is;
  }
  weir::driver::status unmap(weir::driver::address a, std::size_t bytes) override {
    auto const is = fault_injector::unmap(a, bytes);
    now -= is.ok() ? bytes : 0;
    return is;
  }
  std::size_t now = 0;
};

// Captures into one memory. Each frees every second of its blocks, and then needs one as large as all of those.
struct captured_in_pieces {
  mapped_bytes* mapped = nullptr;
  tests::memory_bench bench{{.devices = 2, .memory = 64 << 20, .schedule = simulated::scheduling::stepped, .seed = 1},
                            options{},
                            [&](std::unique_ptr<weir::driver::driver> m) {
                              auto made = std::make_unique<mapped_bytes>(std::move(m));
                              mapped = made.get();
                              return made;
                            }};
  clock::stream_clock &s = bench.stream(0), &there = bench.stream(1);
  memory::allocator& device = bench.on(0);
  memory::graph_holder shared = std::make_shared<memory::graph_hold const>();
  std::vector<char*> pieces;  // of the last capture

  void capture(std::size_t pages) {
    ASSERT_TRUE(bench.machine().begin_capture(0, s.handle(), driver::capture_mode::relaxed).ok());
    auto& choices = bench.core.part<memory::graph_choices>();
    std::uint64_t const capture = s.lane().value->capture();
    choices.declare(capture, shared);
    auto const take = [&](std::size_t n) { return static_cast<char*>(device.allocate(s, n * page, 0, at)); };
    pieces.clear();
    for (int i = 0; i < 8; ++i)
      pieces.push_back(take(pages));
    for (std::size_t i = 0; i < 8; i += 2)
      device.deallocate(pieces[i], nullptr, at);
    device.deallocate(take(4 * pages), nullptr, at);
    for (std::size_t i = 1; i < 8; i += 2)
      device.deallocate(pieces[i], nullptr, at);
    auto const graph = bench.machine().end_capture(0, s.handle());
    choices.forget(capture);
    ASSERT_TRUE(graph.ok());
    graphs.push_back(graph.value);
  }
  std::size_t reserved() const { return static_cast<std::size_t>(device.statistics().reserved_bytes.all.current); }
  void end() {
    for (auto const g : graphs)
      EXPECT_TRUE(bench.machine().destroy_graph(g).ok());
    shared.reset();
    bench.control->run();
    device.empty_cache();
    EXPECT_EQ(reserved(), 0u);
    EXPECT_EQ(mapped->now, 0u);
    EXPECT_EQ(device.validate(), std::vector<std::string>{});
    EXPECT_EQ(bench.control->findings(), std::vector<std::string>{});
  }
  std::vector<driver::graph_handle> graphs;
};

TEST(left_behind, stays_within_a_bound_however_many_captures_come) {
  captured_in_pieces m;
  std::size_t most = 0;
  for (int i = 0; i < 200; ++i) {
    m.capture(static_cast<std::size_t>(3 + i * 7 % 11));
    most = std::max(most, m.mapped->now);
  }
  EXPECT_EQ(m.device.validate(), std::vector<std::string>{});
  EXPECT_GT(most, 2 * m.reserved()) << "handles have moved";
  EXPECT_LE(most, 6 * m.reserved()) << "four times the pool, its own, and a move";
  m.end();
}

TEST(left_behind, a_refused_move_takes_new_memory) {
  captured_in_pieces m;
  m.capture(8);
  std::size_t const before = m.reserved();
  m.bench.control->fail_call("map", 1, driver::code::failed);
  m.capture(8);
  EXPECT_GT(m.reserved(), before) << "made anew";
  m.end();
}

TEST(left_behind, is_open_to_peers_that_come_later) {
  captured_in_pieces m;
  m.capture(8);
  auto const first = m.pieces;
  m.capture(8);
  EXPECT_GT(m.mapped->now, m.reserved()) << "handles have moved";
  ASSERT_TRUE(m.device.open_to(nullptr, 2).ok());
  for (char* const p : first) {  // a launch of the first graph may use it there
    driver::touch const use{reinterpret_cast<driver::address>(p), 8 * page, true};
    EXPECT_TRUE(m.bench.machine().enqueue(1, m.there.handle(), {&use, 1}, {[](void*) {}, nullptr, nullptr}).ok());
    m.bench.control->run();
  }
  EXPECT_EQ(m.bench.control->findings(), std::vector<std::string>{});
  tests::reported_on_purpose(m.bench.machine());  // this work is no launch
  m.end();
}

}  // namespace
}  // namespace weir
