// weir/graph.h: memory inside captures, and what graphs hold before, between and after their launches.
// Threads: one.
#include "weir/graph.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <thread>

#include "runtime/memory/device/device_memory.h"
#include "simulator/faults/fault_injector.h"
#include "streams/stream/context.h"
#include "tests/support/refused.h"
#include "weir/copy.h"
#include "weir/launch.h"
#include "weir/observe.h"
#include "weir/pool.h"

namespace weir {
namespace {

struct graphs : testing::TestWithParam<std::uint64_t> {  // 0: threads, else a seed
  runtime rt{simulated{.devices = 2,
                       .memory = 64_MiB,
                       .schedule = GetParam() ? simulated::scheduling::seeded : simulated::scheduling::threads,
                       .seed = GetParam() + 1}};
  runtime_guard in{rt};
  stream s{gpu, priority::normal}, t{gpu, priority::normal};
  memory::allocator& memory() { return rt.get().part<memory::device_memory>().on(0); }
  std::size_t reserved() {
    (void)empty_cache();
    return memory().report().reserved;
  }
  void set(stream_ref on, void* p, std::size_t bytes, unsigned char value) {
    launch(
        on, {writes(p, bytes)}, [](CUstream_st*) {}, [=] { std::memset(p, value, bytes); });
  }
  // What the stream sees there now.
  unsigned char seen(stream_ref on, void const* p) {
    unsigned char out = 0;
    on.synchronize();
    stream_guard const here(on);
    copy(&out, p, 1);
    return out;
  }
  void TearDown() override {
    s.synchronize(), t.synchronize();
    EXPECT_EQ(memory().validate(), std::vector<std::string>{});
  }
};

std::vector<std::uint64_t> every_machine_of_graphs() {
  std::vector<std::uint64_t> all{0};
  char const* const seed = std::getenv("WEIR_TEST_SEED");
  std::uint64_t const first = seed ? std::strtoull(seed, nullptr, 0) : 1;
  for (std::uint64_t i = 0; i < (seed ? 1u : 8u); ++i)
    all.push_back(first + i);
  return all;
}
INSTANTIATE_TEST_SUITE_P(machine, graphs, testing::ValuesIn(every_machine_of_graphs()), [](auto const& of) {
  return of.param ? "seed_" + std::to_string(of.param) : std::string("threads");
});

constexpr std::size_t sizes[] = {64, 20_KiB, 100_KiB, 3_MiB};

TEST_P(graphs, freed_inside_it_serves_again_inside) {
  for (std::size_t const bytes : sizes) {
    auto const g = graph::capture(s, [&] {
      void* const p = allocate(s, bytes);
      set(s, p, bytes, 1);
      deallocate(p);
      void* const q = allocate(bytes);  // on the current stream
      EXPECT_EQ(p, q) << bytes;
      deallocate(s, q);
      EXPECT_EQ(p, allocate(s, bytes)) << "a free that names its own stream";
      deallocate(p);
    });
    EXPECT_GE(g.footprint().reserved, bytes);
    EXPECT_EQ(g.footprint().live, 0u);
  }
}

TEST_P(graphs, an_allocation_inside_makes_one_driver_call) {
  driver::fault_injector const& machine = *driver::fault_injector_of(rt.get().machine());
  graph const g = graph::capture(s, [&] {
    for (std::size_t const bytes : {std::size_t{512}, std::size_t{64_KiB}, std::size_t{2_MiB}}) {
      { buffer const first(s, bytes); }
      std::uint64_t const before = machine.calls_so_far();
      for (int i = 0; i < 100; ++i)
        buffer const b(s, bytes);
      EXPECT_EQ(machine.calls_so_far() - before, 100u) << bytes << " B";
    }
  });
}

TEST_P(graphs, a_fork_gets_what_is_ordered_before_it) {
  constexpr std::size_t bytes = 3_MiB;  // t has no room of its own for a second one
  (void)graph::capture(s, [&] {
    void* const p = allocate(s, bytes);
    set(s, p, bytes, 1);
    t.wait(s);
    deallocate(p);
    void* const beside = allocate(t, bytes);
    EXPECT_NE(p, beside) << "the free comes after the fork";
    t.wait(s);
    EXPECT_EQ(p, allocate(t, bytes)) << "t waits for the free";
    deallocate(beside);
    set(t, p, bytes, 2);
    deallocate(p);
    void* const again = allocate(s, bytes);
    EXPECT_NE(p, again) << "t still works on it";
    s.wait(t);
    void* const after = allocate(s, bytes);
    EXPECT_TRUE(after == p || after == beside) << "t has joined";
    deallocate(again), deallocate(after);
  });
}

TEST_P(graphs, a_block_used_by_a_fork_waits_for_its_join) {
  (void)graph::capture(s, [&] {
    void* const p = allocate(s, 1_MiB);
    t.wait(s);
    set(t, p, 1_MiB, 1);  // marks it
    deallocate(p);
    void* const q = allocate(s, 1_MiB);
    EXPECT_NE(p, q);
    s.wait(t);
    void* const r = allocate(s, 1_MiB);
    EXPECT_EQ(p, r);
    deallocate(q), deallocate(r);
  });
}

TEST_P(graphs, its_bytes_are_its_own_between_launches) {
  buffer out;
  auto g = graph::capture(s, [&] {
    buffer const temporary(s, 1_MiB);
    set(s, temporary.data(), 1_MiB, 7);
    out = buffer(s, 1_MiB);
    launch(
        s, {reads(temporary), writes(out)}, [](CUstream_st*) {},
        [from = temporary.data(), to = out.data()] { std::memcpy(to, from, 1_MiB); });
  });
  std::size_t const holds = g.footprint().reserved;
  EXPECT_GE(holds, 2_MiB);
  EXPECT_EQ(g.footprint().live, 1_MiB);
  for (int i = 0; i < 5; ++i) {
    std::vector<buffer> others;
    for (int k = 0; k < 12; ++k) {  // pages are short: those of others move
      stream_ref const on = k % 2 ? s.ref() : t.ref();
      others.emplace_back(on, (1 + static_cast<std::size_t>(k) % 5) * 1_MiB);
      set(on, others.back().data(), others.back().size(), 9);
    }
    g.launch(s);
    others.clear();
    EXPECT_EQ(seen(s, out.data()), 7) << "launch " << i;
    set(s, out.data(), out.size(), 0);
    EXPECT_EQ(g.footprint().reserved, holds);
  }
  s.synchronize();
  out.reset();
  EXPECT_EQ(g.footprint().live, 0u);
  EXPECT_EQ(g.footprint().reserved, holds) << "its launches write there still";
}

TEST_P(graphs, the_memory_goes_with_the_graph_and_its_launches) {
  {
    auto g = graph::capture(s, [&] {
      buffer const temporary(s, 4_MiB);
      set(s, temporary.data(), 4_MiB, 1);
    });
    g.launch(t);
    EXPECT_GE(reserved(), 4_MiB);
    g.launch(t);
  }
  t.synchronize();
  EXPECT_EQ(reserved(), 0u);
}

// The launch is held back, so it still runs when the graph is gone and its memory is asked for.
TEST_P(graphs, a_launch_under_way_keeps_the_memory_of_its_graph) {
  if (GetParam() != 0)
    GTEST_SKIP() << "a seeded machine runs it at once";
  buffer const seen_there = pinned(1);
  auto const gate = rt.get().machine().hold(0, streams::clock_of(t).handle());
  ASSERT_TRUE(gate.ok());
  {
    auto g = graph::capture(s, [&] {
      buffer const temporary(s, 40_MiB);
      set(s, temporary.data(), 40_MiB, 5);
      copy(s, seen_there.data(), temporary.data<char>() + 1000, 1, non_blocking);
    });
    g.launch(t);
  }
  (void)empty_cache();
  base::atomic<bool> open{false};
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    open.store(true);
    EXPECT_TRUE(rt.get().machine().open_gate(gate.value).ok());
  });
  buffer const now(s, 40_MiB);
  EXPECT_TRUE(open.load()) << "waited for";
  other.join();
  set(s, now.data(), 40_MiB, 6);
  t.synchronize();
  EXPECT_EQ(*seen_there.data<unsigned char>(), 5);
}

// The next user of the memory can then wait for the launches, whose stream may be captured or gone.
TEST_P(graphs, the_last_of_one_memory_fences_their_launches) {
  auto const fences = [this] { return rt.get().part<clock::clocks>().counted().fences; };
  graph_memory const one;
  auto const capture = [&] { return graph::capture(s, [&] { buffer const b(s, 1_MiB); }, {.memory = &one}); };
  std::optional<graph> a{capture()}, b{capture()};
  auto const gate = rt.get().machine().hold(0, streams::clock_of(t).handle());
  ASSERT_TRUE(gate.ok());
  a->launch(t);
  std::uint64_t const before = fences();
  a.reset();
  EXPECT_EQ(fences(), before) << "the other one has the memory";
  b.reset();
  EXPECT_EQ(fences(), before + 1);
  EXPECT_TRUE(rt.get().machine().open_gate(gate.value).ok());
}

// Under a limit, a step that is captured again needs the memory of the graph before, whose launch still runs.
TEST_P(graphs, a_capture_waits_for_the_graph_before_it) {
  set_memory_limit(32_MiB);
  buffer const out(t, 1);
  for (int i = 1; i < 5; ++i) {
    auto g = graph::capture(s, [&] {
      buffer const temporary(s, 20_MiB);
      set(s, temporary.data(), 20_MiB, static_cast<unsigned char>(i));
      launch(
          s, {reads(temporary), writes(out)}, [](CUstream_st*) {},
          [from = temporary.data(), to = out.data()] { std::memcpy(to, from, 1); });
    });
    g.launch(s);
  }
  EXPECT_GE(memory_headroom().largest, 30_MiB) << "its launch is waited for";
  buffer const all(t, 30_MiB);
  EXPECT_EQ(seen(s, out.data()), 4);
}

// A pool whose block a graph had cannot sleep before the graph's work is over.
TEST_P(graphs, a_sleeping_pool_waits_for_a_graph_that_ended) {
  pool p("a model");
  void* const before = p.allocate(s, 1_MiB);
  void* const beside = p.allocate(s, 1_MiB);
  set(s, beside, 1_MiB, 3);
  {
    auto g = graph::capture(s, [&] {
      set(s, before, 1_MiB, 1);
      deallocate(before);
    });
    g.launch(t);
  }
  EXPECT_GE(p.sleep(), 1_MiB);
  p.wake();
  EXPECT_EQ(seen(s, beside), 3);
  deallocate(beside);
}

TEST_P(graphs, a_block_from_before_stays_with_the_graph) {
  for (std::size_t const bytes : sizes) {
    void* const at_home = allocate(s, bytes);
    void* const marked = allocate(t, bytes);
    record_stream(marked, s);
    void* const by_name = allocate(t, bytes);
    {
      auto const g = graph::capture(s, [&] {
        set(s, at_home, bytes, 1), set(s, marked, bytes, 1), set(s, by_name, bytes, 1);
        deallocate(at_home), deallocate(marked), deallocate(s, by_name);
      });
      s.synchronize(), t.synchronize();
      for (int i = 0; i < 4; ++i) {
        void* const p = allocate(s, bytes);
        void* const q = allocate(t, bytes);
        for (void* const held : {at_home, marked, by_name})
          EXPECT_TRUE(p != held && q != held) << bytes;
        deallocate(p), deallocate(q);
      }
      EXPECT_GE(memory_stats().pending_bytes.all.current, static_cast<std::int64_t>(3 * bytes));
    }
    s.synchronize(), t.synchronize();
    EXPECT_EQ(memory_stats().pending_bytes.all.current, 0) << "the graph is gone: " << bytes;
  }
}

// Of an ended pool: a wait would not end, and a limit would count it.
TEST_P(graphs, a_block_that_it_holds_stays_out_of_the_next_pool) {
  std::optional<graph> g;
  {
    pool const ended("ended");
    void* const x = ended.allocate(s, 4_MiB);
    g = graph::capture(s, [&] { deallocate(x); });
  }
  pool sleeps("sleeps");
  buffer const kept = [&] {
    pool_guard const from(sleeps);
    return buffer(s, 1_MiB);
  }();
  EXPECT_GE(sleeps.sleep(), 1_MiB);
  sleeps.wake();
  pool const limited("limited", {.limit = 4_MiB});
  deallocate(limited.allocate(s, 4_MiB));
}

TEST_P(graphs, a_capture_that_fails_gives_everything_back) {
  buffer before(s, 2_MiB);
  void* const at = before.data();
  struct stop {};
  EXPECT_THROW((void)graph::capture(s,
                                    [&] {
                                      buffer const inside(s, 3_MiB);
                                      set(s, inside.data(), 3_MiB, 1);
                                      before.reset();
                                      throw stop{};
                                    }),
               stop);
  EXPECT_FALSE(s.ref().is_capturing());
  before = buffer(s, 2_MiB);
  EXPECT_EQ(before.data(), at);
  before.reset();
  // a stream that was not joined
  EXPECT_NE(test::refused([&] {
              (void)graph::capture(s, [&] {
                t.wait(s);
                buffer const inside(t, 3_MiB);
                set(t, inside.data(), 3_MiB, 1);
              });
            }).find("must be waited for before its end"),
            std::string::npos);
  EXPECT_EQ(reserved(), 0u);
  buffer const usable(t, 50_MiB);
}

TEST_P(graphs, memory_that_is_short_inside_leaves_the_capture_whole) {
  buffer const before(s, 8_MiB);
  buffer out;
  auto g = graph::capture(s, [&] {
    EXPECT_THROW(buffer(s, 60_MiB), out_of_memory);
    EXPECT_THROW(buffer(s, 100_MiB), out_of_memory);
    out = buffer(s, 1_MiB);
    set(s, out.data(), 1_MiB, 3);
  });
  g.launch(s);
  EXPECT_EQ(seen(s, out.data()), 3);
}

TEST_P(graphs, graphs_that_take_turns_share_all_but_outputs) {
  graph_memory const shared;
  std::vector<graph> all;
  std::vector<buffer> outputs;
  std::size_t one = 0;
  for (int i = 0; i < 8; ++i) {
    all.push_back(graph::capture(s,
                                 [&] {
                                   buffer const large(s, 6_MiB), small(s, 20_KiB);
                                   set(s, large.data(), 6_MiB, 1);
                                   t.wait(s);
                                   buffer const of_fork(t, 2_MiB);
                                   set(t, of_fork.data(), 2_MiB, 2);
                                   s.wait(t);
                                   outputs.emplace_back(s, 64_KiB);
                                   set(s, outputs.back().data(), 64_KiB, static_cast<unsigned char>(10 + i));
                                 },
                                 {.memory = &shared}));
    if (i == 0)
      one = shared.reserved();
  }
  EXPECT_LE(shared.reserved(), one + 7 * 64_KiB) << "an output more for each";
  EXPECT_EQ(all[3].footprint().reserved, shared.reserved());
  for (auto& g : all)
    g.launch(s);
  for (std::size_t i = 0; i < 8; ++i)
    EXPECT_EQ(seen(s, outputs[i].data()), 10 + i);
  all.clear();
  s.synchronize(), t.synchronize();
  EXPECT_GE(shared.reserved(), one) << "the program holds it still";
}

// Another library captures four times through the driver. The first three captures have a route.
TEST_P(graphs, a_capture_begun_elsewhere_takes_the_routed_memory) {
  graph_memory const shared;
  driver::driver& machine = rt.get().machine();
  driver::stream_handle const handle = streams::clock_or_throw(s, "test", source_location::current()).handle();
  std::vector<driver::graph_handle> all;
  std::vector<std::size_t> held, of_all;
  bool wanted = true;
  int asked = 0;
  std::optional<graph_memory_route> route(std::in_place, shared, gpu, [&](CUstream_st*) { return ++asked, wanted; });
  for (int i = 0; i < 4; ++i) {
    if (i == 2)
      wanted = false;
    if (i == 3)
      wanted = true, route.reset();
    ASSERT_TRUE(machine.begin_capture(0, handle, driver::capture_mode::relaxed).ok());
    {
      buffer const large(s, 6_MiB), output(s, 2_MiB);
      set(s, large.data(), 6_MiB, 1), set(s, output.data(), 2_MiB, 2);
    }
    auto const made = machine.end_capture(0, handle);
    ASSERT_TRUE(made.ok());
    all.push_back(made.value);
    held.push_back(shared.reserved()), of_all.push_back(reserved());
  }
  EXPECT_GE(held[0], 8_MiB);
  EXPECT_EQ(held, std::vector(4, held[0]));
  EXPECT_EQ(of_all[1], of_all[0]) << "the second capture has the memory of the first";
  EXPECT_GE(of_all[2], of_all[1] + 8_MiB) << "the function refuses the stream";
  EXPECT_GE(of_all[3], of_all[2] + 8_MiB) << "the route has ended";
  EXPECT_EQ(asked, 3) << "once a capture";
  for (driver::graph_handle const g : all)
    ASSERT_TRUE(machine.destroy_graph(g).ok());
}

TEST_P(graphs, an_update_runs_the_new_work_in_the_same_memory) {
  buffer const out(s, 1000);
  auto const work = [&](unsigned char value, int times) {
    return [&, value, times] {
      buffer const temporary(s, 1_MiB);
      for (int i = 0; i < times; ++i)
        set(s, temporary.data(), 1_MiB, 1);
      set(s, out.data(), 1000, value);
    };
  };
  auto g = graph::capture(s, work(1, 1));
  std::size_t const holds = g.footprint().reserved;
  g.update(s, work(2, 1));  // not made yet
  g.launch(s);
  EXPECT_EQ(seen(s, out.data()), 2);
  g.update(s, work(3, 1));  // other values
  g.launch(s);
  EXPECT_EQ(seen(s, out.data()), 3);
  g.update(s, work(4, 3));  // other work
  g.launch(s);
  EXPECT_EQ(seen(s, out.data()), 4);
  struct stop {};
  EXPECT_THROW(g.update(s, [] { throw stop{}; }), stop);
  g.launch(s);
  EXPECT_EQ(seen(s, out.data()), 4) << "as before";
  EXPECT_EQ(g.footprint().reserved, holds);
}

TEST_P(graphs, an_output_outlives_its_graph) {
  buffer out;
  {
    auto g = graph::capture(s, [&] {
      out = buffer(s, 100_KiB);
      set(s, out.data(), 100_KiB, 8);
      buffer const other(s, 5_MiB);
    });
    g.launch(s);
    s.synchronize();
  }
  EXPECT_LT(reserved(), 5_MiB);
  EXPECT_EQ(find_block(out.data())->home, s.ref());
  EXPECT_EQ(seen(s, out.data()), 8);
  std::vector<buffer> others;
  for (int i = 0; i < 20; ++i) {
    others.emplace_back(s, 100_KiB);
    set(s, others.back().data(), 100_KiB, 1);
  }
  EXPECT_EQ(seen(s, out.data()), 8);
  out.reset();
  others.clear();
  s.synchronize();
  EXPECT_EQ(reserved(), 0u);
}

TEST_P(graphs, wrong_uses_are_refused_by_name) {
  auto g = graph::capture(s, [] {});
  stream const elsewhere(device(1), priority::normal);
  EXPECT_NE(test::refused([&] { g.launch(elsewhere); }).find("a stream of the device"), std::string::npos);
  EXPECT_NE(test::refused([&] { (void)graph::capture(s, {}); }).find("an empty function"), std::string::npos);
  (void)graph::capture(s, [&] {
    EXPECT_NE(test::refused([&] { (void)graph::capture(s, [] {}); }).find("one capture at a time"), std::string::npos);
    EXPECT_NE(test::refused([&] { g.launch(s); }).find("takes no graph"), std::string::npos);
  });
  graph const moved = std::move(g);
  EXPECT_NE(test::refused([&] { g.launch(s); }).find("moved from"), std::string::npos);  // NOLINT
}

}  // namespace
}  // namespace weir
