// Streams that come and go through a door of weir: 100,000 of them leave nothing, and their memory serves others.
// Threads: one.
#pragma once
#include <gtest/gtest.h>
#include <malloc.h>

#include "runtime/clock/stream_clock.h"
#include "tests/support/sanitized.h"
#include "weir/memory.h"
#include "weir/observe.h"
#include "weir/sim.h"

namespace weir::test {

// Take is void*(CUstream_st*, size_t bytes), Give is void(CUstream_st*, void*, size_t bytes).
template <class Take, class Give>
void streams_come_and_go(Take take, Give give) {
  int const many = tests::sanitized ? 5'000 : 100'000;
  runtime plain(simulated{.devices = 1, .memory = 64_MiB});
  runtime_guard const here(plain);
  std::uint64_t last = 0;
  auto const lives = [&](int n) {
    for (int i = 0; i < n; ++i) {
      simulated_stream theirs(0);
      void* const p = take(theirs.handle(), 512);
      void* const q = take(theirs.handle(), 40_KiB);
      last = find_block(p)->home->id();
      give(theirs.handle(), p, 512);
      give(theirs.handle(), q, 40_KiB);
    }
  };
  lives(many / 5);
  auto const reserved = memory_reserved(0);
  auto const streams = memory_by_stream(0).size();
  std::size_t const host = ::mallinfo2().uordblks;
  int const chunks = clock::detail::place(last).chunk;
  lives(many);
  EXPECT_LE(memory_reserved(0), reserved + 8_MiB);
  EXPECT_LE(memory_by_stream(0).size(), streams + 16);
  if (!tests::sanitized && !plain.get().observer()) {  // a checker keeps what it has seen
    std::size_t grown = ::mallinfo2().uordblks - host;
    // but for their ids: eight bytes each (growth.ended_registrations_leave_eight_bytes_each)
    for (int k = chunks + 1; k <= clock::detail::place(last).chunk; ++k)
      grown -= (clock::detail::first_chunk << k) * 8;
    EXPECT_LE(static_cast<std::ptrdiff_t>(grown), 128 << 10) << "host memory";
  }
  EXPECT_EQ(memory_allocated(0), 0u);
  stream const other{device(0)};
  deallocate(allocate(other, 60_MiB));  // none of their memory is stranded
}

}  // namespace weir::test
