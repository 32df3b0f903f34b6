// Registered pools among ranks that are threads: sums in them, what differs between ranks, and when they end.
#include <optional>

#include "runtime/core/parts.h"
#include "runtime/memory/device/device_memory.h"
#include "tests/peer/ranks.h"
#include "weir/observe.h"
#include "weir/pool.h"
#include "weir/sim.h"

namespace {

using namespace weir;
using namespace weir::test;

pool of_rank(int device, size_t limit = 4_MiB) {
  return pool("of rank " + std::to_string(device), {.on = weir::device(device), .limit = limit, .registered = true});
}

struct registered_ranks : ::testing::Test {
  runtime own{simulated{.devices = 2, .memory = 64_MiB}};
  runtime_guard in{own};
  std::vector<communicator> ranks = communicator::create_all(first_devices(2));
  ~registered_ranks() override {
    ranks.clear();
    EXPECT_EQ(simulation::of(own).findings(), std::vector<std::string>{});
  }
  size_t reserved(int device) {
    return static_cast<size_t>(memory_stats(weir::device(device)).reserved_bytes.all.current);
  }
};

TEST(registered_pools, serve_every_collective) {
  int const n = std::min(4, device_count());
  if (n < 2)
    GTEST_SKIP() << "one device";
  auto ranks = communicator::create_all(first_devices(n));
  on_each(runtime::current(), ranks, [&](communicator& c) {
    pool const mine = of_rank(c.device().index());
    c.register_pool(mine);
    constexpr std::int64_t count = 4099;
    auto const values = [&](int rank) {
      return encode(float32, values_of(count, [&](std::int64_t i) { return brought(float32, rank, i); }));
    };
    elements const own = values(c.rank());
    auto const block = [&](std::int64_t elements_there) {
      return mine.allocate(static_cast<size_t>(elements_there) * 4);
    };
    void* const sum = block(count);
    void* const all = block(count * n);
    for (int round = 0; round < 3; ++round) {
      copy(sum, own.data(), own.size());
      c.all_reduce({sum, count, float32});
      EXPECT_EQ(to_host(sum, own.size()), encode(float32, values_of(count, [&](std::int64_t i) {
                                                   return weir::test::reduced(float32, reduce_op::sum, n, i);
                                                 })));
      auto* const part = static_cast<std::byte*>(all) + own.size() * static_cast<size_t>(c.rank());  // in place
      copy(part, own.data(), own.size());
      c.all_gather({all, count * n, float32}, {part, count, float32});
      for (int r = 0; r < n; ++r)
        EXPECT_EQ(to_host(static_cast<std::byte*>(all) + own.size() * static_cast<size_t>(r), own.size()), values(r));
      c.reduce_scatter({part, count, float32}, {all, count * n, float32});
      c.broadcast({sum, count, float32}, 1);
      c.gather({all, count * n, float32}, {sum, count, float32}, 1);
      c.scatter({sum, count, float32}, {all, count * n, float32}, 1);
    }
    synchronize();
    deallocate(sum), deallocate(all);
    c.barrier();
  });
}

// From 32 MiB on, sums of float32 take other kernels of NCCL.
TEST(registered_pools, reduce_large_blocks_exactly) {
  int const n = std::min(4, device_count());
  if (n < 2)
    GTEST_SKIP() << "one device";
  auto ranks = communicator::create_all(first_devices(n));
  on_each(runtime::current(), ranks, [&](communicator& c) {
    auto const many = static_cast<std::size_t>(n);
    std::size_t const part = (std::size_t{8} << 20) / many + 1, all = part * many;
    pool const mine = of_rank(c.device().index(), 64_MiB);
    c.register_pool(mine);
    auto* const block = static_cast<float*>(mine.allocate(all * 4));
    auto const value = [](int rank, std::size_t i) {
      return static_cast<float>(rank * 3 + 1) * static_cast<float>(i % 1021);
    };
    std::vector<float> own(all), sum(all), seen(all);
    for (std::size_t i = 0; i < all; ++i) {
      own[i] = value(c.rank(), i);
      for (int r = 0; r < n; ++r)
        sum[i] += value(r, i);
    }
    auto const came = [&](float const* from, std::size_t count) {
      copy(seen.data(), from, count * 4);
      return seen.data();
    };
    auto const count = static_cast<std::int64_t>(all);
    copy(block, own.data(), all * 4);
    c.all_reduce({block, count, float32});
    EXPECT_EQ(std::memcmp(came(block, all), sum.data(), all * 4), 0);
    c.all_reduce({block, count, float32}, reduce_op::average);  // of what is equal
    EXPECT_EQ(std::memcmp(came(block, all), sum.data(), all * 4), 0);
    copy(block, own.data(), all * 4);
    std::size_t const here = part * static_cast<std::size_t>(c.rank());  // in place
    c.reduce_scatter({block + here, count / n, float32}, {block, count, float32});
    EXPECT_EQ(std::memcmp(came(block + here, part), sum.data() + here, part * 4), 0);
    synchronize();
    deallocate(block);
    c.barrier();
  });
}

// Memory outside on all ranks is served as before.
TEST_F(registered_ranks, use_other_memory_too) {
  on_each(own, ranks, [&](communicator& c) {
    pool const mine = of_rank(c.device().index());
    c.register_pool(mine);
    buffer const b = to_device(encode(int32, {1. + c.rank()}));
    c.all_reduce({b.data(), 1, int32});
    EXPECT_EQ(to_host(b.data(), 4), encode(int32, {3}));
  });
}

TEST_F(registered_ranks, refuse_different_places_by_name) {
  std::vector<std::optional<pool>> pools(2);
  for (int r = 0; r < 2; ++r) {
    pools[static_cast<size_t>(r)].emplace(of_rank(r));
    ranks[static_cast<size_t>(r)].register_pool(*pools[static_cast<size_t>(r)]);
  }
  auto const said_of = [&](void* first, void* second) {
    ranks[0].all_reduce({first, 4, int32});
    std::string const why = refusal<invalid_use>([&] { ranks[1].all_reduce({second, 4, int32}); });
    return why;
  };
  device_guard zero(0);
  void* const first = pools[0]->allocate(16);
  void* const later = pools[0]->allocate(64_KiB);
  device_guard one(1);
  void* const its = pools[1]->allocate(16);
  void* const outside = allocate(16);
  std::string why = said_of(later, its);
  EXPECT_NE(why.find("rank 1 calls all_reduce of 4 int32 (sum), at byte "), std::string::npos) << why;
  EXPECT_NE(why.find(" of registered pool 1 where rank 0 called all_reduce of 4 int32 (sum), at byte "),
            std::string::npos)
      << why;
  why = refusal<invalid_use>([&] { ranks[1].all_reduce({outside, 4, int32}); });
  EXPECT_NE(why.find("rank 1 calls all_reduce of 4 int32 (sum) where rank 0 called"), std::string::npos) << why;
  ranks.clear();  // ends the collective that is open
  for (void* const p : {first, later, its, outside})
    deallocate(p);
}

TEST_F(registered_ranks, refuse_mixed_registration_by_name) {
  pool const zero = of_rank(0), smaller = of_rank(1, 2_MiB);
  ranks[0].register_pool(zero);
  std::string why = refusal<invalid_use>([&] { ranks[1].register_pool(smaller); });
  EXPECT_NE(why.find("rank 1 calls register_pool of 2097152 B where rank 0 called register_pool of 4194304 B"),
            std::string::npos)
      << why;
  device_guard const on(1);
  buffer const b(4);
  why = refusal<invalid_use>([&] { ranks[1].all_reduce({b.data(), 1, int32}); });
  EXPECT_NE(why.find("where rank 0 called register_pool"), std::string::npos) << why;
  pool const one = of_rank(1);
  ranks[1].register_pool(one);  // nothing had changed
}

TEST_F(registered_ranks, refuse_pools_that_are_not_fit) {
  pool const ordinary("activations", {.on = 0}), other = of_rank(1), mine = of_rank(0);
  auto const why = [&](pool const& p) { return refusal<invalid_use>([&] { ranks[0].register_pool(p); }); };
  EXPECT_NE(why(ordinary).find("pool activations is an ordinary pool"), std::string::npos);
  EXPECT_NE(why(other).find("pool of rank 1 of gpu:1, the rank's device is gpu:0"), std::string::npos);
  {
    runtime elsewhere(simulated{.devices = 1, .memory = 64_MiB});
    runtime_guard const there(elsewhere);
    pool const foreign = of_rank(0);
    EXPECT_NE(why(foreign).find(" is of another runtime"), std::string::npos);
  }
  ranks[0].register_pool(mine);
  EXPECT_NE(why(mine).find("is registered already"), std::string::npos);
  ranks[1].register_pool(other);
  pool taken = of_rank(0), moved(std::move(taken));
  EXPECT_FALSE(why(taken).empty());
}

// The number of a pool has eight bits in a collective's place, and 0 says that memory lies in none.
TEST(registered_pools, count_to_255_and_refuse_one_more) {
  runtime own{simulated{.devices = 2, .memory = 1_GiB}};
  runtime_guard const in{own};
  auto ranks = communicator::create_all(first_devices(2));
  std::vector<pool> pools;
  for (int n = 0; n < 255; ++n) {
    for (int r = 0; r < 2; ++r)
      ranks[static_cast<size_t>(r)].register_pool(pools.emplace_back(of_rank(r, 2_MiB)));
  }
  pool const more = of_rank(1, 2_MiB);
  std::string why = refusal<invalid_use>([&] { ranks[1].register_pool(more); });
  EXPECT_NE(why.find("rank 1: pool of rank 1 is one more than 255"), std::string::npos) << why;
  pool const &last = pools[508], &before_last = pools[507];
  void* const one = last.allocate(16);
  void* const other = (device_guard(1), before_last.allocate(16));
  ranks[0].all_reduce({one, 4, int32});
  why = refusal<invalid_use>([&] { ranks[1].all_reduce({other, 4, int32}); });
  EXPECT_NE(why.find(" of registered pool 254 where rank 0 "), std::string::npos) << why;
  EXPECT_NE(why.find(" of registered pool 255"), std::string::npos) << why;
  ranks.clear();  // ends the collective that is open
  deallocate(one), deallocate(other);
}

TEST_F(registered_ranks, keep_memory_until_they_leave) {
  size_t const before = reserved(0);
  void* block = nullptr;
  {
    pool const zero = of_rank(0), one = of_rank(1);
    ranks[0].register_pool(zero), ranks[1].register_pool(one);
    device_guard const on(0);
    block = zero.allocate(1_MiB);
  }
  deallocate(block);
  synchronize(weir::device(0));
  (void)empty_cache(weir::device(0));
  EXPECT_EQ(reserved(0), before + 4_MiB) << "peers may use it";
  ranks.clear();
  (void)empty_cache(weir::device(0));
  EXPECT_EQ(reserved(0), before);
}

// As a guard of any pool that ended. The communicator keeps the memory.
TEST_F(registered_ranks, take_no_more_under_a_guard_of_an_ended_pool) {
  device_guard const on(0);
  std::optional<pool> zero(of_rank(0));
  pool const one = of_rank(1);
  ranks[0].register_pool(*zero), ranks[1].register_pool(one);
  auto const held = [] { return memory_by_pool(weir::device(0)).at(0).blocks; };
  pool_guard const here(*zero);
  std::vector<buffer> all;
  for (size_t const bytes : {size_t{100}, size_t{100}, 1_MiB})
    all.emplace_back(bytes);
  ASSERT_EQ(held(), 3);
  buffer(100), buffer(1_MiB);  // the thread remembers where
  zero.reset();
  for (size_t const bytes : {size_t{100}, 1_MiB})
    all.emplace_back(bytes);
  EXPECT_EQ(held(), 3);
  all.clear();
  ASSERT_EQ(memory_by_pool(weir::device(0)).size(), 1u);
  EXPECT_EQ(held(), 0);
}

TEST_F(registered_ranks, leave_a_pool_that_lives_on) {
  pool const zero = of_rank(0), one = of_rank(1);
  for (int round = 0; round < 2; ++round) {
    auto again = communicator::create_all(first_devices(2));
    again[0].register_pool(zero), again[1].register_pool(one);
  }
  device_guard const on(0);
  deallocate(zero.allocate(3_MiB));
  EXPECT_EQ(memory_by_pool(weir::device(0)).size(), 1u);
}

TEST_F(registered_ranks, do_not_wait_after_an_abort) {
  pool const zero = of_rank(0);
  ranks[1].abort();
  EXPECT_NE(refusal<driver_error>([&] { ranks[0].register_pool(zero); }).find("rank 1 aborted"), std::string::npos);
}

TEST(registered_communicator, outlives_its_runtime_with_its_pools) {
  std::vector<communicator> ranks;
  std::optional<pool> zero, one;
  {
    runtime own(simulated{.devices = 2, .memory = 64_MiB});
    runtime_guard const in(own);
    ranks = communicator::create_all(first_devices(2));
    zero.emplace(of_rank(0)), one.emplace(of_rank(1));
    ranks[0].register_pool(*zero), ranks[1].register_pool(*one);
  }
  EXPECT_THROW(ranks[0].register_pool(*zero), invalid_use);
}

TEST_F(registered_ranks, train_in_buckets_of_their_own) {
  on_each(own, ranks, [&](communicator& c) {
    gradient_buckets shared(c, {.average = false, .registered = true});
    int const a = shared.add("a", 1000), b = shared.add("b", 70'000);
    shared.build();
    for (int step = 0; step < 3; ++step) {
      for (int const i : {b, a}) {
        device_span const g = shared.gradient(i);
        auto const values = values_of(g.count, [&](std::int64_t k) { return brought(float32, c.rank(), k); });
        elements const host = encode(float32, values);
        copy(g.data, host.data(), host.size());
        shared.mark_ready(i, current_stream());
      }
      shared.finish(current_stream());
      device_span const g = shared.gradient(b);
      auto const sums =
          values_of(g.count, [&](std::int64_t k) { return weir::test::reduced(float32, reduce_op::sum, 2, k); });
      EXPECT_EQ(to_host(g.data, static_cast<size_t>(g.count) * 4), encode(float32, sums));
    }
    auto const pools = memory_by_pool(c.device());
    ASSERT_EQ(pools.size(), 1u);
    EXPECT_EQ(pools[0].name, "gradient_buckets of rank " + std::to_string(c.rank()));
    EXPECT_EQ(pools[0].blocks, 1);
  });
}

// A registration keeps its memory, so what may fail comes before it.
TEST_F(registered_ranks, give_buckets_back_that_were_not_filled) {
  size_t const before = reserved(0);
  auto const build = [](communicator& c) {
    device_guard const on(c.device());
    gradient_buckets shared(c, {.registered = true});
    shared.add("a", 1000);
    shared.build();
  };
  simulation::of(own).fail_call("fill", 1);
  EXPECT_THROW(build(ranks[0]), driver_error);
  (void)empty_cache(weir::device(0));
  EXPECT_EQ(reserved(0), before);
  EXPECT_EQ(memory_by_pool(weir::device(0)).size(), 0u);
  for (communicator& c : ranks)
    build(c);
  EXPECT_GT(reserved(0), before) << "registered";
  synchronize(weir::device(0));
  ranks.clear();
  (void)empty_cache(weir::device(0));
  EXPECT_EQ(reserved(0), before);
}

}  // namespace
