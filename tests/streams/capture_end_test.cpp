// What a free knows of captures: while one goes on, after its end, and in a host function, which can ask nothing.
// Threads: one.
#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/core/parts.h"
#include "streams/stream/context.h"
#include "weir/graph.h"
#include "weir/launch.h"
#include "weir/observe.h"
#include "weir/sim.h"

namespace weir {
namespace {

constexpr std::size_t sizes[] = {64, 20_KiB, 100_KiB, 3_MiB};

struct ends_of_captures : testing::TestWithParam<std::uint64_t> {  // 0: threads, else a seed
  runtime rt{simulated{.devices = 1,
                       .memory = 64_MiB,
                       .schedule = GetParam() ? simulated::scheduling::seeded : simulated::scheduling::threads,
                       .seed = GetParam() + 1}};
  runtime_guard in{rt};
  driver::driver& machine = rt.get().machine();
  stream s{gpu, priority::normal}, t{gpu, priority::normal}, of_functions{gpu, priority::normal};
  simulated_stream theirs{0};

  stream_ref by_handle() { return borrow_stream(0, theirs.handle()); }
  static driver::stream_handle handle(stream_ref of) { return streams::clock_of(of).handle(); }
  static void use(stream_ref on, void* p, std::size_t bytes) {
    launch(
        on, {writes(p, bytes)}, [](CUstream_st*) {}, [] {});
  }
  void begin(stream_ref on) { ASSERT_TRUE(machine.begin_capture(0, handle(on), driver::capture_mode::relaxed).ok()); }
  driver::graph_handle end(stream_ref on) {
    auto const kept = machine.end_capture(0, handle(on));
    EXPECT_TRUE(kept.ok()) << "the capture was spoiled";
    return kept.value;
  }
  // Returns: the blocks whose free is refused.
  std::vector<void*> free_in_host_function(std::vector<void*> const& blocks) {
    std::vector<void*> refused;
    launch_host(of_functions, [&] {
      for (void* const p : blocks) {
        try {
          deallocate(p);
        } catch (driver_error const& e) {
          EXPECT_NE(std::string(e.what()).find("in a host function"), std::string::npos) << e.what();
          refused.push_back(p);
        }
      }
    });
    of_functions.synchronize();
    return refused;
  }
  void expect_none_serves(std::vector<void*> const& held, std::size_t bytes) {
    s.synchronize();
    for (stream_ref const on : {s.ref(), t.ref(), by_handle()}) {
      void* const now = allocate(on, bytes);
      EXPECT_EQ(std::ranges::count(held, now), 0) << bytes;
      deallocate(now);
    }
  }
};
INSTANTIATE_TEST_SUITE_P(machine, ends_of_captures, testing::Range<std::uint64_t>(0, 6), [](auto const& of) {
  return of.param ? "seed_" + std::to_string(of.param) : std::string("threads");
});

// There no driver call can let the graph keep the block: the free is refused, unless the graph keeps others already.
TEST_P(ends_of_captures, a_host_function_leaves_the_graph_its_block) {
  for (std::size_t const bytes : sizes) {
    for (bool const keeps_others : {false, true}) {
      std::vector<void*> const before{allocate(s, bytes)};
      auto const g = graph::capture(s, [&] {
        use(s, before[0], bytes);
        if (keeps_others)
          deallocate(allocate(s, 64));
        auto const refused = free_in_host_function(before);
        EXPECT_EQ(refused, keeps_others ? std::vector<void*>{} : before);
        if (!refused.empty())
          deallocate(refused[0]);
      });
      expect_none_serves(before, bytes);
      EXPECT_GE(memory_stats().pending_bytes.all.current, static_cast<std::int64_t>(bytes));
    }
  }
}

// It is refused, too, and not as in a capture that is spoiled.
TEST_P(ends_of_captures, an_allocation_in_a_host_function_says_so) {
  deallocate(allocate(s, 64));  // the first one looks at the device
  std::string said;
  (void)graph::capture(s, [&] {
    launch_host(of_functions, [&] {
      try {
        (void)allocate(s, 64);
      } catch (invalid_use const& e) {
        said = e.what();
      }
    });
    of_functions.synchronize();
  });
  EXPECT_NE(said.find("called from a host function"), said.npos) << said;
}

// The owner's end throws nothing: the block stays, and can be freed later.
TEST_P(ends_of_captures, an_owner_that_ends_there_leaves_its_block) {
  buffer before(s, 3_MiB);
  void* const p = before.data();
  {
    auto const g = graph::capture(s, [&] {
      use(s, p, 3_MiB);
      launch_host(of_functions, [&] { before.reset(); });
      of_functions.synchronize();
      EXPECT_TRUE(find_block(p));
    });
    expect_none_serves({p}, 3_MiB);
  }
  deallocate(p);
  EXPECT_FALSE(find_block(p));
}

// weir gives such a capture no memory, and does not hear of its end before the stream is named again.
TEST_P(ends_of_captures, a_block_used_by_handle_stays_with_the_graph) {
  std::vector<driver::graph_handle> graphs;
  std::vector<void*> held;
  for (bool const at_home : {true, false}) {
    held.push_back(allocate(at_home ? by_handle() : s.ref(), 3_MiB));
    begin(by_handle());
    use(by_handle(), held.back(), 3_MiB);
    deallocate(held.back());
    graphs.push_back(end(by_handle()));
    by_handle().synchronize();
    expect_none_serves(held, 3_MiB);
  }
  EXPECT_TRUE(machine.destroy_graph(graphs[0]).ok());
  (void)empty_cache();
  EXPECT_EQ(memory_stats().pending_bytes.all.current, static_cast<std::int64_t>(3_MiB)) << "the second graph's";
  EXPECT_TRUE(machine.destroy_graph(graphs[1]).ok());
}

// Whether they joined by a wait of weir or by one that weir did not see.
TEST_P(ends_of_captures, streams_that_joined_know_that_it_is_over) {
  simulated_stream others(0);
  external_stream const registration(0, others.handle());
  stream_ref const registered = registration;
  auto const wait_untold = [&](stream_ref waiter, stream_ref first) {
    auto const e = machine.create_event(0, driver::event_kind::order_only).value;
    EXPECT_TRUE(machine.record(0, handle(first), e).ok());
    EXPECT_TRUE(machine.wait(0, handle(waiter), e).ok());
    EXPECT_TRUE(machine.destroy_event(0, e).ok());
  };
  std::vector<void*> blocks;
  for (stream_ref const on : {s.ref(), t.ref(), registered, by_handle()})
    for (std::size_t const bytes : sizes)
      blocks.push_back(allocate(on, bytes));
  (void)graph::capture(s, [&] {
    t.wait(s), s.wait(t);
    by_handle().wait(s), s.wait(by_handle());
    wait_untold(registered, s);
    EXPECT_TRUE(registered.is_capturing());
    wait_untold(s, registered);
  });
  EXPECT_EQ(free_in_host_function(blocks), std::vector<void*>{});
  synchronize(gpu);
}

// weir hears of the end when it asks one of the streams.
TEST_P(ends_of_captures, the_end_of_anothers_capture_is_told) {
  std::vector<void*> const blocks{allocate(s, 3_MiB), allocate(t, 3_MiB)};
  begin(s);
  EXPECT_TRUE(s.ref().is_capturing());
  EXPECT_EQ(free_in_host_function({blocks[0]}), std::vector{blocks[0]}) << "the capture's number is not known yet";
  t.wait(s), s.wait(t);
  EXPECT_EQ(free_in_host_function(blocks), blocks);
  EXPECT_TRUE(machine.destroy_graph(end(s)).ok());
  EXPECT_FALSE(s.ref().is_capturing());
  EXPECT_EQ(free_in_host_function(blocks), std::vector<void*>{});
}

}  // namespace
}  // namespace weir
