// Pools on GPUs if there are any, else on simulated devices: bytes and addresses over sleep and wake, with large
// handles; a whole call's speed beside the link's; free pages of a pool that serve the rest.
// Threads: one.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <iostream>
#include <memory>

#include "runtime/memory/device/device_memory.h"
#include "weir/copy.h"
#include "weir/device.h"
#include "weir/launch.h"
#include "weir/observe.h"
#include "weir/pool.h"

namespace weir {
namespace {

struct pools_here : ::testing::Test {
  static std::unique_ptr<runtime> machine() {
    ::setenv("WEIR_DEVICES", "cuda", 1);
    std::unique_ptr<runtime> made;
    try {
      made = std::make_unique<runtime>();
    } catch (not_supported const&) {
      made = std::make_unique<runtime>(simulated{.devices = 1, .memory = 512_MiB});
    }
    ::unsetenv("WEIR_DEVICES");
    return made;
  }
  std::unique_ptr<runtime> own = machine();
  runtime_guard in{*own};
  bool const gpu_here = !own->is_simulated();
  size_t const bytes = gpu_here ? 8_GiB : 128_MiB;

  void sound() { EXPECT_EQ(own->get().part<memory::device_memory>().on(0).validate(), std::vector<std::string>{}); }
  static double seconds_of(auto work) {
    auto const from = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - from).count();
  }
};

TEST_F(pools_here, large_blocks_come_back_whole) {
  pool model("model");
  std::vector<void*> all;
  size_t const each = bytes / 8;
  for (int i = 0; i < 8; ++i) {
    all.push_back(model.allocate(each));
    fill(all.back(), static_cast<std::byte>(i + 1), each);
  }
  void* const small = model.allocate(1000);
  fill(small, std::byte{77}, 1000);
  deallocate(all[3]);  // a hole
  all[3] = nullptr;
  synchronize();
  size_t const before = mem_get_info().free;
  size_t const given = model.sleep();
  EXPECT_GE(given, bytes - bytes / 8);
  EXPECT_GE(mem_get_info().free, before + bytes - bytes / 8 - 64_MiB) << "the device has the pages";
  sound();
  {
    buffer const other(each);
    fill(other.data(), std::byte{0xee}, each);
    synchronize();
  }
  model.wake();
  sound();
  std::vector<unsigned char> host(each);
  for (int i = 0; i < 8; ++i) {
    if (!all[static_cast<size_t>(i)])
      continue;
    copy(host.data(), all[static_cast<size_t>(i)], each);
    EXPECT_EQ(host[0], i + 1);
    EXPECT_EQ(std::memcmp(host.data(), host.data() + 1, each - 1), 0) << "block " << i;
    deallocate(all[static_cast<size_t>(i)]);
  }
  copy(host.data(), small, 1000);
  EXPECT_EQ(host[999], 77);
  deallocate(small);
  sound();
}

// Whole calls against a copy of as many bytes by the engine, pinned memory ready.
TEST_F(pools_here, sleep_and_wake_go_at_the_links_speed) {
  if (!gpu_here)
    GTEST_SKIP() << "no GPU: a simulated link has the host's speed";
  pool model("model");
  void* const p = model.allocate(bytes);
  fill(p, std::byte{5}, bytes);
  synchronize();
  double down_alone = 0, up_alone = 0;
  {
    buffer const there(bytes, {.kind = memory_kind::pinned});
    copy(there.data(), p, bytes);
    down_alone = seconds_of([&] { copy(const_cast<void*>(there.data()), p, bytes); });
    up_alone = seconds_of([&] { copy(p, there.data(), bytes).synchronize(); });
  }
  double const first = seconds_of([&] { model.sleep(); });
  model.wake();
  double down = 1e9, up = 1e9;
  for (int i = 0; i < 3; ++i) {
    down = std::min(down, seconds_of([&] { model.sleep(); }));
    up = std::min(up, seconds_of([&] { model.wake(); }));
  }
  auto const gb = [&](double s) { return static_cast<double>(bytes) / s / 1e9; };
  std::cout << "down: copy " << gb(down_alone) << " GB/s, first sleep " << gb(first) << ", sleep " << gb(down)
            << "; up: copy " << gb(up_alone) << ", wake " << gb(up) << '\n';
  EXPECT_GE(gb(down), 0.9 * gb(down_alone));
  EXPECT_GE(gb(up), 0.9 * gb(up_alone));
  deallocate(p);
}

TEST_F(pools_here, free_pages_of_a_pool_serve_the_rest) {
  pool const model("model");
  size_t const most = bytes;
  set_memory_limit(most);
  deallocate(model.allocate(most / 2));
  synchronize();
  buffer const rest(most / 4 * 3);
  fill(rest.data(), std::byte{1}, rest.size());
  synchronize();
  EXPECT_LE(memory_reserved(), most);
  sound();
}

TEST_F(pools_here, empty_cache_gives_a_live_pools_pages_back) {
  pool const model("model");
  void* const held = model.allocate(4_MiB);
  deallocate(model.allocate(bytes / 2));
  synchronize();
  EXPECT_GE(empty_cache(), bytes / 2);
  EXPECT_LE(model.statistics().reserved, 64_MiB);
  deallocate(held);
}

// Four pools on a device that holds two and a half: each step adds one to every byte of one of them.
TEST_F(pools_here, a_spill_keeps_every_byte) {
  size_t const each = bytes / 4;
  set_memory_limit(2 * each + each / 2);
  std::vector<std::unique_ptr<pool>> all;
  std::vector<buffer> blocks;
  std::vector<std::unique_ptr<spill>> spills;
  for (int i = 0; i < 4; ++i) {
    all.push_back(std::make_unique<pool>("part"));
    spills.push_back(std::make_unique<spill>(std::vector{all.back().get()}));
    blocks.push_back(buffer::adopt(all.back()->allocate(each)));
    fill(blocks.back().data(), static_cast<std::byte>(i), each);
  }
  EXPECT_TRUE(all[0]->is_asleep() && all[1]->is_asleep());
  EXPECT_FALSE(all[2]->is_asleep() || all[3]->is_asleep());
  buffer const host = pinned(each);
  for (int step = 0; step < 8; ++step) {
    buffer& now = blocks[static_cast<size_t>(step % 4)];
    copy(host.data(), now.data(), each);
    auto* const at = host.host<unsigned char>().data();
    EXPECT_EQ(at[0], step);
    EXPECT_EQ(std::memcmp(at, at + 1, each - 1), 0) << step;
    fill(now.data(), static_cast<std::byte>(step + 4), each);
    synchronize();
  }
  EXPECT_LE(memory_reserved(), 2 * each + each / 2);
  sound();
  blocks.clear();
  set_memory_limit(0);
}

}  // namespace
}  // namespace weir
