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
};

TEST_F(torch_streams, registered_stream_is_found_again) {
  simulated_stream const theirs(0);
  void* const p = take(small, theirs.handle());
  deallocate(p);
  EXPECT_EQ(take(small, theirs.handle()), p);
  deallocate(p);
}

TEST_F(torch_streams, lent_stream_may_end_before_its_memory) {
  std::optional<simulated_stream> theirs(0);
  CUstream_st* const handle = theirs->handle();
  all->lend(handle);
  void* const first = take(large, handle);
  void* const second = take(small, handle);
  deallocate(take(large, handle));
  deallocate(first);
  theirs.reset();
  deallocate(second);
  deallocate(allocate(default_stream(0), 60_MiB));  // looks at all memory of the stream that ended
  EXPECT_EQ(memory_allocated(0), 0u);
}

// A later stream with the handle of one that ended is another stream, and lent too.
TEST_F(torch_streams, handle_of_an_ended_stream_serves_again) {
  for (int i = 0; i < 100; ++i) {
    simulated_stream const theirs(0);
    all->lend(theirs.handle());
    void* const p = take(large, theirs.handle());
    deallocate(p);
  }
  EXPECT_EQ(memory_allocated(0), 0u) << "100 blocks of 2 MiB were served by 64 MiB";
}

// CuPy's streams end with their objects. None is registered by an allocation there, and PyTorch's stay so.
TEST_F(torch_streams, borrowed_streams_may_end_before_their_memory) {
  simulated_stream const of_torch(0);
  stream_ref const registered = all->of(0, of_torch.handle());
  EXPECT_EQ(all->borrow(0, of_torch.handle()), registered);
  EXPECT_EQ(all->borrow(0, nullptr), all->of(0, nullptr));
  std::vector<void*> kept;
  for (int i = 0; i < 100; ++i) {
    simulated_stream const theirs(0);
    deallocate(allocate(all->borrow(0, theirs.handle()), large));
    if (i < 10)
      kept.push_back(allocate(all->borrow(0, theirs.handle()), small));
    EXPECT_EQ(all->registered(0, theirs.handle()), nullptr);
  }
  for (void* const p : kept)
    deallocate(p);
  deallocate(allocate(default_stream(0), 60_MiB));  // looks at all memory of the streams that ended
  EXPECT_EQ(memory_allocated(0), 0u);
}

TEST_F(torch_streams, registered_stream_is_not_lent_later) {
  simulated_stream const theirs(0);
  deallocate(take(small, per_thread));  // a borrowed stream is known
  void* const p = take(small, theirs.handle());
  all->lend(theirs.handle());  // an ExternalStream of PyTorch's own stream
  EXPECT_EQ(all->of(0, theirs.handle()).id(), find_block(p)->home->id());
  deallocate(p);
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
    deallocate(q);
    deallocate(p);
  }).join();
  EXPECT_NE(mine, others);
  EXPECT_EQ(memory_allocated(0), 0u);
}

TEST_F(torch_streams, lent_stream_of_another_device_is_found) {
  simulated_stream const theirs(1);
  all->lend(theirs.handle());
  EXPECT_EQ(all->of_any_device(0, theirs.handle()).device().index(), 1);
  EXPECT_THROW((void)all->of(0, theirs.handle()), invalid_use);
}

}  // namespace
}  // namespace weir::interop
