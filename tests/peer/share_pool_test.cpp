// Pools of shared memory: many buffers in one handle, each shared as if it had a handle of its own.
// Threads: one, and in one case four; the other process has its own.
#include <optional>
#include <random>
#include <thread>

#include "peer/share/shared_pool.h"
#include "tests/peer/other_process.h"
#include "tests/peer/share_fixture.h"
#include "tests/support/sanitized.h"
#include "tests/support/seeds.h"
#include "weir/collective.h"
#include "weir/observe.h"
#include "weir/parallel_for.h"

namespace weir {
namespace {

using namespace test::sharing;

void expect_sums(share_pool const& p) {
  auto const n = p.statistics();
  EXPECT_EQ(n.reserved, n.allocated + n.held + n.cached + n.lost);
}
std::size_t size_of(int i) {
  return std::size_t(1 + i * 977 % 9000);
}

// Bytes -----------------------------------------------------------------------------------------------------

constexpr int many = 200;

WEIR_ROLE(reads_all_of_a_pool) {
  test::machine m(small());
  std::vector<imported_buffer> all;
  for (int i = 0; i < many; ++i)
    all.push_back(line.receive());
  ASSERT_EQ(m.get().part<peer::imports>().mapped(), 1u);
  for (int i = 0; i < many; ++i) {
    auto const& b = all[std::size_t(i)];
    ASSERT_EQ(b.size(), size_of(i));
    ASSERT_EQ(read(b.data(), b.size()), test::pattern(size_of(i), std::uint64_t(i))) << i;
    write(b.data(), test::pattern(size_of(i), std::uint64_t(i) + 1000));
  }
  line.signal(7, default_stream(0));
  ASSERT_EQ(line.wait(), 8u);
}

TEST(a_pool, has_many_buffers_in_one_handle_mapped_once) {
  test::machine m(small());
  test::other_process other("reads_all_of_a_pool");
  share_pool pool;
  std::vector<exportable_buffer> all;
  for (int i = 0; i < many; ++i) {
    all.push_back(pool.allocate(size_of(i)));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(all.back().data()) % 512, 0u);
    EXPECT_EQ(all.back().size(), size_of(i));
    write(all.back().data(), test::pattern(size_of(i), std::uint64_t(i)));
  }
  EXPECT_EQ(pool.statistics().handles, 1u);
  EXPECT_EQ(pool.statistics().buffers, std::size_t(many));
  for (auto const& b : all)
    other.line().send(b, default_stream(0));
  EXPECT_EQ(other.line().wait(), 7u);
  for (int i = 0; i < many; ++i)
    EXPECT_EQ(read(all[std::size_t(i)].data(), size_of(i)), test::pattern(size_of(i), std::uint64_t(i) + 1000)) << i;
  other.line().signal(8, default_stream(0));
  EXPECT_EQ(other.end(), "exit 0");
  expect_sums(pool);
}

TEST(a_pool, takes_the_tightest_fit_then_the_oldest_handle) {
  test::machine m(small());
  share_pool pool({.handle_bytes = 2_MiB});
  std::vector<exportable_buffer> all;
  for (std::size_t i = 0; i < 600; ++i)
    all.push_back(pool.allocate(std::size_t{8192}));  // of three handles
  ASSERT_GE(pool.statistics().handles, 3u);
  auto const at = [&](std::size_t i) { return reinterpret_cast<std::uintptr_t>(all[i].data()); };
  auto const two_wide = at(300), three_wide = at(20), one_wide = at(560), as_wide = at(100);
  for (std::size_t const i : {20, 21, 22, 300, 301, 560, 100})
    all[i].reset();
  synchronize(device(0));
  (void)pool.statistics();  // looks at returned memory
  auto const take = [&](std::size_t bytes) {
    return reinterpret_cast<std::uintptr_t>(all.emplace_back(pool.allocate(bytes)).data());
  };
  EXPECT_EQ(take(8192 + 512), two_wide);
  EXPECT_EQ(take(3 * 8192), three_wide);
  EXPECT_EQ(take(8192 - 512), two_wide + 8192 + 512) << "what is left of the first";
  EXPECT_EQ(take(8192), as_wide) << "the older handle's";
  EXPECT_EQ(take(4096), one_wide);
  EXPECT_EQ(take(512), one_wide + 4096) << "what is left of it";
}

TEST(a_pool, is_read_in_place_by_the_devices_that_were_named) {
  test::machine m(small());
  share_pool pool({.on = 0, .readers = {1}});
  exportable_buffer const b = pool.allocate(4000);
  write(b.data(), test::pattern(4000, 5));
  buffer const mine(4000, {.on = 1});
  stream const s(device(1));
  auto* const to = mine.data<std::byte>();
  auto const* const from = b.data<std::byte>();
  parallel_for(s, 4000, {reads(from, 4000), writes(to, 4000)}, [to, from](std::size_t i) { to[i] = from[i]; });
  s.synchronize();
  EXPECT_EQ(test::read_back(mine.data(), 4000, 1), test::pattern(4000, 5));
}

// Lifetime --------------------------------------------------------------------------------------------------

TEST(a_buffer_of_a_pool, serves_no_other_while_an_importer_has_it) {
  test::machine m(small());
  auto [here, there] = lines();
  share_pool pool({.handle_bytes = 2_MiB});
  auto b = std::make_optional(pool.allocate(1_MiB));
  exportable_buffer const beside = pool.allocate(1_MiB);
  void const* const at = b->data();
  write(b->data(), test::pattern(some_bytes, 1));
  here.send(*b, default_stream(0));
  b.reset();
  EXPECT_NE(pool.allocate(1_MiB).data(), at) << "it is on its way";
  auto o = there.receive();
  EXPECT_NE(pool.allocate(1_MiB).data(), at) << "it is open";
  EXPECT_EQ(read(o.data()), test::pattern(some_bytes, 1));
  EXPECT_EQ(pool.statistics().held, 1_MiB);
  o.release(default_stream(0));
  EXPECT_EQ(pool.statistics().held, 0u);
  EXPECT_EQ(pool.allocate(1_MiB).data(), at);
  expect_sums(pool);
}

TEST(a_buffer_of_a_pool, serves_the_next_when_its_streams_are_done) {
  test::machine m(small());
  share_pool pool({.handle_bytes = 2_MiB});
  stream const s(device(0));
  auto b = std::make_optional(pool.allocate(2_MiB));
  void const* const at = b->data();
  b->record_stream(s);
  test::held gate(m, s);
  b.reset();
  EXPECT_NE(pool.allocate(2_MiB).data(), at);
  gate.open();
  s.synchronize();
  EXPECT_EQ(pool.allocate(2_MiB).data(), at);
}

TEST(a_pool, keeps_what_is_mapped_elsewhere_with_its_handle) {
  test::machine m(small());
  auto [here, there] = lines();
  auto& imports = m.get().part<peer::imports>();
  share_pool pool;
  std::ptrdiff_t apart = 0;  // between the two mappings
  for (int i = 0; i < 100; ++i) {
    exportable_buffer const b = pool.allocate(some_bytes);
    here.send(b, default_stream(0));
    auto const o = there.receive();
    EXPECT_EQ(imports.mapped(), 1u);
    auto const now = o.data<std::byte>() - b.data<std::byte>();
    EXPECT_EQ(i ? apart : now, now) << i;
    apart = now;
  }
  EXPECT_EQ(pool.statistics().cached, pool.statistics().reserved) << "all came back";
  exportable_buffer const other(some_bytes);
  here.send(other, default_stream(0));
  (void)there.receive();
  EXPECT_EQ(imports.mapped(), 2u) << "the pool has its handle";
  EXPECT_GT(pool.trim(), 0u);
  EXPECT_EQ(pool.statistics().reserved, 0u);
  here.send(other, default_stream(0));
  (void)there.receive();
  EXPECT_EQ(imports.mapped(), 1u) << "it has it no more";
}

WEIR_ROLE(opens_two_and_is_killed) {
  test::machine m(small());
  auto const a = line.receive();
  auto b = line.receive();
  b.release(default_stream(0));
  line.signal(1, default_stream(0));
  (void)line.wait();
}

// Until the last buffer in the same handle goes.
TEST(a_pool, loses_a_killed_importers_part_for_a_while) {
  test::machine m(small());
  synchronize(0);
  auto const before = m.driver().memory(0).value.free;
  test::other_process other("opens_two_and_is_killed");
  share_pool pool({.handle_bytes = 4_MiB});
  auto a = std::make_optional(pool.allocate(1_MiB)), b = std::make_optional(pool.allocate(1_MiB)),
       stays = std::make_optional(pool.allocate(1_MiB));
  void const* const was[] = {a->data(), b->data()};
  other.line().send(*a, default_stream(0));
  other.line().send(*b, default_stream(0));
  EXPECT_EQ(other.line().wait(), 1u);
  a.reset();
  b.reset();
  other.kill();
  EXPECT_EQ(pool.statistics().lost, 1_MiB);
  auto const next = pool.allocate(1_MiB);
  EXPECT_NE(next.data(), was[0]);
  EXPECT_NE(next.data(), was[1]) << "its handle serves no new block";
  EXPECT_EQ(pool.statistics().handles, 2u);
  expect_sums(pool);
  stays.reset();
  EXPECT_EQ(pool.statistics().handles, 1u);
  EXPECT_EQ(pool.statistics().lost, 0u);
  m.get().part<peer::exports>().forget_idle();
  EXPECT_EQ(m.driver().memory(0).value.free, before - 4_MiB) << "the driver has it";
}

// The pool's memory is reusable after them.
TEST(buffers, outlive_their_pool) {
  test::machine m(small());
  auto [here, there] = lines();
  std::optional<exportable_buffer> b;
  {
    share_pool pool({.handle_bytes = 2_MiB});
    b = pool.allocate(some_bytes);
  }
  void const* const at = b->data();
  write(b->data(), test::pattern(some_bytes, 3));
  here.send(*b, default_stream(0));
  b.reset();
  EXPECT_NE(exportable_buffer(2_MiB).data(), at) << "it is on its way";
  EXPECT_EQ(read(there.receive().data()), test::pattern(some_bytes, 3));
  EXPECT_EQ(exportable_buffer(2_MiB).data(), at);
}

TEST(a_pool, and_its_buffers_do_nothing_after_their_runtime) {
  auto m = std::make_unique<test::machine>(small());
  share_pool pool;
  auto a = std::make_optional(pool.allocate(some_bytes)), b = std::make_optional(pool.allocate(some_bytes));
  a.reset();
  m.reset();
  EXPECT_EQ(b->data(), nullptr);
  EXPECT_EQ(pool.statistics().reserved, 0u);
  EXPECT_EQ(pool.trim(), 0u);
  test::machine again(small());
  EXPECT_THROW((void)pool.allocate(1), invalid_use);
  try {
    b->record_stream(default_stream(0));
    ADD_FAILURE() << "a mark of memory that is gone";
  } catch (invalid_use const& e) {
    EXPECT_NE(std::string(e.what()).find("an empty buffer"), std::string::npos) << e.what();
  }
  b.reset();
}

// Limits ----------------------------------------------------------------------------------------------------

TEST(a_pool, holds_no_more_than_its_limit) {
  test::machine m(small());
  share_pool pool({.handle_bytes = 4_MiB, .limit = 6_MiB});
  auto a = std::make_optional(pool.allocate(4_MiB));
  exportable_buffer const b = pool.allocate(2_MiB);
  try {
    (void)pool.allocate(1);
    ADD_FAILURE() << "taken";
  } catch (out_of_memory const& e) {
    EXPECT_EQ(e.report().pool.limit, 6_MiB);
    EXPECT_EQ(e.report().pool.reserved, 6_MiB);
    EXPECT_EQ(e.report().pool.allocated, 6_MiB);
    EXPECT_EQ(e.report().pool.blocks, 2);
    EXPECT_EQ(e.report().requested, 1u);
  }
  EXPECT_EQ(memory_stats(0).num_ooms, 1u);
  a.reset();
  EXPECT_EQ(pool.allocate(1).size(), 1u);
  expect_sums(pool);
}

simulated seeded(std::uint64_t seed, std::size_t memory) {
  return {.devices = 2, .memory = memory, .schedule = simulated::scheduling::seeded, .seed = seed};
}

void work_on(exportable_buffer const& b, stream_ref s) {
  b.record_stream(s);
  auto* const at = b.data<std::byte>();
  for (int i = 0; i < 3; ++i)
    parallel_for(s, 64, {writes(at, 64)}, [at](std::size_t k) { at[k] = std::byte{1}; });
}

// Before it refuses, the pool waits for this process's own work, as the device's allocator does.
TEST(a_pool, waits_for_work_on_returned_memory_first) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    test::machine m(seeded(seed, 64_MiB));
    share_pool pool({.handle_bytes = 2_MiB, .limit = 4_MiB});
    stream const s(device(0)), t(device(0));
    for (int i = 0; i < 4; ++i) {
      exportable_buffer const a = pool.allocate(s, 2_MiB), b = pool.allocate(t, 1_MiB), c = pool.allocate(s, 1_MiB);
      for (auto const* one : {&a, &b, &c})
        work_on(*one, i % 2 ? s : t);
    }
    exportable_buffer const first = pool.allocate(2_MiB), second = pool.allocate(2_MiB);
    EXPECT_THROW((void)pool.allocate(1), out_of_memory) << "these live";
    expect_sums(pool);
  }
}

TEST(shared_memory, pending_work_is_no_reason_to_refuse_others) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    test::machine m(seeded(seed, 8_MiB));
    stream const s(device(0));
    share_pool pool({.handle_bytes = 2_MiB}), other({.handle_bytes = 2_MiB});
    { work_on(exportable_buffer(5_MiB), s); }
    { work_on(exportable_buffer(7_MiB), s); }
    { work_on(pool.allocate(5_MiB), s); }
    { work_on(other.allocate(7_MiB), s); }
    { work_on(other.allocate(5_MiB), s); }
    EXPECT_EQ(pool.allocate(7_MiB).size(), 7_MiB);
  }
}

// The allocator waits before it refuses. A stream runs only when the host waits for it.
TEST(shared_memory, waits_for_work_on_a_pools_memory_first) {
  test::machine m({.devices = 1, .memory = 8_MiB, .schedule = simulated::scheduling::stepped});
  stream const s(device(0));
  share_pool pool({.handle_bytes = 2_MiB});
  { work_on(pool.allocate(5_MiB), s); }
  EXPECT_EQ(exportable_buffer(7_MiB).size(), 7_MiB);
}

TEST(a_handle_of_a_pool, notes_no_uses_of_blocks_that_are_free) {
  test::machine m(small());
  share_pool pool;
  auto const books = m.get().part<peer::exports>().pools().at(0);
  auto block =
      peer::shared_pool::allocate(books, streams::clock_of(default_stream(0)), 1000, source_location::current());
  auto const handle = block->within;
  peer::exports::give_back(std::move(block));
  EXPECT_EQ(pool.statistics().held, 0u);
  EXPECT_EQ(handle->last_uses.size(), 0u) << "a pool that lives long would note more and more";
}

TEST(a_pool, waits_for_no_other_process_no_lost_device_and_no_rank) {
  {
    test::machine m(small());
    auto [here, there] = lines();
    share_pool pool({.handle_bytes = 2_MiB, .limit = 2_MiB});
    stream const s(device(0));
    auto b = std::make_optional(pool.allocate(2_MiB));
    here.send(*b, default_stream(0));
    auto const open = there.receive();
    b->record_stream(s);
    test::held gate(m, s);
    b.reset();
    EXPECT_THROW((void)pool.allocate(1), out_of_memory)
        << "it is open elsewhere: to wait for the stream would not help";
  }
  {
    test::machine m(small());
    share_pool pool({.handle_bytes = 2_MiB, .limit = 2_MiB});
    stream const s(device(0));
    test::held gate(m, s);
    { work_on(pool.allocate(2_MiB), s); }
    m.control().lose_device(0);
    EXPECT_ANY_THROW((void)pool.allocate(s, 1));
  }
  test::machine m(seeded(3, 64_MiB));
  auto ranks = communicator::create_all(std::vector<device>{device(0), device(1)});
  share_pool pool({.on = 0, .handle_bytes = 2_MiB, .limit = 2_MiB});
  buffer const there(64, {.on = device(1)});
  {
    exportable_buffer const b = pool.allocate(64);
    ranks[0].all_reduce({b.data(), 16, float32});
    b.record_stream(current_stream(device(0)));
    work_on(b, current_stream(device(0)));
  }
  EXPECT_THROW((void)pool.allocate(2_MiB), out_of_memory) << "the other rank may be this very thread's";
  ranks[1].all_reduce({there.data(), 16, float32});
  EXPECT_EQ(pool.allocate(2_MiB).size(), 2_MiB);
}

// An allocation that runs short gets the pool's free memory.
TEST(a_pool, takes_less_where_less_is_left) {
  test::machine m({.devices = 1, .memory = 16_MiB});
  share_pool pool;  // otherwise it would take 32 MiB at once
  { exportable_buffer const b = pool.allocate(9_MiB); }
  EXPECT_EQ(pool.statistics().reserved, 10_MiB);
  buffer const large(14_MiB);
  EXPECT_EQ(pool.statistics().reserved, 0u);
  EXPECT_THROW((void)pool.allocate(9_MiB), out_of_memory);
  EXPECT_EQ(pool.statistics().reserved, 0u);
}

// A search takes its own failed growth for no news.
TEST(a_pool, asks_a_full_device_a_few_times) {
  test::machine m({.devices = 1, .memory = 16_MiB});
  share_pool pool;
  buffer const large(14_MiB);
  auto const one_too_many = m.control().fail_call("create_shared", 10, driver::code::failed);
  EXPECT_THROW((void)pool.allocate(9_MiB), out_of_memory);
  EXPECT_TRUE(m.control().cancel_failure(one_too_many)) << "the tenth call was made";
}

TEST(a_pool, shows_its_buffers_in_a_snapshot) {
  test::machine m(small());
  share_pool pool({.handle_bytes = 2_MiB});
  auto a = std::make_optional(pool.allocate(1000));
  exportable_buffer const b = pool.allocate(2000);
  a.reset();
  auto const all = memory_snapshot(0);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].shared, memory_sharing::exported);
  ASSERT_EQ(all[0].blocks.size(), 3u);
  EXPECT_EQ(all[0].blocks[0].state, block_state::inactive);
  EXPECT_EQ(all[0].blocks[1].requested, 2000u);
  EXPECT_EQ(all[0].blocks[1].bytes, 2048u);
  EXPECT_EQ(memory_stats(0).exported_bytes.current, std::int64_t(2_MiB));
}

TEST(a_pool, refuses_impossible_requests) {
  test::machine m(small());
  share_pool pool({.on = 0});
  EXPECT_THROW((void)pool.allocate(0), invalid_use);
  EXPECT_THROW((void)pool.allocate(~std::size_t{0}), out_of_memory);
  EXPECT_THROW((void)pool.allocate(65_MiB), out_of_memory);
  EXPECT_THROW((void)pool.allocate(default_stream(1), 5), invalid_use);
  share_pool const moved = std::move(pool);
  EXPECT_THROW((void)pool.allocate(5), invalid_use);
  EXPECT_THROW(share_pool({.on = cpu}), invalid_use);
  simulated like = small();
  like.virtual_memory = false;
  test::machine none(like);
  EXPECT_THROW(share_pool({.on = 0}), not_supported);
  like = small();
  like.peers = simulated::links::none;
  test::machine apart(like);
  EXPECT_THROW(share_pool({.on = 0, .readers = {1}}), not_supported);
}

// Random programs -------------------------------------------------------------------------------------------

// Blocks of every size are allocated, sent, opened, released and freed in any order: no buffer's bytes
// change, and the sums add up.
TEST(a_pool, keeps_all_bytes_and_its_books_in_order) {
  struct bytes_of {
    std::size_t size;
    std::uint64_t salt;
    void expect_at(void const* at) const { EXPECT_EQ(read(at, size), test::pattern(size, salt)); }
  };
  for (std::uint64_t const seed : tests::seeds("pools", tests::sanitized ? 5 : 20)) {
    SCOPED_TRACE("WEIR_TEST_SEED=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    auto const below = [&](std::size_t n) { return std::size_t(random() % n); };
    test::machine m(small());
    auto [here, there] = lines();
    share_pool pool({.handle_bytes = 2_MiB, .limit = 16_MiB});
    auto const books = m.get().part<peer::exports>().pools().at(0);
    std::vector<std::pair<exportable_buffer, bytes_of>> live;
    std::vector<std::pair<imported_buffer, bytes_of>> open;
    auto const pick = [&](auto& all) -> auto& {
      return std::swap(all[below(all.size())], all.back()), all.back();
    };
    for (int step = 0; step < 150 && !HasFailure(); ++step) {
      switch (below(6)) {
        case 0:
        case 1:
        case 2:
          try {
            bytes_of const its{1 + below(below(4) ? 5000 : std::size_t{1} << 20), seed * 1000 + std::uint64_t(step)};
            live.emplace_back(pool.allocate(its.size), its);
            write(live.back().first.data(), test::pattern(its.size, its.salt));
          } catch (out_of_memory const&) {}
          break;
        case 3:
          if (live.empty())
            break;
          pick(live).second.expect_at(live.back().first.data());
          live.pop_back();
          break;
        case 4:
          if (live.empty())
            break;
          here.send(pick(live).first, default_stream(0));
          open.emplace_back(there.receive(), live.back().second);
          break;
        default:
          if (below(20) == 0)
            pool.trim();
          if (open.empty())
            break;
          pick(open).second.expect_at(open.back().first.data());
          open.pop_back();
      }
      for (auto const& w : books->validate())
        ADD_FAILURE() << "step " << step << ": " << w;
    }
    open.clear();
    live.clear();
    EXPECT_EQ(pool.statistics().cached, pool.statistics().reserved);
    pool.trim();
    EXPECT_EQ(pool.statistics().reserved, 0u);
  }
}

TEST(threads_of_one_pool, see_their_own_messages) {
  test::machine m({.devices = 1, .memory = 64_MiB});
  share_pool pool({.handle_bytes = 2_MiB});
  std::vector<std::thread> all;
  for (int t = 0; t < 4; ++t) {
    all.emplace_back([&, t] {
      runtime_guard const in(m.own);
      auto [here, there] = lines();
      stream const s;
      for (int round = 0; round < 30; ++round) {
        auto const salt = std::uint64_t(t * 100 + round);
        exportable_buffer b = pool.allocate(s, 20'000);
        auto const bytes = test::pattern(20'000, salt);
        copy(s, b.data(), bytes.data(), bytes.size());
        here.send(b, s);
        if (round % 2)
          b.reset();
        auto o = there.receive();
        test::bytes_of_host seen(20'000);
        copy(s, seen.data(), o.data(), seen.size());
        ASSERT_EQ(seen, bytes) << "thread " << t << ", round " << round;
        if (round % 3)
          o.release(s);
      }
    });
  }
  for (auto& one : all)
    one.join();
  expect_sums(pool);
  EXPECT_EQ(pool.statistics().allocated, 0u);
  EXPECT_LE(m.get().part<peer::imports>().mapped(), pool.statistics().handles)
      << "of handles created at once, one may have served no buffer";
}

}  // namespace
}  // namespace weir
