// A device whose memory is short without a limit: where blocks go, and what a refused handle leads to.
// Threads: one.
#include <gtest/gtest.h>

#include "runtime/memory/device/device_allocator.h"
#include "tests/memory/counted_calls.h"
#include "tests/memory/names.h"
#include "tests/support/memory_bench.h"

namespace weir::tests {
namespace {
using driver::call;
constexpr std::size_t mapped = 2_MiB;  // a page of this machine

struct full_device {
  explicit full_device(std::size_t memory, options o = {.epsilon = 1}) : bench({.devices = 1, .memory = memory}, o) {}
  void* take(std::size_t bytes) { return bench.on(0).allocate(a, bytes, 0, at); }
  void give(void* p) { bench.on(0).deallocate(p, nullptr, at); }
  memory_statistics stats() { return bench.on(0).statistics(); }
  std::size_t reserved() { return static_cast<std::size_t>(stats().reserved_bytes.all.current); }
  void sound() { EXPECT_EQ(bench.on(0).validate(), std::vector<std::string>{}); }
  // Openings of 1.5 and of 1 MiB, in this order, and a block of 1 MiB: whether it lies in the first one.
  bool takes_the_lowest_opening(std::size_t pages_before) {
    std::vector<void*> blocks;
    for (std::size_t const bytes : {3_MiB / 2, 1_MiB / 2, 1_MiB, 1_MiB})
      blocks.push_back(take(bytes));
    if (pages_before)
      take((pages_before - 2) * mapped);
    take(mapped);  // grows: there the choice of places is made
    give(blocks[0]), give(blocks[2]);
    void* const p = take(1_MiB);
    EXPECT_TRUE(p == blocks[0] || p == blocks[2]);
    sound();
    return p == blocks[0];
  }
  memory_bench bench;
  clock::stream_clock& a = bench.stream(0);
};

TEST(full_device, blocks_go_into_openings_once_little_is_left) {
  for (std::size_t const pages : {64u, 128u}) {
    SCOPED_TRACE(pages);
    EXPECT_FALSE(full_device(pages * mapped).takes_the_lowest_opening(pages - pages / 16));
    EXPECT_TRUE(full_device(pages * mapped).takes_the_lowest_opening(pages - pages / 16 + 1));
  }
}

TEST(full_device, blocks_go_into_openings_after_a_refused_handle) {
  full_device m(1_GiB);
  m.bench.control->refusing().refuse({.of = call::create, .with = driver::code::out_of_memory});
  m.give(m.take(mapped));
  EXPECT_TRUE(m.takes_the_lowest_opening(0));
}

// What others hold is known where weir asks the driver how much is free, for its reserve.
TEST(full_device, blocks_go_into_openings_beside_others) {
  for (std::size_t const others : {0_MiB, 1000_MiB}) {
    full_device m(1_GiB, {.driver_reserve = 4_MiB, .epsilon = 1});
    m.bench.control->consume_memory(0, others);
    EXPECT_EQ(m.takes_the_lowest_opening(0), others > 0);
  }
}

// Eight pages, all in use; then every second one is free, and none beside another.
TEST(full_device, a_refused_handle_lets_free_ones_move) {
  full_device m(8 * mapped);
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i)
    blocks.push_back(m.take(mapped));
  for (std::size_t i = 1; i < 8; i += 2)
    m.give(blocks[i]);
  counted_calls const calls(*m.bench.control);
  m.take(3 * mapped);
  EXPECT_EQ(m.stats().num_alloc_retries, 0) << "no recovery step is needed";
  EXPECT_EQ(calls.of({call::create}), 1u);
  EXPECT_EQ(calls.of({call::release}), 0u);
  m.sound();
  EXPECT_THROW(m.take(2 * mapped), out_of_memory);
  m.take(mapped);
  m.sound();
}

// The first handle would have two pages, and the driver has one.
TEST(full_device, a_handle_is_a_page_if_the_driver_has_less) {
  full_device m(32_GiB + mapped);
  void* const first = m.take(mapped);
  m.take(32_GiB - mapped);
  m.give(first);
  counted_calls const calls(*m.bench.control);
  m.take(2 * mapped);
  EXPECT_EQ(calls.of({call::create}), 3u) << "of two pages, of one, and of one more";
  EXPECT_EQ(m.stats().num_alloc_retries, 0);
  EXPECT_EQ(m.reserved(), 32_GiB + mapped);
  m.sound();
}

// A run of slabs that is longer than it has to be moves nothing: only the page of a usual run moves.
TEST(full_device, a_long_run_moves_no_handle) {
  full_device m(128 * mapped);
  std::size_t const slot = 16 << 10;
  for (std::size_t i = 0; i < 200_MiB / slot; ++i)
    m.take(slot);
  std::vector<void*> blocks;
  while (m.reserved() < 128 * mapped)
    blocks.push_back(m.take(mapped));
  for (std::size_t i = 0; i < blocks.size(); i += 2)
    m.give(blocks[i]);
  auto const before = m.stats().segment.all.freed;
  while (m.stats().segment.all.freed == before)
    m.take(slot);
  EXPECT_EQ(m.stats().segment.all.freed, before + 1);
  EXPECT_EQ(m.stats().num_alloc_retries, 0);
  m.sound();
}

}  // namespace
}  // namespace weir::tests
