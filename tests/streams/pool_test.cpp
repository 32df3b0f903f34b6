// Pools: which blocks are theirs, their limits, what is free in them, and their end.
// Threads: one, but where a test says so.
#include "weir/pool.h"

#include <gtest/gtest.h>

#include <fstream>
#include <optional>
#include <sstream>
#include <thread>

#include "runtime/memory/device/device_memory.h"
#include "streams/stream/context.h"
#include "weir/observe.h"
#include "weir/sim.h"

namespace weir {
namespace {

struct pools : ::testing::Test {
  runtime own{simulated{.devices = 2, .memory = 64_MiB}};
  runtime_guard in{own};
  memory::allocator& device() { return own.get().part<memory::device_memory>().on(0); }
  ~pools() override { sound(); }
  void sound() { EXPECT_EQ(device().validate(), std::vector<std::string>{}); }
  static memory_report refusal_of(pool const& in, size_t bytes) {
    try {
      void* const p = in.allocate(bytes);
      ADD_FAILURE() << bytes << " B were had";
      deallocate(p);
      return {};
    } catch (out_of_memory const& e) {
      return e.report();
    }
  }
  static std::uint64_t pool_of(void const* p) {
    auto const at = reinterpret_cast<std::uintptr_t>(p);
    for (memory_segment const& s : memory_snapshot())
      if (at - s.address < s.bytes)
        return s.pool;
    return ~std::uint64_t{0};
  }
};

TEST_F(pools, a_guard_serves_its_thread_until_it_ends) {
  pool const model("model");
  for (size_t const bytes : {size_t{100}, size_t{40000}, 3_MiB}) {  // a slot, a block, pages
    void *inside = nullptr, *elsewhere = nullptr;
    {
      pool_guard const here(model);
      inside = allocate(bytes);
      std::thread([&] {
        runtime_guard const in_it{own};
        elsewhere = allocate(bytes);
      }).join();
    }
    void* const outside = allocate(bytes);
    EXPECT_EQ(pool_of(inside), model.number());
    EXPECT_EQ(pool_of(elsewhere), 0u);
    EXPECT_EQ(pool_of(outside), 0u);
    for (void* p : {inside, elsewhere, outside})
      deallocate(p);
  }
}

// Each path without a lock: the thread's cache and the owner of the heap's lock.
TEST_F(pools, a_block_freed_outside_serves_its_pool_again) {
  pool const model("model");
  for (size_t const bytes : {size_t{100}, size_t{40000}}) {
    for (int round = 0; round < 50; ++round) {
      std::optional<pool_guard> here(std::in_place, model);
      void *const first = allocate(bytes), *const second = allocate(bytes);
      here.reset();
      deallocate(second);
      void* const outside = allocate(bytes);
      EXPECT_NE(outside, second);
      here.emplace(model);
      void* const again = allocate(bytes);
      if (round % 10 == 0) {
        EXPECT_EQ(pool_of(outside), 0u);
        EXPECT_EQ(pool_of(again), model.number());
        EXPECT_EQ(model.statistics().blocks, 2);
      }
      for (void* p : {first, again, outside})
        deallocate(p);
    }
    EXPECT_LE(model.statistics().reserved, 4_MiB) << "what was freed served again";
  }
  EXPECT_EQ(model.statistics().blocks, 0);
}

TEST_F(pools, guards_end_in_any_order) {
  pool const a("a"), b("b"), c("c");
  auto const now = [] {
    void* const p = allocate(100);
    std::uint64_t const found = pool_of(p);
    deallocate(p);
    return found;
  };
  std::optional<pool_guard> in_a(std::in_place, a), in_b(std::in_place, b), in_c(std::in_place, c);
  EXPECT_EQ(now(), c.number());
  in_b.reset();
  EXPECT_EQ(now(), c.number());
  in_c.reset();
  EXPECT_EQ(now(), a.number());
  in_b.emplace(b);
  in_a.reset();
  EXPECT_EQ(now(), b.number());
  in_b.reset();
  EXPECT_EQ(now(), 0u);
}

// Buffers of weir's own outlive the call, and must not fall asleep with the pool.
TEST_F(pools, weirs_own_blocks_lie_in_no_pool) {
  pool const model("model");
  pool_guard const here(model);
  for (size_t const bytes : {size_t{100}, 3_MiB}) {
    auto& on = *detail::stream_access::stream(current_stream());
    auto const own_block = memory::allocate_scoped(device(), on, bytes, source_location::current());
    EXPECT_EQ(pool_of(own_block.get()), 0u);
    buffer const block(bytes);
    EXPECT_EQ(pool_of(block.data()), model.number());
  }
}

TEST_F(pools, a_guard_leaves_other_devices_alone) {
  pool const a("a"), b("b", {.on = 1});
  pool_guard const in_a(a), in_b(b);
  buffer const first(100), second(100, {.on = 1});
  EXPECT_EQ(a.statistics().blocks, 1);
  EXPECT_EQ(b.statistics().blocks, 1);
  EXPECT_EQ(memory_by_pool(1).size(), 1u);
}

TEST_F(pools, more_guards_than_a_thread_remembers_still_serve) {
  std::vector<std::unique_ptr<pool>> all;
  for (int i = 0; i < 100; ++i)
    all.push_back(std::make_unique<pool>("p" + std::to_string(i)));
  for (int round = 0; round < 2; ++round) {
    for (auto const& p : all) {
      pool_guard const here(*p);
      buffer const block(64);
      ASSERT_EQ(pool_of(block.data()), p->number());
    }
  }
}

// What a thread remembers of the first pools serves later ones; what led there must be forgotten.
TEST_F(pools, an_inner_guard_serves_after_many_other_pools) {
  pool const first("first"), second("second");
  auto const nested = [](pool const& outer, pool const& inner) {
    pool_guard const out(outer), in(inner);
    buffer const b(1000);
    return pool_of(b.data());
  };
  {
    pool_guard const out(first);
    EXPECT_EQ(nested(second, first), first.number());
  }
  std::vector<std::unique_ptr<pool>> others;
  for (int i = 0; i < 40; ++i) {
    pool_guard const in_it(*others.emplace_back(std::make_unique<pool>("other")));
    deallocate(allocate(1000));
  }
  EXPECT_EQ(nested(second, first), first.number());
}

TEST_F(pools, numbers_add_up) {
  pool const model("model", {.limit = 20_MiB});
  {
    pool_guard const here(model);
    buffer const large(3_MiB), small(100);
    auto const n = model.statistics();
    EXPECT_EQ(n.name, "model");
    EXPECT_EQ(n.limit, 20_MiB);
    EXPECT_EQ(n.blocks, 2);
    EXPECT_EQ(n.allocated, 3_MiB + 112);
    EXPECT_EQ(n.reserved, n.allocated + n.pending + n.cached);
    EXPECT_EQ(n.reserved, memory_reserved());
  }
  EXPECT_EQ(model.statistics().allocated, 0u);
  EXPECT_EQ(model.statistics().cached, memory_reserved());
  empty_cache();
  auto const n = model.statistics();
  EXPECT_EQ(n.reserved, 0u);
  EXPECT_GE(n.max_reserved, 4_MiB);
  reset_peak_memory_stats();
  EXPECT_EQ(model.statistics().max_reserved, 0u);
}

TEST_F(pools, are_shown_in_summaries_snapshots_and_pages) {
  pool const model("model <1>", {.limit = 20_MiB});
  pool_guard const here(model);
  buffer const block(3_MiB);
  std::string const text = memory_summary();
  EXPECT_NE(text.find("pool model <1>: reserved 4,194,304 B = allocated 3,145,728 + pending 0 + cached 1,048,576, "
                      "peak 4,194,304, limit 20,971,520"),
            std::string::npos)
      << text;
  std::string const path = ::testing::TempDir() + "pools_page.html";
  dump_memory_page(path);
  std::stringstream page;
  page << std::ifstream(path).rdbuf();
  EXPECT_NE(page.str().find(R"("pools":[["model \u003c1\u003e",3145728,4194304,20971520]])"), std::string::npos);
}

TEST_F(pools, a_limit_is_named_with_what_is_live) {
  pool model("model", {.limit = 6_MiB});
  record_memory_history();
  pool_guard const here(model);
  buffer const held(3_MiB);
  int const line = __LINE__ - 1;
  auto const why = refusal_of(model, 4_MiB);
  stop_memory_history();
  EXPECT_EQ(why.cause, memory_cause::pool_limit) << why.text();
  EXPECT_EQ(why.pool.name, "model");
  EXPECT_EQ(why.pool.limit, 6_MiB);
  EXPECT_EQ(why.pool.allocated, 3_MiB);
  EXPECT_NE(why.text().find("in pool model"), std::string::npos) << why.text();
  EXPECT_NE(why.text().find("pool::set_limit"), std::string::npos) << why.text();
  ASSERT_EQ(why.holders.size(), 1u);
  EXPECT_EQ(why.holders.front().where.line(), static_cast<unsigned>(line));
  EXPECT_EQ(refusal_of(model, 7_MiB).cause, memory_cause::pool_limit) << "it can never fit";
  model.set_limit(8_MiB);
  buffer const now(4_MiB);
  EXPECT_LE(model.statistics().reserved, 8_MiB);
}

// A limit forbids no memory that lies free in the pool, on whichever stream.
TEST_F(pools, a_full_pool_moves_its_own_pages) {
  pool const model("model", {.limit = 4_MiB});
  stream const first, second;
  deallocate(model.allocate(first.ref(), 4_MiB));
  first.synchronize();
  void* const p = model.allocate(second.ref(), 4_MiB);
  EXPECT_EQ(model.statistics().reserved, 4_MiB);
  deallocate(p);
}

TEST_F(pools, a_full_pool_takes_nothing_from_others) {
  pool const model("model", {.limit = 4_MiB});
  buffer const held = [&] {
    pool_guard const here(model);
    return buffer(3_MiB);
  }();
  { buffer const idle(16_MiB); }
  size_t const before = memory_reserved();
  EXPECT_EQ(refusal_of(model, 3_MiB).cause, memory_cause::pool_limit);
  EXPECT_EQ(memory_reserved(), before) << "the rest of the device keeps its pages";
}

TEST_F(pools, free_pages_serve_the_whole_device) {
  set_memory_limit(8_MiB);
  pool const model("model"), other("other");
  deallocate(model.allocate(8_MiB));
  EXPECT_EQ(model.statistics().reserved, 8_MiB);
  { buffer const rest(8_MiB); }
  EXPECT_EQ(model.statistics().reserved, 0u);
  void* const p = other.allocate(8_MiB);
  EXPECT_EQ(other.statistics().reserved, 8_MiB);
  deallocate(p);
}

TEST_F(pools, empty_cache_works_while_pools_live) {
  pool const model("model");
  void* const p = model.allocate(2_MiB);
  deallocate(model.allocate(8_MiB));
  EXPECT_GE(empty_cache(), 8_MiB);
  EXPECT_EQ(memory_reserved(), 2_MiB);
  deallocate(p);
}

TEST_F(pools, blocks_outlive_their_pool) {
  void *large = nullptr, *small = nullptr;
  {
    pool const model("model");
    large = model.allocate(3_MiB), small = model.allocate(100);
  }
  EXPECT_TRUE(find_block(large));
  auto const left = memory_by_pool();
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left.front().name, "pools that ended");
  EXPECT_EQ(left.front().blocks, 2);
  sound();
  deallocate(large), deallocate(small);
  sound();
  size_t const before = memory_reserved();
  pool const next("next");
  void* const p = next.allocate(3_MiB);
  EXPECT_EQ(p, large) << "the next pool has what is left";
  EXPECT_EQ(memory_reserved(), before);
  deallocate(p);
  EXPECT_EQ(memory_by_pool().size(), 1u);
}

TEST_F(pools, a_guard_outlives_its_pool) {
  std::optional<pool> model(std::in_place, "model");
  pool_guard const here(*model);
  buffer const before(100);
  model.reset();
  for (size_t const bytes : {size_t{100}, size_t{40000}, 3_MiB}) {
    buffer const block(bytes);
    EXPECT_EQ(pool_of(block.data()), 0u);
    auto const left = memory_by_pool();
    ASSERT_EQ(left.size(), 1u);
    EXPECT_EQ(left.front().blocks, 1) << "the block from before, and no more";
  }
}

// Regression: after the inner pool's end allocations went to no pool.
TEST_F(pools, an_inner_pool_that_ends_leaves_the_outer_in_force) {
  pool outer("outer");
  pool_guard const first(outer);
  for (int round = 0; round < 2; ++round) {
    auto middle = std::make_unique<pool>("middle"), inner = std::make_unique<pool>("inner");
    pool_guard const second(*middle);
    pool_guard const third(*inner);
    auto const serves = [](pool const& p) {
      for (size_t const bytes : {size_t{100}, size_t{40000}, 3_MiB}) {
        for (int i = 0; i < 3; ++i) {  // a miss, and hits
          void* const q = allocate(bytes);
          EXPECT_EQ(pool_of(q), p.number()) << bytes << " B for pool " << p.name();
          deallocate(q);
        }
      }
    };
    serves(*inner);
    if (round == 0)
      middle.reset(), serves(*inner);
    inner.reset();
    serves(round == 0 ? outer : *middle);
    middle.reset();
    serves(outer);
    pool_guard const again(outer);
    serves(outer);
  }
  EXPECT_EQ(pool_of(allocate(100)), outer.number());
  { pool const gone(std::move(outer)); }
  void* const p = allocate(1_MiB);
  EXPECT_EQ(pool_of(p), 0u) << "no pool is left";
  deallocate(p);
}

TEST_F(pools, are_told_by_name_when_misused) {
  EXPECT_THROW(pool(""), invalid_use);
  EXPECT_THROW(pool("p", {.on = cpu}), invalid_use);
  pool first("first");
  stream const there(weir::device(1));
  EXPECT_THROW((void)first.allocate(there.ref(), 100), invalid_use);
  pool const second(std::move(first));
  EXPECT_THROW(pool_guard{first}, invalid_use);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(second.name(), "first");
}

TEST(pools_of_runtimes, end_after_their_runtime) {
  std::optional<runtime> own(std::in_place, simulated{.memory = 64_MiB});
  std::optional<pool> p;
  std::optional<pool_guard> here;
  {
    runtime_guard const in{*own};
    p.emplace("late");
    here.emplace(*p);
    deallocate(allocate(100));
  }
  own.reset();
  EXPECT_THROW((void)p->statistics(), invalid_use);
  runtime other{simulated{.memory = 64_MiB}};
  runtime_guard const in{other};
  buffer const block(100);  // the guard is still there, and of no pool
  here.reset();
  p.reset();
}

}  // namespace
}  // namespace weir
