// What has ended leaves nothing behind: registrations of streams, their marks of blocks that stay, guards,
// threads. WEIR_TEST_MANY=n: so many of each, instead of some thousands. Threads: one, and those that end.
#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdlib>
#include <thread>
#include <vector>

#include "runtime/base/process.h"
#include "runtime/clock/stream_clock.h"
#include "runtime/core/parts.h"
#include "streams/stream/context.h"
#include "tests/support/sanitized.h"
#include "tests/support/seeds.h"
#include "weir/copy.h"
#include "weir/memory.h"
#include "weir/observe.h"
#include "weir/runtime.h"

namespace weir {
namespace {

// Bytes of the host's heap. A sanitizer has a heap of its own, which nothing is known of here.
std::int64_t heap_bytes() {
  return static_cast<std::int64_t>(mallinfo2().uordblks + mallinfo2().hblkhd);
}
std::int64_t many(std::int64_t otherwise) {
  return static_cast<std::int64_t>(
      tests::number_from_environment("WEIR_TEST_MANY", static_cast<std::uint64_t>(otherwise)));
}

struct growth : testing::Test {
  runtime own{simulated{.devices = 1, .memory = 64_MiB}};
  runtime_guard in{own};
  void SetUp() override {
    if (tests::sanitized)
      GTEST_SKIP() << "the heap's bytes are not known here";
    if (own.get().observer())
      GTEST_SKIP() << "a checker keeps what it has seen";
  }
};

// For their ids.
TEST_F(growth, ended_registrations_leave_eight_bytes_each) {
  buffer slot(512), block(1_MiB);
  std::vector<std::byte, pinned_allocator<std::byte>> pinned(1 << 16);
  std::uint64_t last = 0;
  auto const one = [&] {
    external_stream const f(0, nullptr);
    EXPECT_GT(f.operator stream_ref().id(), last);
    last = f.operator stream_ref().id();
    slot.record_stream(f), block.record_stream(f);
    copy(f, block.data(), pinned.data(), 4096);
    void* const p = allocate(f, 4096);
    deallocate(p);
  };
  for (int i = 0; i < 3000; ++i)
    one();
  std::int64_t const n = many(8000), before = heap_bytes();
  int const chunks = clock::detail::place(last).chunk;
  for (std::int64_t i = 0; i < n; ++i)
    one();
  std::int64_t grown = heap_bytes() - before;
  // the table of ids
  for (int k = chunks + 1; k <= clock::detail::place(last).chunk; ++k)
    grown -= static_cast<std::int64_t>(clock::detail::first_chunk << k) * 8;
  EXPECT_LE(grown, 16 << 10);
  synchronize();
}

// Until the last registration ends.
TEST_F(growth, a_handle_registered_twice_is_one_stream) {
  auto a = std::make_unique<external_stream>(0, nullptr);
  external_stream const b(0, nullptr);
  stream_ref const s = b;
  EXPECT_EQ(s, stream_ref(*a));
  void* const p = allocate(stream_ref(*a), 512);
  a.reset();
  EXPECT_NO_THROW(deallocate(allocate(s, 512))) << "the other one stands";
  deallocate(p);
}

// An ended stream is not the next one that is registered, though their objects may be one.
TEST_F(growth, an_ended_current_stream_becomes_the_default_stream) {
  auto f = std::make_unique<external_stream>(0, nullptr);
  set_stream(*f);
  EXPECT_EQ(current_stream(0), stream_ref(*f));
  f.reset();
  for (int i = 0; i < 2000; ++i)
    external_stream const other(0, nullptr);
  external_stream const last(0, nullptr);
  EXPECT_EQ(current_stream(0), default_stream(0));
}

// Regression: what weir keeps for a thread was made anew by destructors that came after its own, and left.
TEST_F(growth, late_thread_destructors_leave_nothing) {
  struct late {
    runtime* in = nullptr;
    ~late() {
      if (!in)
        return;
      runtime_guard const here_too(*in);
      deallocate(allocate(512));
    }
  };
  auto const one = [&] {
    std::thread([&] {
      static thread_local late mine;  // made first, so that it ends last
      mine.in = &own;
      runtime_guard const here_too(own);
      deallocate(allocate(512));
    }).join();
  };
  for (int i = 0; i < 50; ++i)
    one();
  std::int64_t const n = many(500), before = heap_bytes();
  for (std::int64_t i = 0; i < n; ++i)
    one();
  EXPECT_LE(heap_bytes() - before, 50 * n) << "bytes of " << n << " threads";
}

TEST_F(growth, guards_that_outlive_their_thread_leave_no_note) {
  auto const one = [&] {
    std::unique_ptr<device_guard> left;
    std::thread([&] {
      runtime_guard const here_too(own);
      left = std::make_unique<device_guard>(0);
    }).join();
    left.reset();
  };
  for (int i = 0; i < 50; ++i)
    one();
  std::int64_t const n = many(2000), before = heap_bytes();
  for (std::int64_t i = 0; i < n; ++i)
    one();
  EXPECT_LE(heap_bytes() - before, 4 * n) << "bytes of " << n << " guards";
}

// What can never be had is said at once: nothing is emptied, asked or waited for.
struct impossible_requests : testing::Test {
  static std::string refused(std::size_t bytes) {
    try {
      deallocate(allocate(bytes));
    } catch (out_of_memory const& e) {
      EXPECT_TRUE(e.report().recovery.empty()) << e.what();
      return e.what();
    }
    ADD_FAILURE() << bytes << " B were had";
    return "";
  }
};

TEST_F(impossible_requests, are_refused_before_anything_is_touched) {
  runtime own{simulated{.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::stepped}};
  runtime_guard const in(own);
  stream other;
  void* const small = allocate(512);
  void* const large = allocate(other.ref(), 1_MiB);
  deallocate(small), deallocate(large);
  auto const before = memory_stats(0);
  EXPECT_NE(refused(65_MiB).find("larger than the device"), std::string::npos);
  set_memory_limit(16_MiB, 0);
  EXPECT_NE(refused(17_MiB).find("larger than the memory limit"), std::string::npos);
  auto const n = memory_stats(0);
  EXPECT_EQ(n.reserved_bytes.all.current, before.reserved_bytes.all.current) << "the cache is kept";
  EXPECT_EQ(n.num_alloc_retries, before.num_alloc_retries);
  EXPECT_EQ(n.num_ooms, before.num_ooms + 2);
}

TEST_F(impossible_requests, name_the_limit_where_nothing_is_reserved) {
  runtime own{simulated{.devices = 1, .memory = 64_MiB}, options{.device_limit = 4096}};
  runtime_guard const in(own);
  EXPECT_NE(refused(512).find("larger than the memory limit"), std::string::npos) << "a page is";
}

// What was live when the limit was set keeps its memory; what was free has gone back.
TEST_F(impossible_requests, are_served_from_memory_before_a_limit) {
  runtime own{simulated{.devices = 1, .memory = 64_MiB}};
  runtime_guard const in(own);
  void* const live = allocate(20_MiB);
  set_memory_limit(1_MiB, 0);
  deallocate(live);
  EXPECT_NO_THROW(deallocate(allocate(20_MiB)));
  set_memory_limit(2_MiB, 0);
  EXPECT_THROW(deallocate(allocate(20_MiB)), out_of_memory);
}

TEST_F(impossible_requests, of_pinned_memory_are_refused_too) {
  runtime own{simulated{.devices = 1, .memory = 64_MiB}, options{.pinned_limit = 1_MiB}};
  runtime_guard const in(own);
  try {
    std::vector<std::byte, pinned_allocator<std::byte>> const never(2_MiB);
    FAIL();
  } catch (out_of_memory const& e) {
    EXPECT_TRUE(e.report().recovery.empty()) << e.what();
    EXPECT_NE(std::string(e.what()).find("larger than the limit of pinned memory"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace weir
