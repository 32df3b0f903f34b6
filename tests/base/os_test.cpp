// Tests of the operating-system layer.
// Threads: one, and a child.
#include "runtime/base/os.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <vector>

#include "runtime/base/os_memory.h"
#include "runtime/base/os_numa.h"
#include "runtime/base/sync.h"

namespace weir::os {
namespace {

TEST(os, reserved_addresses_are_aligned_and_empty) {
  std::size_t const unit = 2u << 20;
  auto* const at = static_cast<char*>(reserve_addresses(4 * unit, unit));
  ASSERT_NE(at, nullptr);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(at) % unit, 0u);
  int const file = make_memory_file("test");
  ASSERT_GE(file, 0);
  ASSERT_TRUE(resize_file(file, 2 * unit));
  ASSERT_TRUE(map_file(at, unit, file, unit));
  ASSERT_TRUE(map_file(at + 2 * unit, unit, file, unit));
  at[5] = 'x';
  EXPECT_EQ(at[2 * unit + 5], 'x') << "two places, one page";
  ASSERT_TRUE(unmap_to_nothing(at, unit));
  EXPECT_EQ(at[2 * unit + 5], 'x');
  EXPECT_DEATH(static_cast<volatile char*>(at)[5] = 'y', "");
  ASSERT_TRUE(punch_hole(file, unit, unit));
  EXPECT_EQ(at[2 * unit + 5], 0);
  EXPECT_TRUE(return_addresses(at, 4 * unit));
  close_file(file);
}

TEST(os, memory_lies_at_a_multiple_of_its_alignment) {
  std::size_t const unit = std::size_t{2} << 20;
  std::vector<char*> all;
  for (int i = 0; i < 8; ++i) {
    auto* const at = static_cast<char*>(map_memory(unit + page_size(), unit));
    ASSERT_NE(at, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(at) % unit, 0u);
    at[0] = at[unit + page_size() - 1] = 'x';
    all.push_back(at);
  }
  for (char* at : all)
    EXPECT_TRUE(return_addresses(at, unit + page_size()));
}

TEST(os, an_impossible_request_is_refused) {
  EXPECT_EQ(map_memory(0), nullptr);
  EXPECT_EQ(map_memory(~std::size_t{0} - 4096, 1u << 21), nullptr);
  EXPECT_EQ(reserve_addresses(0, 4096), nullptr);
  EXPECT_EQ(reserve_addresses(std::size_t{1} << 60, 4096), nullptr);
  EXPECT_EQ(reserve_addresses(~std::size_t{0} - 4096, 1u << 21), nullptr);
  EXPECT_FALSE(resize_file(-1, 4096));
  EXPECT_FALSE(run_this_thread_on({}));
}

TEST(os, the_host_has_memory) {
  EXPECT_GT(memory_of_host(), page_size());
  auto const now = memory_available();
  ASSERT_TRUE(now);
  EXPECT_GT(now->total, page_size());
  EXPECT_LE(now->total, memory_of_host());
  EXPECT_GT(now->available, page_size());
  EXPECT_LE(now->available, now->total);
}

TEST(os, memory_is_what_host_and_control_groups_leave) {
  auto const root = std::filesystem::temp_directory_path() / ("weir-os-" + std::to_string(::getpid()));
  auto const write = [&](char const* file, std::string const& text) {
    std::filesystem::create_directories((root / file).parent_path());
    std::ofstream(root / file) << text;
  };
  auto const is = [&](std::size_t total, std::size_t available) {
    auto const got = memory_available(root.c_str());
    ASSERT_TRUE(got);
    EXPECT_EQ(got->total, total);
    EXPECT_EQ(got->available, available);
  };
  EXPECT_FALSE(memory_available(root.c_str()));
  write("proc/meminfo", "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    800 kB\n");
  is(1000 << 10, 800 << 10);
  // cgroup version 2: the group has no limit, its parent has one. File caches count as free.
  write("proc/self/cgroup", "0::/a/b\n");
  write("sys/fs/cgroup/a/b/memory.max", "max\n");
  write("sys/fs/cgroup/a/b/memory.current", "100000\n");
  is(1000 << 10, 800 << 10);
  write("sys/fs/cgroup/a/memory.max", "500000\n");
  write("sys/fs/cgroup/a/memory.current", "400000\n");
  is(500'000, 100'000);
  write("sys/fs/cgroup/a/memory.stat", "anon 200000\nactive_file 60000\ninactive_file 40000\n");
  is(500'000, 200'000);
  write("sys/fs/cgroup/a/b/memory.max", "300000\n");
  write("sys/fs/cgroup/a/b/memory.current", "350000\n");
  is(300'000, 0);
  // The limit of the group above is larger, but other groups in it leave less.
  write("sys/fs/cgroup/a/b/memory.current", "100000\n");
  write("sys/fs/cgroup/a/memory.current", "450000\n");
  is(300'000, 150'000);
  write("sys/fs/cgroup/a/b/memory.current", "350000\n");
  write("sys/fs/cgroup/a/memory.current", "400000\n");
  // Above memory.high the kernel slows the group down.
  write("sys/fs/cgroup/a/b/memory.max", "max\n");
  write("sys/fs/cgroup/a/b/memory.high", "360000\n");
  is(360'000, 10'000);
  write("sys/fs/cgroup/a/b/memory.high", "max\n");
  is(500'000, 200'000);
  // cgroup version 1, in a container that sees its group at the top.
  write("proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/../../c\n0::/\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "400000\n");
  is(1000 << 10, 800 << 10);
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "450000\n");
  write("sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 50000\n");
  is(450'000, 100'000);
  std::filesystem::remove_all(root);
}

TEST(os, a_child_knows_that_it_is_one) {
  auto const here = fork_generation();
  pid_t const child = ::fork();
  if (child == 0)
    ::_exit(fork_generation() == here + 1 ? 0 : 1);
  int how = 0;
  ASSERT_EQ(::waitpid(child, &how, 0), child);
  EXPECT_EQ(how, 0);
  EXPECT_EQ(fork_generation(), here);
}

TEST(os, the_environment_tells_unset_from_empty) {
  ::setenv("WEIR_TEST_EMPTY", "", 1);
  ::unsetenv("WEIR_TEST_UNSET");
  EXPECT_EQ(environment("WEIR_TEST_EMPTY"), "");
  EXPECT_EQ(environment("WEIR_TEST_UNSET"), std::nullopt);
}

TEST(os, the_processors_of_this_process_are_counted) {
  EXPECT_GE(usable_processors(), 1);
  EXPECT_TRUE(processors_near(-1).empty());
  EXPECT_TRUE(processors_near(4000).empty());
}

TEST(os, each_core_is_named_by_one_allowed_processor) {
  auto const cores = processors_of_cores();
  if (cores.empty())
    GTEST_SKIP() << "the system does not say which processors are one core";
  EXPECT_LE(cores.size(), static_cast<std::size_t>(usable_processors()));
  EXPECT_EQ(std::set<int>(cores.begin(), cores.end()).size(), cores.size());
  base::thread([&] {  // a thread, because its affinity changes
    for (int const one : cores) {
      ASSERT_TRUE(run_this_thread_on({one}));
      EXPECT_EQ(processors_of_cores(), std::vector<int>{one});
    }
  })
      .join();
}

}  // namespace
}  // namespace weir::os
