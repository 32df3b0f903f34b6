// Graphs on the machine that is here: GPUs if there are some, else a simulated one.
// Threads: as each test says.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "runtime/memory/device/device_memory.h"
#include "streams/stream/context.h"
#include "weir/copy.h"
#include "weir/graph.h"
#include "weir/observe.h"
#include "weir/pool.h"

namespace weir {
namespace {

struct graphs_here : testing::Test {
  runtime& rt = runtime::current();
  driver::driver& machine = rt.get().machine();
  bool const simulated = rt.is_simulated();
  stream s{gpu, priority::normal}, t{gpu, priority::normal};

  std::size_t reserved() { return static_cast<std::size_t>(memory_stats().reserved_bytes.all.current); }
  // Within two seconds: the driver tells on a thread of its own that a graph is gone.
  template <class Is>
  bool becomes(Is is) {
    for (int i = 0; i < 200; ++i) {
      (void)empty_cache();
      if (is())
        return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }
  // Eight temporaries, one after the other in the same memory; byte i of the output comes from the i-th.
  auto step(buffer const& out, unsigned char first) {
    return [this, &out, first] {
      for (int i = 0; i < 8; ++i) {
        buffer const temporary(s, 1_MiB);
        fill(temporary.data(), std::byte(first + i), temporary.size());
        copy(s, out.data<char>() + i, temporary.data<char>() + 1000 * i, 1, non_blocking);
        t.wait(s);
        {
          stream_guard const there(t);
          buffer const beside(t, 300'000);
          fill(beside.data(), std::byte(first + i), beside.size());
          copy(t, out.data<char>() + 8 + i, beside.data<char>() + 7, 1, non_blocking);
        }
        s.wait(t);
      }
    };
  }
  static void expect_step(buffer const& at, unsigned char first) {
    for (int i = 0; i < 16; ++i)
      EXPECT_EQ(at.data<unsigned char>()[i], first + i % 8) << i;
  }
  void TearDown() override {
    s.synchronize(), t.synchronize();
    EXPECT_EQ(rt.get().part<memory::device_memory>().on(0).validate(), std::vector<std::string>{});
  }
};

TEST_F(graphs_here, ten_thousand_launches_among_allocations) {
  buffer const out(s, 16), other(t, 5_MiB), host = pinned(16), spoilt = pinned(1);
  auto g = graph::capture(s, step(out, 10));
  EXPECT_LE(g.footprint().reserved, 8_MiB) << "temporaries serve again inside";
  g.instantiate();
  std::size_t const holds = g.footprint().reserved;
  int const launches = simulated ? 200 : 10'000;
  for (int i = 0; i < launches; ++i) {
    buffer a(s, static_cast<std::size_t>(1 + i % 37) * 50'000), b(t, static_cast<std::size_t>(1 + i % 11) * 200'000);
    {
      stream_guard const on(s);
      fill(a.data(), std::byte{99}, a.size());
    }
    g.launch(s);
    copy(s, spoilt.data(), a.data<char>() + a.size() - 1, 1, non_blocking);
    if (i % 100)
      continue;
    copy(s, host.data(), out.data(), 16, non_blocking);
    s.synchronize();
    expect_step(host, 10);
    EXPECT_EQ(*spoilt.data<unsigned char>(), 99);
  }
  EXPECT_EQ(g.footprint().reserved, holds);
  std::printf("graph: %zu B of weir's, %zu B of the driver's\n", holds, g.footprint().driver);
}

TEST_F(graphs_here, an_update_changes_the_bytes) {
  buffer const out(s, 16), host = pinned(16);
  auto g = graph::capture(s, step(out, 1));
  for (unsigned char first : {1, 50, 100}) {
    if (first > 1)
      g.update(s, step(out, first));
    g.launch(s);
    copy(s, host.data(), out.data(), 16, non_blocking);
    s.synchronize();
    expect_step(host, first);
  }
}

// No call that might wait for the launch is made while the gate holds it.
TEST_F(graphs_here, a_launch_under_way_keeps_the_memory) {
  auto const pools = [] {
    return std::ranges::count_if(memory_by_pool(gpu), [](auto const& p) { return p.name.starts_with("graph"); });
  };
  auto const before = (s.synchronize(), t.synchronize(), pools());
  driver::result<driver::gate_handle> gate;
  {
    auto g = graph::capture(s, [&] {
      buffer const temporary(s, 20_MiB);
      fill(temporary.data(), std::byte{1}, temporary.size());
    });
    g.launch(t);  // the first may block
    t.synchronize();
    gate = machine.hold(0, streams::clock_of(t).handle());
    ASSERT_TRUE(gate.ok());
    g.launch(t);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(simulated ? 1 : 100));
  EXPECT_EQ(pools(), before + 1) << "its launch has not run";
  EXPECT_TRUE(machine.open_gate(gate.value).ok());
  t.synchronize();
  EXPECT_TRUE(becomes([&] { return pools() == before; })) << pools() << " pools of graphs, before " << before;
}

// Every second of eight blocks is freed before a large one comes, so that at most 32 MiB are in use.
// Both graphs are launched after both captures: the addresses of the first are mapped still. A graph from before leaves
// a heap with no memory, in which the second capture would have no pieces.
TEST_F(graphs_here, pieces_of_freed_memory_serve_a_large_block) {
  {
    auto before = graph::capture(s, [&] { fill(buffer(s, 20_MiB).data(), std::byte{1}, 20_MiB); });
    before.launch(t);
    t.synchronize();
  }
  graph_memory const shared;
  buffer const out(s, 32), host = pinned(32);
  auto const in_pieces = [&](std::size_t piece, unsigned char first) {
    return [&, piece, first] {
      stream_guard const on(s);
      std::size_t const n = 32_MiB / piece;
      std::vector<buffer> all;
      for (std::size_t i = 0; i < n; ++i) {
        all.emplace_back(s, piece);
        fill(all[i].data(), std::byte(first + i), piece);
      }
      for (std::size_t i = 0; i < n; i += 2) {
        copy(s, out.data<char>() + i, all[i].data<char>() + piece - 1, 1, non_blocking);
        all[i] = {};
      }
      buffer const large(s, 16_MiB);
      fill(large.data(), std::byte(first + 100), large.size());
      for (std::size_t i = 1; i < n; i += 2)
        copy(s, out.data<char>() + i, all[i].data<char>() + piece - 1, 1, non_blocking);
      for (std::size_t i = 0; i < 16; ++i)
        copy(s, out.data<char>() + 16 + i, large.data<char>() + i * 1_MiB, 1, non_blocking);
    };
  };
  auto a = graph::capture(s, in_pieces(4_MiB, 10), {.memory = &shared});
  EXPECT_LE(shared.reserved(), 34_MiB);
  auto b = graph::capture(s, in_pieces(2_MiB, 60), {.memory = &shared});
  EXPECT_LE(shared.reserved(), 34_MiB);
  for (int round = 0; round < 3; ++round) {
    for (graph* const g : {&a, &b}) {
      g->launch(s);
      copy(s, host.data(), out.data(), 32, non_blocking);
      s.synchronize();
      unsigned char const first = g == &a ? 10 : 60;
      for (int i = 0; i < (g == &a ? 8 : 16); ++i)
        EXPECT_EQ(host.data<unsigned char>()[i], first + i) << i;
      for (int i = 16; i < 32; ++i)
        EXPECT_EQ(host.data<unsigned char>()[i], first + 100) << i;
    }
  }
}

// Another library captures a stream that it has registered, and knows nothing of weir's graphs.
TEST_F(graphs_here, a_raw_capture_has_memory_until_its_graph_goes) {
  std::size_t const before = (s.synchronize(), t.synchronize(), empty_cache(), reserved());
  auto const theirs = machine.create_stream(0, driver::stream_kind::independent, 0);
  ASSERT_TRUE(theirs.ok());
  {
    external_stream const e(gpu, reinterpret_cast<CUstream_st*>(theirs.value));
    deallocate(allocate(e, 100'000));  // in its cache
    ASSERT_TRUE(machine.begin_capture(0, theirs.value, driver::capture_mode::global).ok());
    void* const p = allocate(e, 12_MiB);
    void* const small = allocate(e, 100'000);
    EXPECT_TRUE(machine.fill(0, theirs.value, p, 5, 1, 12_MiB).ok());
    deallocate(p), deallocate(small);
    EXPECT_EQ(allocate(e, 12_MiB), p);
    deallocate(p);
    std::thread([&] { deallocate(allocate(t, 3_MiB)); }).join();
    auto const g = machine.end_capture(0, theirs.value);
    ASSERT_TRUE(g.ok()) << "weir has spoiled it";
    auto const x = machine.instantiate(0, g.value);
    ASSERT_TRUE(x.ok());
    EXPECT_TRUE(machine.destroy_graph(g.value).ok());
    (void)empty_cache();
    EXPECT_GE(reserved(), before + 12_MiB);
    EXPECT_TRUE(machine.launch_graph(0, theirs.value, x.value).ok());
    EXPECT_TRUE(machine.synchronize_stream(0, theirs.value).ok());
    EXPECT_TRUE(machine.destroy_executable(x.value).ok());
    EXPECT_TRUE(becomes([&] { return reserved() < before + 12_MiB; })) << reserved();
  }
  EXPECT_TRUE(machine.destroy_stream(0, theirs.value).ok());
}

TEST_F(graphs_here, a_launch_costs_what_the_drivers_costs) {
  buffer const out(s, 16);
  auto g = graph::capture(s, [&] { fill(out.data(), std::byte{1}, 16); });
  g.launch(s);
  s.synchronize();
  int const launches = simulated ? 100 : 2000;
  auto const ns = [&](auto launch) {
    double best = 1e18;
    for (int round = 0; round < 5; ++round) {
      auto const from = std::chrono::steady_clock::now();
      for (int i = 0; i < launches; ++i)
        launch();
      best = std::min(best, std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - from).count());
      s.synchronize();
    }
    return best / launches;
  };
  auto& line = streams::clock_of(s);
  ASSERT_TRUE(machine.begin_capture(0, line.handle(), driver::capture_mode::global).ok());
  EXPECT_TRUE(machine.fill(0, line.handle(), out.data(), 1, 1, 16).ok());
  auto const kept = machine.end_capture(0, line.handle());
  auto const x = machine.instantiate(0, kept.value);
  ASSERT_TRUE(x.ok());
  double const bare = ns([&] { (void)machine.launch_graph(0, line.handle(), x.value); });
  double const ours = ns([&] { g.launch(s); });
  std::printf("a launch: %.0f ns by the driver interface, %.0f ns by weir::graph\n", bare, ours);
  EXPECT_TRUE(machine.destroy_executable(x.value).ok());
  EXPECT_TRUE(machine.destroy_graph(kept.value).ok());
}

}  // namespace
}  // namespace weir
