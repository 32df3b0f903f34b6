// The recovery steps of an allocation that finds no memory: what each finds, and what is said when none does.
// Threads: each test's own; work runs on the machine's threads.
#include <gtest/gtest.h>

#include "runtime/core/parts.h"
#include "runtime/memory/device/device_memory.h"
#include "weir/device.h"
#include "weir/memory.h"
#include "weir/observe.h"
#include "weir/runtime.h"

namespace weir {
namespace {

std::uint64_t recoveries(std::string_view step) {
  for (std::size_t i = 0; i < recovery_steps.size(); ++i) {
    if (recovery_steps[i] == step) return memory_stats().recovered_by[i];
  }
  ADD_FAILURE() << "no step is called " << step;
  return 0;
}

struct ladder : ::testing::Test {
  runtime own{simulated{.devices = 1, .memory = 64_MiB}, options{.device_limit = 6_MiB}};
  runtime_guard in{own};
  memory::allocator& device() { return own.get().part<memory::device_memory>().on(0); }
  void sound() { EXPECT_EQ(device().validate(), std::vector<std::string>{}); }
};

// Two pages have a block of the other stream each, and a third page went back to the driver. The only place
// with room for 4 MiB lies between those blocks.
TEST_F(ladder, maps_pages_between_blocks_of_another_stream) {
  stream const other, mine;
  void *const first = allocate(other.ref(), 1_MiB), *const middle = allocate(other.ref(), 4_MiB),
             *const last = allocate(other.ref(), 1_MiB);
  deallocate(middle);
  EXPECT_EQ(empty_cache(), 2_MiB);
  void* p = nullptr;
  ASSERT_NO_THROW(p = allocate(mine.ref(), 4_MiB));
  EXPECT_EQ(p, middle);
  EXPECT_EQ(find_block(p)->home, mine.ref());
  EXPECT_EQ(recoveries("room between blocks of any stream"), 1u);
  sound();
  for (void* block : {first, p, last}) deallocate(block);
  sound();
}

}  // namespace
}  // namespace weir
