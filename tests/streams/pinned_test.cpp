// The pinned pool on a simulated machine: what may be reused when, what is refused, what it counts.
// Threads: order is proved by gates, never by time.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "streams/pinned/pinned_memory.h"
#include "tests/peer/machine_fixture.h"
#include "tests/support/refused.h"
#include "weir/collective.h"

namespace weir {
namespace {

using test::held;

source_location const line_ = source_location::current();

struct pinned_pool : ::testing::Test {
  test::machine m;
  streams::pinned_memory& pool = m.pinned();
  stream s{device(0)};
  clock::stream_clock& line() { return streams::clock_of(s); }
  void expect_valid() { EXPECT_EQ(pool.validate(), std::vector<std::string>{}); }
  std::int64_t reserved() { return pool.statistics().reserved_bytes.all.current; }
};

TEST_F(pinned_pool, a_block_without_marks_is_reused_at_once) {
  void* const a = pool.allocate(1000, 0, line_);
  pool.deallocate(a, line_);
  EXPECT_EQ(pool.allocate(1000, 0, line_), a);
  EXPECT_EQ(pool.statistics().cache_hits, 1u);
  expect_valid();
  pool.deallocate(a, line_);
}

TEST_F(pinned_pool, a_marked_block_waits_for_its_stream) {
  std::size_t const all = 2_MiB;  // the whole first segment, so that another block needs another
  void* const a = pool.allocate(all, 0, line_);
  held gate(m, s);
  pool.record_use(static_cast<std::byte*>(a) + 17, line());
  pool.deallocate(a, line_);
  EXPECT_EQ(pool.statistics().pending_bytes.all.current, std::int64_t(all));
  void* const b = pool.allocate(all, 0, line_);
  EXPECT_NE(a, b);
  expect_valid();
  gate.open();
  stream_ref(s).synchronize();
  void* const c = pool.allocate(all, 0, line_);
  EXPECT_EQ(c, a);
  EXPECT_EQ(pool.statistics().pending_bytes.all.current, 0);
  expect_valid();
  pool.deallocate(b, line_);
  pool.deallocate(c, line_);
}

// A refused one marks nothing.
TEST_F(pinned_pool, a_free_that_names_the_last_user_waits_for_it) {
  auto* const a = static_cast<std::byte*>(pool.allocate(2_MiB, 0, line_));
  held gate(m, s);
  EXPECT_THROW(deallocate(s, a + 64), invalid_use);
  pool.deallocate(a, line_);
  ASSERT_EQ(pool.allocate(2_MiB, 0, line_), a);
  deallocate(s, a);
  EXPECT_EQ(pool.statistics().pending_bytes.all.current, std::int64_t(2_MiB));
}

TEST(pinned_polls, a_miss_is_served_by_what_it_finds_complete) {
  test::machine m({.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::stepped});
  auto& pool = m.pinned();
  stream s{device(0)};
  void* const a = pool.allocate(2_MiB, 0, line_);
  held gate(m, s);
  pool.record_use(a, streams::clock_of(s));
  pool.deallocate(a, line_);
  void* const b = pool.allocate(2_MiB, 0, line_);  // asks, for which the stream is fenced
  gate.open();
  ASSERT_TRUE(m.control().run());
  EXPECT_EQ(pool.allocate(2_MiB, 0, line_), a);
  pool.deallocate(a, line_);
  pool.deallocate(b, line_);
}

TEST_F(pinned_pool, order_behind_the_copy_is_not_enough_for_the_host) {
  stream other{device(0)};
  void* const a = pool.allocate(2_MiB, 0, line_);
  held gate(m, s);
  pool.record_use(a, line());
  stream_ref(other).wait(stream_ref(s));  // other is ordered after s, yet nothing has run
  pool.deallocate(a, line_);
  void* const b = pool.allocate(2_MiB, 0, line_);
  EXPECT_NE(a, b);
  pool.deallocate(b, line_);
}

TEST_F(pinned_pool, an_exact_stamp_does_not_wait_for_later_work) {
  void* const a = pool.allocate(2_MiB, 0, line_);
  auto const used = line().now();
  pool.record_use(a, used);
  ASSERT_TRUE(m.clocks().synchronize(used).ok());
  held gate(m, s);
  pool.deallocate(a, line_);
  EXPECT_EQ(pool.allocate(2_MiB, 0, line_), a);
  pool.deallocate(a, line_);
}

TEST_F(pinned_pool, sizes_are_near_exact_and_share_no_cache_line) {
  void* const a = pool.allocate(1, 0, line_);
  void* const b = pool.allocate(1, 0, line_);
  EXPECT_GE(std::abs(static_cast<std::byte*>(a) - static_cast<std::byte*>(b)), 64);
  std::size_t const odd = 5_MiB + 123;
  void* const c = pool.allocate(odd, 0, line_);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(c) % 512, 0u);
  EXPECT_LE(std::size_t(reserved()), 2_MiB + odd + 64_KiB);
  EXPECT_EQ(pool.statistics().requested_bytes.all.current, std::int64_t(odd + 2));
  expect_valid();
  for (void* one : {a, b, c})
    pool.deallocate(one, line_);
}

TEST_F(pinned_pool, alignment_is_kept_up_to_whole_mebibytes) {
  for (std::size_t alignment : {64_KiB, 2_MiB, 4_MiB}) {
    void* const a = pool.allocate(100, alignment, line_);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a) % alignment, 0u);
    pool.deallocate(a, line_);
  }
  EXPECT_THROW(pool.allocate(100, 48, line_), invalid_use);
  expect_valid();
}

TEST_F(pinned_pool, zero_bytes_are_valid_and_freeable) {
  void* const a = pool.allocate(0, 0, line_);
  void* const b = pool.allocate(0, 0, line_);
  EXPECT_NE(a, nullptr);
  EXPECT_NE(a, b);
  pool.deallocate(a, line_);
  pool.deallocate(b, line_);
  pool.deallocate(nullptr, line_);
  EXPECT_EQ(pool.statistics().allocated_bytes.all.current, 0);
}

TEST_F(pinned_pool, wrong_frees_are_named_and_change_nothing) {
  auto* const a = static_cast<std::byte*>(pool.allocate(4096, 0, line_));
  int outside = 0;
  auto const message_of = [&](void* p) { return test::refused([&] { pool.deallocate(p, line_); }); };
  EXPECT_NE(message_of(a + 8).find("inside the pinned block"), std::string::npos);
  EXPECT_NE(message_of(&outside).find("not pinned memory of this runtime"), std::string::npos);
  pool.deallocate(a, line_);
  EXPECT_NE(message_of(a).find("freed before"), std::string::npos);
  EXPECT_EQ(pool.statistics().allocation.all.current, 0);
  expect_valid();
}

TEST_F(pinned_pool, a_block_freed_twice_while_pending_is_named_too) {
  void* const a = pool.allocate(4096, 0, line_);
  held gate(m, s);
  pool.record_use(a, line());
  pool.deallocate(a, line_);
  EXPECT_THROW(pool.deallocate(a, line_), invalid_use);
  expect_valid();
}

TEST_F(pinned_pool, a_size_that_overflowed_is_out_of_memory) {
  EXPECT_THROW(pool.allocate(std::size_t(-8), 0, line_), out_of_memory);
  EXPECT_THROW(pool.allocate(std::size_t{1} << 60, 0, line_), out_of_memory);
  EXPECT_THROW(pool.allocate(100, std::size_t{1} << 60, line_), out_of_memory);
  expect_valid();
}

TEST_F(pinned_pool, more_than_the_host_has_is_out_of_memory) {
  try {
    pool.allocate(std::size_t{1} << 45, 0, line_);
    FAIL() << "no out_of_memory";
  } catch (out_of_memory const& e) {
    EXPECT_TRUE(e.report().on.is_cpu());
    EXPECT_GT(e.report().capacity, 0u);
    EXPECT_LT(e.report().capacity, e.report().rounded);
  }
  expect_valid();
}

TEST_F(pinned_pool, find_knows_live_blocks_and_their_insides) {
  auto* const a = static_cast<std::byte*>(pool.allocate(4096, 0, line_));
  auto const found = pool.find(a + 4095);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->base, a);
  EXPECT_EQ(found->bytes, 4096u);
  EXPECT_EQ(found->kind, memory_kind::pinned);
  EXPECT_EQ(streams::pinned_memory::owner(a), &pool);
  pool.deallocate(a, line_);
  EXPECT_FALSE(pool.find(a));
  EXPECT_EQ(streams::pinned_memory::owner(&m), nullptr);
}

TEST_F(pinned_pool, trim_gives_back_unused_memory_only) {
  void* const a = pool.allocate(8_MiB, 0, line_);
  void* const b = pool.allocate(6_MiB, 0, line_);
  EXPECT_EQ(pool.trim(), 0u);
  pool.deallocate(a, line_);
  EXPECT_EQ(pool.trim(), 8_MiB);
  EXPECT_EQ(reserved(), std::int64_t(6_MiB));
  {
    held gate(m, s);
    pool.record_use(b, line());
    pool.deallocate(b, line_);
    EXPECT_EQ(pool.trim(), 0u);  // a held copy may still read it
  }
  stream_ref(s).synchronize();
  EXPECT_EQ(pool.trim(), 6_MiB);
  EXPECT_EQ(reserved(), 0);
  expect_valid();
}

// All works afterwards.
TEST_F(pinned_pool, a_refused_pin_names_the_cpu) {
  for (std::uint64_t k = 1; k <= 3; ++k)
    m.control().fail_call("pin", k, driver::code::out_of_memory);
  try {
    pool.allocate(1_MiB, 0, line_);
    FAIL() << "no out_of_memory";
  } catch (out_of_memory const& e) {
    EXPECT_TRUE(e.report().on.is_cpu());
    EXPECT_EQ(e.report().requested, 1_MiB);
    EXPECT_EQ(e.report().reserved, 0u);
  }
  EXPECT_EQ(pool.statistics().num_ooms, 1u);
  expect_valid();
  pool.deallocate(pool.allocate(1_MiB, 0, line_), line_);
}

TEST_F(pinned_pool, another_refusal_is_a_driver_error) {
  m.control().fail_call("pin", 1, driver::code::failed);
  EXPECT_THROW(pool.allocate(1_MiB, 0, line_), driver_error);
  expect_valid();
  pool.deallocate(pool.allocate(1_MiB, 0, line_), line_);
}

TEST_F(pinned_pool, what_a_lost_device_used_is_never_reused) {
  stream lost{device(1)};
  void* const a = pool.allocate(2_MiB, 0, line_);
  void* const b = pool.allocate(2_MiB, 0, line_);
  auto& there = streams::clock_of(lost);
  held gate(m, lost);
  pool.record_use(a, there);
  m.control().lose_device(1);
  pool.deallocate(a, line_);
  for (int i = 0; i < 3; ++i) {
    void* const c = pool.allocate(2_MiB, 0, line_);
    EXPECT_NE(c, a);
    pool.deallocate(c, line_);
  }
  EXPECT_EQ(pool.statistics().pending_bytes.all.current, std::int64_t(2_MiB));
  pool.trim();
  EXPECT_EQ(reserved(), std::int64_t(4_MiB));  // a's and b's
  expect_valid();
  pool.deallocate(b, line_);
}

TEST(pinned_end, pages_that_a_lost_device_may_write_are_kept) {
  void* a = nullptr;
  {
    test::machine m({.devices = 2, .memory = 64_MiB});
    stream lost{device(1)};
    a = m.pinned().allocate(2_MiB, 0, line_);
    test::held gate(m, lost);
    m.pinned().record_use(a, streams::clock_of(lost));
    m.control().lose_device(1);
    m.pinned().deallocate(a, line_);
  }
  EXPECT_EQ(::msync(a, 4096, MS_ASYNC), 0) << "no longer mapped";
}

// A collective waits for that rank.
TEST(pinned_ranks, a_rank_is_refused_instead_of_waiting_for_others) {
  test::machine m({.devices = 2, .memory = 64_MiB}, options{.pinned_limit = 4_MiB});
  m.pinned().deallocate(m.pinned().allocate(2_MiB, 0, line_), line_);  // idle pages that a larger block needs
  device const both[] = {device(0), device(1)};
  auto ranks = communicator::create_all(both);
  buffer a(4096, {.on = device(0)}), b(4096, {.on = device(1)});
  stamp const one = ranks[0].all_reduce({a.data(), 1024, float32});
  EXPECT_THROW(m.pinned().allocate(4_MiB, 0, line_), out_of_memory);
  ranks[1].all_reduce({b.data(), 1024, float32}).synchronize();
  one.synchronize();
  m.pinned().deallocate(m.pinned().allocate(4_MiB, 0, line_), line_);
}

// The parent's memory is untouched.
TEST(pinned_fork, a_child_gets_a_typed_error) {
  test::machine m({.devices = 1, .memory = 64_MiB});
  auto* const held_by_parent = static_cast<char*>(m.pinned().allocate(4096, 0, line_));
  std::memset(held_by_parent, 5, 4096);
  pid_t const child = ::fork();
  if (child == 0) {
    int code = 1;
    try {
      m.pinned().allocate(64, 0, line_);
    } catch (weir::error const& e) {
      code = e.operation() == "allocate" ? 0 : 2;
    } catch (...) {
      code = 3;
    }
    try {
      m.pinned().deallocate(held_by_parent, line_);  // nothing of the parent's is touched
      m.pinned().trim();
    } catch (...) {
      code = 4;
    }
    ::_exit(code);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(held_by_parent[4095], 5);
  m.pinned().deallocate(held_by_parent, line_);
  EXPECT_EQ(m.pinned().validate(), std::vector<std::string>{});
}

TEST(pinned_limit, is_kept_and_returned_room_is_used) {
  test::machine m({.devices = 1, .memory = 64_MiB}, {.pinned_limit = 8_MiB});
  auto& pool = m.pinned();
  void* const a = pool.allocate(6_MiB, 0, line_);
  try {
    pool.allocate(4_MiB, 0, line_);
    FAIL() << "no out_of_memory";
  } catch (out_of_memory const& e) {
    EXPECT_EQ(e.report().limit, 8_MiB);
    EXPECT_EQ(e.report().allocated, 6_MiB);
    EXPECT_EQ(e.report().reserved, 6_MiB);
    EXPECT_NE(e.report().text().find("The limit of pinned memory is reached"), std::string::npos) << e.report().text();
    EXPECT_TRUE(e.report().on.is_cpu());
    ASSERT_FALSE(e.report().recovery.empty());
    EXPECT_EQ(e.report().recovery[0].name, "idle pages returned");
  }
  pool.deallocate(a, line_);
  void* const b = pool.allocate(7_MiB, 0, line_);  // the 6 MiB go back first
  EXPECT_LE(pool.statistics().reserved_bytes.all.peak, std::int64_t(8_MiB));
  EXPECT_EQ(pool.validate(), std::vector<std::string>{});
  pool.deallocate(b, line_);
}

TEST(pinned_limit, a_hopeless_allocation_is_refused_at_once) {
  test::machine m({.devices = 1, .memory = 64_MiB}, {.pinned_limit = 4_MiB});
  auto& pool = m.pinned();
  pool.deallocate(pool.allocate(2_MiB, 0, line_), line_);
  ASSERT_EQ(pool.trim(), 2_MiB);
  void* const a = pool.allocate(3_MiB, 0, line_);
  std::int64_t const from = base::now_ns();
  EXPECT_THROW(pool.allocate(2_MiB, 0, line_), out_of_memory);
  EXPECT_LT(base::now_ns() - from, 1'000'000'000) << "the longest wait";
  pool.deallocate(a, line_);
}

TEST(pinned_limit, an_allocation_waits_a_moment_for_copies) {
  test::machine m({.devices = 1, .memory = 64_MiB}, {.pinned_limit = 4_MiB});
  auto& pool = m.pinned();
  stream s{device(0)};
  void* const a = pool.allocate(4_MiB, 0, line_);
  held gate(m, s);
  pool.record_use(a, streams::clock_of(s));
  pool.deallocate(a, line_);
  std::thread opens([&] { gate.open(); });
  void* const b = pool.allocate(4_MiB, 0, line_);
  opens.join();
  EXPECT_EQ(a, b);
  pool.deallocate(b, line_);
}

TEST(pinned_limit, waiting_for_a_copy_that_does_not_end_is_bounded) {
  test::machine m({.devices = 1, .memory = 64_MiB}, {.pinned_limit = 4_MiB});
  auto& pool = m.pinned();
  stream s{device(0)};
  void* const a = pool.allocate(4_MiB, 0, line_);
  held gate(m, s);
  pool.record_use(a, streams::clock_of(s));
  pool.deallocate(a, line_);
  EXPECT_THROW(pool.allocate(4_MiB, 0, line_), out_of_memory);
  EXPECT_EQ(pool.validate(), std::vector<std::string>{});
}

// The same works again.
TEST(pinned_faults, any_call_refused_loses_nothing) {
  for (std::uint64_t k = 1; k < 24; ++k) {
    for (auto const code : {driver::code::out_of_memory, driver::code::failed}) {
      test::machine m({.devices = 1, .memory = 64_MiB});
      auto& pool = m.pinned();
      stream s{device(0)};
      auto const scenario = [&] {
        void* const a = pool.allocate(3_MiB, 0, line_);
        pool.record_use(a, streams::clock_of(s));
        pool.deallocate(a, line_);
        void* const b = pool.allocate(5_MiB, 0, line_);
        pool.deallocate(b, line_);
        pool.trim();
      };
      m.control().fail_call("any", k, code);
      try {
        scenario();
      } catch (out_of_memory const&) {
      } catch (driver_error const&) {}
      driver::fault_injector_of(m.driver())->forget_orders();
      EXPECT_EQ(pool.validate(), std::vector<std::string>{}) << "call " << k;
      EXPECT_EQ(pool.statistics().allocation.all.current, 0) << "call " << k;
      scenario();
      stream_ref(s).synchronize();
      pool.trim();
      pool.trim();
      EXPECT_EQ(pool.statistics().reserved_bytes.all.current, 0) << "call " << k;
    }
  }
}

TEST(pinned_threads, blocks_of_many_threads_never_overlap) {
  test::machine m({.devices = 1, .memory = 64_MiB});
  auto& pool = m.pinned();
  std::vector<std::thread> all;
  for (int t = 0; t < 4; ++t) {
    all.emplace_back([&, t] {
      std::vector<std::pair<unsigned char*, std::size_t>> mine;
      for (int i = 0; i < 2000; ++i) {
        std::size_t const n = 1 + std::size_t(i * 7919 % 5000);
        auto* const p = static_cast<unsigned char*>(pool.allocate(n, 0, line_));
        std::memset(p, t + 1, n);
        mine.emplace_back(p, n);
        if (mine.size() > 20) {
          auto const [q, bytes] = mine.front();
          for (std::size_t b = 0; b < bytes; ++b)
            ASSERT_EQ(q[b], t + 1);
          pool.deallocate(q, line_);
          mine.erase(mine.begin());
        }
      }
      for (auto const& one : mine)
        pool.deallocate(one.first, line_);
    });
  }
  for (auto& one : all)
    one.join();
  EXPECT_EQ(pool.statistics().allocated_bytes.all.current, 0);
  EXPECT_EQ(pool.validate(), std::vector<std::string>{});
}

TEST(pinned_allocator, carries_a_container_and_names_an_overflow) {
  test::machine m({.devices = 1, .memory = 64_MiB});
  {
    std::vector<float, pinned_allocator<float>> v(1000, 2.f);
    EXPECT_TRUE(m.pinned().find(v.data()));
    v.resize(100000, 3.f);
    EXPECT_EQ(v[50000], 3.f);
  }
  EXPECT_EQ(m.pinned().statistics().allocation.all.current, 0);
  EXPECT_THROW(pinned_allocator<double>().allocate(std::size_t(-1) / 4), invalid_use);
}

TEST_F(pinned_pool, pin_memory_is_a_copy_that_the_engine_reads) {
  auto const bytes = test::pattern(10'001, 9);
  buffer on_gpu(bytes.size(), {.on = device(0)});
  buffer const copied = pin_memory(bytes);
  EXPECT_TRUE(pool.find(copied.data()));
  EXPECT_EQ(copied.size(), bytes.size());
  EXPECT_EQ(explain_copy(on_gpu.data(), copied.data(), bytes.size()).by, copy_route::engine);
  copy(on_gpu.data(), copied.data(), bytes.size());
  EXPECT_EQ(test::read_back(on_gpu.data(), bytes.size(), 0), bytes);
}

// It is given back when asked.
TEST_F(pinned_pool, warm_memory_takes_no_system_call) {
  EXPECT_EQ(empty_pinned_cache(), 0u);
  reserve_pinned_memory(8_MiB);
  auto const held_bytes = reserved();
  EXPECT_GE(held_bytes, std::int64_t(8_MiB));
  auto const order = m.control().fail_call("pin", 1, driver::code::failed);
  buffer a = pinned(4_MiB), b = pinned(4_MiB);
  EXPECT_TRUE(m.control().cancel_failure(order)) << "no pages were asked for";
  EXPECT_EQ(empty_pinned_cache(), 0u) << "all of it is used";
  a.reset(), b.reset();
  EXPECT_EQ(empty_pinned_cache(), std::size_t(held_bytes));
  EXPECT_EQ(reserved(), 0);
  expect_valid();
}

}  // namespace
}  // namespace weir
