// Pages for the pinned pool as the system sees them:
// where they lie, that they are there, what was asked for, and how many the host spares.
// Threads: those of take_pages.
#include <sys/mman.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/base/os.h"
#include "runtime/base/os_memory.h"
#include "streams/pinned/pages.h"
#include "streams/pinned/pinned_memory.h"
#include "tests/peer/machine_fixture.h"

namespace weir {
namespace {

// VmFlags of the mapping that begins there: two letters a flag.
std::string flags_at(void const* at) {
  std::ostringstream first;
  first << std::hex << reinterpret_cast<std::uintptr_t>(at) << '-';
  std::ifstream all("/proc/self/smaps");
  bool here = false;
  for (std::string line; std::getline(all, line);) {
    if (line.find('-') < 17 && std::isxdigit(static_cast<unsigned char>(line[0])) && line.find(':') != line.find('-'))
      here |= line.starts_with(first.str());
    if (here && line.starts_with("VmFlags:"))
      return line.substr(8) + " ";
  }
  return "";
}

std::size_t present(std::byte* base, std::size_t bytes) {
  std::vector<unsigned char> is(bytes / os::page_size());
  EXPECT_EQ(mincore(base, bytes, is.data()), 0);
  return static_cast<std::size_t>(std::count_if(is.begin(), is.end(), [](unsigned char one) { return one & 1; }));
}

base::atomic<int> threads{0};
bool refuses_threads = false;
bool count_threads(os::call which) noexcept {
  if (which != os::call::make_thread)
    return false;
  threads.fetch_add(1);
  return refuses_threads;
}

TEST(pinned_pages, lie_on_huge_pages_and_are_asked_for_as_such) {
  test::machine m({.devices = 1, .memory = 64_MiB});
  ASSERT_TRUE(m.driver().open(0).ok());
  auto const got = streams::take_pages(m.driver(), 6_MiB + 4096, -1);
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(got.value.base) % streams::huge_page, 0u);
  EXPECT_EQ(got.value.bytes, 6_MiB + 4096) << "no more than was asked for";
  std::string const flags = flags_at(got.value.base);
  ASSERT_NE(flags, "") << "the mapping begins there";
  if (std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled")) {
    EXPECT_NE(flags.find(" hg "), std::string::npos) << flags;
  }
  EXPECT_TRUE(streams::return_pages(m.driver(), got.value).ok());
  EXPECT_EQ(flags_at(got.value.base), "") << "and is gone";
}

TEST(pinned_pages, are_touched_by_several_threads_or_by_this_one) {
  std::size_t const bytes = 128_MiB;
  test::machine m({.devices = 1, .memory = 64_MiB});
  ASSERT_TRUE(m.driver().open(0).ok());
  for (bool const refused : {false, true}) {
    refuses_threads = refused;
    threads.store(0);
    os::refuse_by(count_threads);
    auto const got = streams::take_pages(m.driver(), bytes, -1);
    os::refuse_by(nullptr);
    ASSERT_TRUE(got.ok());
    EXPECT_EQ(present(got.value.base, bytes), bytes / os::page_size()) << refused;
    EXPECT_TRUE(threads.load() || os::usable_processors() == 1) << refused;
    EXPECT_TRUE(streams::return_pages(m.driver(), got.value).ok());
  }
}

std::optional<os::host_memory> host_has;
struct told_memory {  // what the host says of its memory, for one test
  explicit told_memory(os::host_memory is) {
    host_has = is;
    os::memory_told_by([]() noexcept { return host_has; });
  }
  ~told_memory() { os::memory_told_by(nullptr); }
};

// Of the host's memory; the refusal says so.
TEST(pinned_limit, without_one_an_eighth_is_left_to_others) {
  source_location const line = source_location::current();
  told_memory const told({.total = 800_MiB, .available = 112_MiB});
  test::machine m({.devices = 1, .memory = 64_MiB});
  auto& pool = m.pinned();
  void* const a = pool.allocate(8_MiB, 0, line);
  host_has->available = 104_MiB;
  try {
    pool.allocate(8_MiB, 0, line);
    FAIL() << "no out_of_memory";
  } catch (out_of_memory const& e) {
    std::string const said(e.remedy());
    EXPECT_NE(
        said.find("The host has 104.00 MiB available, of which weir leaves 100.00 MiB to others and may pin 4.00 MiB"),
        std::string::npos)
        << said;
    EXPECT_NE(said.find("WEIR_CONF=pinned_limit:1GiB"), std::string::npos) << said;
    EXPECT_TRUE(e.report().on.is_cpu());
    EXPECT_EQ(e.report().capacity, 800_MiB);
    EXPECT_EQ(e.report().other_processes, 688_MiB);
  }
  EXPECT_EQ(pool.statistics().num_ooms, 1u);
  void* const b = pool.allocate(4_MiB, 0, line);
  host_has->available = 50_MiB;
  pool.deallocate(a, line);
  void* const again = pool.allocate(8_MiB, 0, line);  // what the pool has is no new memory
  EXPECT_EQ(again, a);
  EXPECT_EQ(pool.validate(), std::vector<std::string>{});
  pool.deallocate(again, line);
  pool.deallocate(b, line);

  test::machine limited({.devices = 1, .memory = 64_MiB}, {.pinned_limit = 16_MiB});
  limited.pinned().deallocate(limited.pinned().allocate(16_MiB, 0, line), line);  // who says how much is believed
  host_has->total = 100_GiB, host_has->available = 8_GiB + 4_MiB;  // and of much memory 8 GiB are enough for others
  test::machine large({.devices = 1, .memory = 64_MiB});
  EXPECT_THROW(large.pinned().allocate(5_MiB, 0, line), out_of_memory);
  large.pinned().deallocate(large.pinned().allocate(4_MiB, 0, line), line);
}

}  // namespace
}  // namespace weir
