// What the memory of each kind of pool may do: the table, and what it comes to in calls of the program.
// Threads: one.
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "runtime/memory/device/device_allocator.h"
#include "runtime/memory/device/device_memory.h"
#include "weir/copy.h"
#include "weir/graph.h"
#include "weir/observe.h"
#include "weir/pool.h"
#include "weir/sim.h"

namespace weir::rules {
namespace {

using memory::memory_pool;
using memory::pool_rules;
using kind = memory_pool::kind;

std::string said(pool_rules const& of) {
  std::string all;
  auto const add = [&](bool may, char const* what) {
    if (may)
      all += all.empty() ? what : std::string(", ") + what;
  };
  add(of.caches, "caches");
  add(of.pages_stay, "pages stay");
  add(of.places_stay, "places stay");
  add(of.captured, "captured");
  add(of.one_handle, "one handle");
  add(of.serves_rest, "serves rest");
  return all;
}

TEST(pool_rules, are_those_of_its_kind_while_it_is_awake) {
  auto const of = [](kind is) { return said(memory_pool(1, 2, is, "", 0).rules()); };
  EXPECT_EQ(of(kind::ordinary), "caches");
  EXPECT_EQ(of(kind::registered), "caches, pages stay, one handle");
  EXPECT_EQ(of(kind::graph), "pages stay, places stay, captured");
  EXPECT_EQ(of(kind::rest), "caches");
  EXPECT_EQ(of(kind::left), "serves rest");
  memory_pool pool(1, 2, kind::ordinary, "", 0);
  pool.set_asleep(true);
  EXPECT_EQ(said(pool.rules()), "pages stay");
  pool.set_asleep(false);
  EXPECT_EQ(said(pool.rules()), "caches");
}

TEST(pool_rules, say_whom_free_memory_serves) {
  memory_pool const ordinary(1, 2, kind::ordinary, "", 0), other(1, 3, kind::ordinary, "", 0),
      rest(1, 0, kind::rest, "", 0), left(1, 0, kind::left, "", 0);
  EXPECT_TRUE(ordinary.serves(ordinary) && rest.serves(rest) && left.serves(rest));
  EXPECT_FALSE(ordinary.serves(other) || ordinary.serves(rest) || rest.serves(ordinary) || left.serves(ordinary));
}

struct rules_in_use : ::testing::Test {
  runtime own{simulated{.devices = 1, .memory = 64_MiB}};
  runtime_guard in{own};
  stream s;
  memory::device_allocator& device() {
    return static_cast<memory::device_allocator&>(own.get().part<memory::device_memory>().on(0));
  }
  memory::stream_heap& heap_of(void const* p) { return *device().addresses().find(p)->owner.load(); }
  bool has_caches(void const* p) { return memory::session(heap_of(p)).has_caches(); }
  void TearDown() override { EXPECT_EQ(device().validate(), std::vector<std::string>{}); }
};

TEST_F(rules_in_use, threads_cache_nothing_of_a_graph) {
  pool const ordinary("ordinary"), registered("registered", {.limit = 4_MiB, .registered = true});
  void* const in_each[] = {ordinary.allocate(s, 100), registered.allocate(s, 100), allocate(s, 100)};
  for (void* const p : in_each) {
    EXPECT_TRUE(heap_of(p).cacheable());
    deallocate(p);
  }
  void* inside = nullptr;
  graph const g = graph::capture(s, [&] {
    inside = allocate(s, 100);
    EXPECT_FALSE(has_caches(inside));
    deallocate(inside);
  });
  EXPECT_FALSE(heap_of(inside).cacheable());
}

TEST_F(rules_in_use, threads_cache_nothing_of_pools_over_or_asleep) {
  std::optional<pool> ends(std::in_place, "ends");
  void* const left = ends->allocate(s, 100);
  ends.reset();
  EXPECT_FALSE(heap_of(left).cacheable());
  deallocate(left);
  pool sleeps("sleeps");
  void* const p = sleeps.allocate(s, 100);
  sleeps.sleep(sleep_to::nowhere);
  EXPECT_FALSE(heap_of(p).cacheable());
  sleeps.wake();
  EXPECT_TRUE(heap_of(p).cacheable());
  deallocate(p);
}

TEST_F(rules_in_use, pages_of_graphs_and_registered_pools_stay) {
  pool const registered("registered", {.limit = 4_MiB, .registered = true});
  graph const g = graph::capture(s, [&] { deallocate(allocate(s, 6_MiB)); });
  std::optional<pool> ends(std::in_place, "ends");
  deallocate(ends->allocate(s, 2_MiB));
  ends.reset();
  deallocate(allocate(s, 2_MiB));
  s.synchronize();
  empty_cache();
  EXPECT_EQ(memory_reserved(), 10_MiB) << "theirs alone";
}

TEST_F(rules_in_use, a_sleeping_pool_gives_the_driver_nothing_more) {
  pool sleeps("sleeps");
  void* const p = sleeps.allocate(s, 2_MiB);
  EXPECT_GE(sleeps.sleep(sleep_to::nowhere), 2_MiB);
  EXPECT_EQ(empty_cache(), 0u);
  sleeps.wake();
  deallocate(p);
}

TEST_F(rules_in_use, what_an_ended_pool_left_serves_the_rest) {
  set_memory_limit(8_MiB);
  stream t;
  std::optional<pool> ends(std::in_place, "ends");
  void* const kept = ends->allocate(s, 2_MiB);
  deallocate(ends->allocate(s, 6_MiB));
  s.synchronize();
  ends.reset();
  void* const p = allocate(t, 5_MiB);
  EXPECT_EQ(memory_reserved(), 8_MiB);
  deallocate(p), deallocate(kept);
}

// Of blocks of a megabyte, every second one is freed. Free memory of four lies between those in use.
TEST_F(rules_in_use, what_lies_between_blocks_serves_its_pool_alone) {
  pool const limited("limited", {.limit = 8_MiB});
  void* all[16];
  for (void*& p : all)
    p = limited.allocate(s, 512_KiB);
  set_memory_limit(memory_reserved());
  for (int i = 0; i < 16; i += 2)
    deallocate(all[i]);
  s.synchronize();
  EXPECT_THROW((void)allocate(s, 512_KiB), out_of_memory);
  all[0] = limited.allocate(s, 512_KiB);
  deallocate(all[0]);
  for (int i = 1; i < 16; i += 2)
    deallocate(all[i]);
}

TEST_F(rules_in_use, a_registered_pool_never_maps_a_second_handle) {
  pool const registered("registered", {.limit = 4_MiB, .registered = true});
  void* const small = registered.allocate(s, 100);
  void* const large = registered.allocate(s, 3_MiB);
  EXPECT_THROW((void)registered.allocate(s, 2_MiB), out_of_memory);
  std::size_t handles = 0;
  memory::session(heap_of(small)).each_handle([&](memory::handle const& h) { handles += h.bytes == 4_MiB; });
  EXPECT_EQ(handles, 1u);
  EXPECT_EQ(&heap_of(small), &heap_of(large)) << "runs lie among blocks";
  EXPECT_EQ(memory_reserved(), 4_MiB);
  deallocate(small), deallocate(large);
}

}  // namespace
}  // namespace weir::rules
