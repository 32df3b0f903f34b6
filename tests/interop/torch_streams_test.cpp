// The streams of PyTorch's door, on simulated devices that report each call about a destroyed stream.
// Threads: one, or as a test says.
#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "interop/torch/retained_streams.h"
#include "tests/interop/handle_watch.h"
#include "weir/memory.h"
#include "weir/observe.h"
#include "weir/sim.h"

namespace weir::interop {
namespace {

constexpr size_t small = 512, large = 2_MiB;
CUstream_st* const per_thread = reinterpret_cast<CUstream_st*>(std::uintptr_t{2});

struct torch_streams : testing::Test {
  watched_runtime owned{{.devices = 2, .memory = 64_MiB}, {}};
  runtime_guard in{*owned.rt};
  std::unique_ptr<retained_streams> all = std::make_unique<retained_streams>();
  void TearDown() override { EXPECT_EQ(owned.watch->asked_of_the_dead(), std::vector<std::string>{}); }

  void* take(size_t bytes, CUstream_st* handle) { return allocate(all->of(0, handle), bytes); }
  void give(void* p, CUstream_st* handle) {
    auto const home = all->lent(0, handle);
    home ? deallocate(*home, p) : deallocate(p);
  }
};

TEST_F(torch_streams, registered_stream_is_found_again) {
  simulated_stream const theirs(0);
  void* const p = take(small, theirs.handle());
  give(p, theirs.handle());
  EXPECT_EQ(take(small, theirs.handle()), p);
  EXPECT_FALSE(all->lent(0, theirs.handle()));
  give(p, theirs.handle());
}

TEST_F(torch_streams, lent_stream_may_end_before_its_memory) {
  std::optional<simulated_stream> theirs(0);
  CUstream_st* const handle = theirs->handle();
  all->lend(handle, 1);
  void* const first = take(large, handle);
  void* const second = take(small, handle);
  give(take(large, handle), handle);
  give(first, handle);
  all->lend(handle, -1);
  theirs.reset();
  EXPECT_FALSE(all->lent(0, handle));
  give(second, handle);
  deallocate(allocate(default_stream(0), 60_MiB));  // looks at all memory of the stream that ended
  EXPECT_EQ(memory_allocated(0), 0u);
}

// A later stream with the handle of one that ended is another stream, and lent too.
TEST_F(torch_streams, handle_of_an_ended_stream_serves_again) {
  for (int i = 0; i < 100; ++i) {
    simulated_stream const theirs(0);
    all->lend(theirs.handle(), 1);
    void* const p = take(large, theirs.handle());
    EXPECT_TRUE(all->lent(0, theirs.handle()));
    give(p, theirs.handle());
    all->lend(theirs.handle(), -1);
  }
  EXPECT_LE(max_memory_reserved(0), 4 * large);
}

TEST_F(torch_streams, registered_stream_is_not_lent_later) {
  simulated_stream const theirs(0);
  give(take(small, per_thread), per_thread);  // a borrowed stream is known
  void* const p = take(small, theirs.handle());
  all->lend(theirs.handle(), 1);  // an ExternalStream of PyTorch's own stream
  EXPECT_FALSE(all->lent(0, theirs.handle()));
  give(p, theirs.handle());
}

// Threads: two.
TEST_F(torch_streams, per_thread_stream_is_the_callers) {
  void* const p = take(small, per_thread);
  std::uint64_t const mine = find_block(p)->home->id();
  std::uint64_t others = mine;
  std::thread([&] {
    runtime_guard const too(*owned.rt);
    void* const q = take(small, per_thread);
    others = find_block(q)->home->id();
    give(q, per_thread);
    give(p, per_thread);
  }).join();
  EXPECT_NE(mine, others);
  EXPECT_EQ(memory_allocated(0), 0u);
}

TEST_F(torch_streams, lent_stream_of_another_device_is_found) {
  simulated_stream const theirs(1);
  all->lend(theirs.handle(), 1);
  EXPECT_EQ(all->of_any_device(0, theirs.handle()).device().index(), 1);
  EXPECT_THROW((void)all->of(0, theirs.handle()), invalid_use);
}

}  // namespace
}  // namespace weir::interop
