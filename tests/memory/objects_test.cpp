// Each object of one device's memory, without the objects above it.
// Threads: one.
#include <gtest/gtest.h>

#include "runtime/memory/device/free_path.h"
#include "runtime/memory/device/graph_hold.h"
#include "runtime/memory/device/memory_audit.h"
#include "runtime/memory/device/oom_ladder.h"
#include "tests/memory/names.h"
#include "tests/support/heap_probe.h"
#include "tests/support/one_device.h"

namespace weir {
namespace {

using tests::one_device;

std::string refusal_of(std::function<void()> const& call) {
  try {
    call();
  } catch (error const& e) {
    return std::string(e.operands()) + ": " + std::string(e.remedy());
  }
  return "";
}
bool has(std::string const& text, char const* part) {
  return text.find(part) != std::string::npos;
}

TEST(alloc_request, is_rounded_to_a_slot_or_to_blocks) {
  one_device d;
  clock::stream_clock& home = d.bench.stream(0);
  memory::alloc_request const small = d.request(home, 100), large = d.request(home, 100'000, 4096);
  EXPECT_GE(small.size_class, 0);
  EXPECT_EQ(small.rounded, 112u);
  EXPECT_EQ(large.size_class, -1);
  EXPECT_EQ(large.rounded, 100'352u) << "512 B units";
  EXPECT_EQ(large.alignment, 4096u);
  EXPECT_GE(d.request(home, 0).rounded, 16u);
  memory::alloc_request const wrapped = d.request(home, ~std::size_t{0});
  EXPECT_EQ(wrapped.bytes, ~std::size_t{0}) << "as requested";
  EXPECT_EQ(wrapped.rounded, std::size_t{1} << 62) << "what no device has, and what an address can be added to";
}

TEST(alloc_request, names_what_is_wrong) {
  one_device d;
  clock::stream_clock& home = d.bench.stream(0);
  EXPECT_TRUE(has(refusal_of([&] { (void)d.request(home, 100, 3); }), "alignment of 3 B: Ask for a power of two"));
  EXPECT_TRUE(has(refusal_of([&] { (void)d.request(home, 100, 4 << 20); }), "Ask for at most 2097152 B"));
  EXPECT_TRUE(
      has(refusal_of([&] { (void)d.request(d.bench.stream(1), 100); }), "a stream of gpu:1 for memory of gpu:0"));
}

TEST(device_context, names_what_lies_at_a_wrong_address) {
  one_device d;
  void* const p = d.grown(d.bench.stream(0), 100'000);
  int local = 0;
  EXPECT_TRUE(has(refusal_of([&] { d.of.must_find(&local, "deallocate", d.at); }), "is not memory of gpu:0"));
  memory::region* const r = d.of.must_find(p, "deallocate", d.at);
  EXPECT_TRUE(d.of.must_locate(static_cast<char*>(p) + 5, r, "deallocate", d.at).live);
  d.free_at_home(p);
  EXPECT_TRUE(has(refusal_of([&] { d.of.must_locate(p, r, "deallocate", d.at); }), "free each block once"));
}

TEST(block_ref, is_live_for_what_deallocate_would_take) {
  one_device d;
  clock::stream_clock& home = d.bench.stream(0);
  auto* const block = static_cast<char*>(d.grown(home, 100'000));
  auto* const slot = static_cast<char*>(d.grown(home, 100));
  auto const inside = d.block_at(block + 99'999), of_slab = d.block_at(slot + 99), next = d.block_at(slot + 112);
  EXPECT_TRUE(inside.live && !inside.in_slab);
  EXPECT_EQ(inside.start, reinterpret_cast<memory::address>(block));
  EXPECT_TRUE(of_slab.live && of_slab.in_slab);
  EXPECT_EQ(of_slab.start, reinterpret_cast<memory::address>(slot));
  EXPECT_FALSE(next.live) << "a slot that no request has";
  d.free_at_home(block);
  EXPECT_FALSE(d.block_at(block).live);
}

TEST(block_ref, forgets_one_user_and_keeps_the_others) {
  one_device d;
  clock::stream_clock &home = d.bench.stream(0), &a = d.bench.stream(0), &b = d.bench.stream(0);
  for (std::size_t const bytes : {100, 100'000}) {
    memory::block_ref const found = d.block_at(d.grown(home, bytes));
    for (clock::stream_clock* const user : {&a, &b}) {
      if (found.in_slab)
        found.in_slab->record_use(found.index, *user);
      else
        found.block->users.add(*user);
    }
    found.forget_user(a);
    std::vector<clock::stream_clock*> left;
    found.each_user([&](clock::stream_clock* user) { left.push_back(user); });
    EXPECT_EQ(left, std::vector{&b}) << bytes;
  }
}

TEST(heap_table, gives_each_stream_one_heap) {
  one_device d;
  clock::stream_clock &a = d.bench.stream(0), &b = d.bench.stream(0);
  memory::stream_heap& of_a = d.heaps.of(a);
  EXPECT_EQ(&d.heaps.of(a), &of_a);
  EXPECT_NE(&d.heaps.of(b), &of_a);
  EXPECT_EQ(d.heaps.all().size(), 2u);
  int found = 0;
  d.heaps.each_of(a, [&](memory::stream_heap& m) { found += &m == &of_a; });
  d.heaps.each_of(d.bench.stream(0), [&](memory::stream_heap&) { ++found; });
  EXPECT_EQ(found, 1) << "no heap is made for a stream that is only asked about";
}

TEST(heap_table, opens_later_heaps_to_the_readers_of_all) {
  one_device d;
  clock::stream_clock &a = d.bench.stream(0), &b = d.bench.stream(0);
  memory::stream_heap& of_a = d.heaps.of(a);
  EXPECT_FALSE(d.heaps.add_readers_of_all(2, 0)) << "one heap is there already";
  EXPECT_TRUE(d.heaps.add_readers_of_all(2, 1));
  memory::stream_heap* const opened[] = {&of_a};
  EXPECT_FALSE(d.heaps.add_readers(a, 4, {})) << "its heap was not opened";
  EXPECT_EQ(of_a.readers(), 2u);
  EXPECT_TRUE(d.heaps.add_readers(a, 4, opened));
  EXPECT_EQ(of_a.readers(), 6u);
  EXPECT_EQ(d.heaps.of(b).readers(), 2u);
  EXPECT_FALSE(memory::heap_table::may_lend(d.heaps.of(b), of_a)) << "device 2 would not reach the block";
  EXPECT_TRUE(memory::heap_table::may_lend(of_a, d.heaps.of(b)));
  d.heaps.remove_own_readers(a);
  EXPECT_EQ(of_a.readers(), 2u);
  d.heaps.remove_readers(2);
  EXPECT_EQ(of_a.readers() | d.heaps.of(b).readers(), 0u);
}

TEST(heap_table, keeps_a_heap_that_still_lends) {
  one_device d;
  clock::stream_clock &a = d.bench.stream(0), &b = d.bench.stream(0);
  memory::memory_pool& pool = d.heaps.add_pool(memory::memory_pool::kind::ordinary, "pool", 0);
  memory::stream_heap &mine = d.heaps.of(a), &other = d.heaps.of(b), &apart = d.heaps.of(b, pool);
  {
    memory::heap_stay const in_other = memory::heap_table::stay_to_lend(other, mine);
    EXPECT_TRUE(in_other);
    EXPECT_TRUE(other.is_called());
    EXPECT_TRUE(memory::heap_table::stay_to_lend(mine, mine));
    EXPECT_FALSE(memory::heap_table::stay_to_lend(apart, mine)) << "it lies in a pool by now";
  }
  EXPECT_FALSE(other.is_called() || apart.is_called() || mine.is_called());
}

// Its stream has later work all the time, as a cached stream of a server has.
TEST(heap_table, leaves_an_ended_pools_heap_to_another_stream) {
  one_device d;
  clock::stream_clock &a = d.bench.stream(0), &b = d.bench.stream(0), &c = d.bench.stream(0);
  auto const new_pool = [&]() -> memory::memory_pool& {
    return d.heaps.add_pool(memory::memory_pool::kind::ordinary, "pool", 0);
  };
  memory::memory_pool& first = new_pool();
  memory::stream_heap& left = d.heaps.of(a, first);
  void* block = nullptr;
  ASSERT_TRUE(d.more.grow(left, d.request(a, 100'000), block).ok() && block);
  d.work(a);
  d.free_at_home(block);
  clock::stamp const freed = a.now();
  ASSERT_TRUE(d.of.clocks.poll(freed).ok()) << "a fence, so that later work has another number";
  d.heaps.end_pool(first);
  EXPECT_NE(&d.heaps.of(b, new_pool()), &left) << "the block that came free is in use still";
  (void)d.bench.control->run();
  d.work(a);
  ASSERT_TRUE(d.of.clocks.poll(freed).value);
  ASSERT_FALSE(d.of.clocks.complete(a.now()));
  EXPECT_EQ(&d.heaps.of(c, new_pool()), &left);
}

// A growth moved a page in that is in use still, and was refused another one.
TEST(heap_table, keeps_a_heap_into_which_used_memory_moved) {
  one_device d;
  std::size_t const page = d.of.space.page_bytes();
  clock::stream_clock &a = d.bench.stream(0), &b = d.bench.stream(0);
  memory::memory_pool& first = d.heaps.add_pool(memory::memory_pool::kind::ordinary, "pool", 0);
  void* const block = d.grown(a, page);
  d.of.counts.set_limit(page);
  d.work(a);
  d.free_at_home(block);
  memory::stream_heap& left = d.heaps.of(a, first);
  void* out = nullptr;
  ASSERT_FALSE(d.more.grow(left, d.request(a, 2 * page), out).ok());
  ASSERT_EQ(left.bytes_mapped(), static_cast<std::int64_t>(page));
  d.heaps.end_pool(first);
  memory::memory_pool& second = d.heaps.add_pool(memory::memory_pool::kind::ordinary, "pool", 0);
  EXPECT_NE(&d.heaps.of(b, second), &left);
  std::vector<std::string> wrong;
  memory::quiet_session(left).validate(wrong, "left", a.now().n);
  EXPECT_EQ(wrong, std::vector<std::string>{});
}

TEST(heap_table, keeps_it_with_its_stream_if_deterministic) {
  one_device d(64 << 20, {.deterministic = true});
  clock::stream_clock &a = d.bench.stream(0), &b = d.bench.stream(0);
  auto const new_pool = [&]() -> memory::memory_pool& {
    return d.heaps.add_pool(memory::memory_pool::kind::ordinary, "pool", 0);
  };
  memory::memory_pool& first = new_pool();
  memory::stream_heap& left = d.heaps.of(a, first);
  d.heaps.end_pool(first);
  EXPECT_NE(&d.heaps.of(b, new_pool()), &left) << "what is complete decides nothing";
  EXPECT_EQ(&d.heaps.of(a, new_pool()), &left);
}

TEST(stream_heap, lists_itself_by_its_largest_free_block) {
  one_device d;
  clock::stream_clock& home = d.bench.stream(0);
  memory::stream_heap& m = d.heaps.of(home);
  void* const p = d.grown(home, 4 << 20);
  EXPECT_EQ(memory::quiet_session(m).listed() & memory::heap_index::at_least(4 << 20), 0u);
  d.free_at_home(p);
  EXPECT_NE(memory::quiet_session(m).listed() & memory::heap_index::at_least(4 << 20), 0u);
  EXPECT_EQ(memory::session(m).take(d.request(home, 4 << 20)), p);
}

TEST(stream_heap, fences_after_a_share_of_what_it_holds) {
  one_device d(64 << 20, {.fence_interval = 0});
  memory::stream_heap& m = d.heaps.of(d.bench.stream(0));
  EXPECT_EQ(m.fence_after(0), memory::stream_heap::fence_least);
  memory::heap_probe::set_fences_that_nobody_wanted(m, 9);
  EXPECT_EQ(memory::heap_probe::fence_at_home_after(m), memory::stream_heap::fence_least << 4)
      << "at most sixteen times as seldom";
  one_device fixed(64 << 20, {.fence_interval = 1000});
  EXPECT_EQ(memory::heap_probe::fence_at_home_after(fixed.heaps.of(fixed.bench.stream(0))), 1000u);
}

TEST(physical_memory, charges_what_the_driver_would_not_take) {
  one_device d;
  std::size_t const page = d.of.space.page_bytes();
  auto const h = d.bench.machine().create(0, page);
  memory::physical_memory::batch out;
  ASSERT_TRUE(h.ok() && d.of.counts.charge(page));
  d.of.counts.gave(page, 0);
  (void)d.bench.control->fail_call("release", 1, driver::code::failed);
  d.memory.release(h.value, page, out);
  EXPECT_EQ(out.orphaned, page);
  EXPECT_EQ(d.memory.orphaned_bytes(), page);
  EXPECT_EQ(d.of.counts.reserved(), page);
  EXPECT_EQ(d.memory.return_orphans(), page);
  EXPECT_EQ(d.memory.orphaned_bytes() + d.of.counts.reserved(), 0u);
}

TEST(reserve_bound, allows_a_share_above_the_most_that_was_live) {
  one_device d(64 << 20, {.epsilon = 0.5});
  memory::reserve_bound::usage n;
  n.live = 1000;
  EXPECT_EQ(d.bound.most(n, 0), 1500u);
  EXPECT_EQ(d.bound.most(n, 200), 1800u) << "what is asked for counts";
  n.live = 100;
  EXPECT_EQ(d.bound.most(n, 0), 1500u) << "the most that was live is remembered";
  n.pending = 2900;
  EXPECT_EQ(d.bound.most(n, 0), 4500u) << "what waits counts as in use";
  d.bound.raise(10'000);
  EXPECT_EQ(d.bound.most({}, 0), 15'000u);
}

TEST(reserve_bound, reads_what_all_heaps_have) {
  one_device d;
  void* const p = d.grown(d.bench.stream(0), 1 << 20);
  (void)d.grown(d.bench.stream(0), 3 << 20);
  EXPECT_EQ(d.bound.now().live, 4 << 20);
  d.free_at_home(p);
  EXPECT_EQ(d.bound.now().live, 3 << 20);
}

TEST(growth, charges_what_it_maps_and_nothing_when_refused) {
  one_device d;
  clock::stream_clock& home = d.bench.stream(0);
  std::size_t const page = d.of.space.page_bytes();
  for (char const* const call : {"create", "map", "grant"}) {
    (void)d.bench.control->fail_call(call, 1, driver::code::failed);
    EXPECT_EQ(d.grown(home, page), nullptr) << call;
    EXPECT_EQ(d.is.what, driver::code::failed) << call;
    EXPECT_EQ(d.of.counts.reserved(), 0u) << call;
  }
  EXPECT_NE(d.grown(home, page), nullptr);
  EXPECT_EQ(d.of.counts.reserved(), page);
  EXPECT_EQ(d.grown(home, 1 << 30), nullptr) << "more than the device has";
  EXPECT_EQ(d.is.what, driver::code::out_of_memory);
}

TEST(handle_return, gives_back_what_is_free_and_complete) {
  one_device d;
  clock::stream_clock& home = d.bench.stream(0);
  std::size_t const page = d.of.space.page_bytes();
  void* const p = d.grown(home, page);
  EXPECT_EQ(d.back.some(~std::size_t{0}), 0u) << "the block is live";
  d.work(home);
  d.free_at_home(p);
  EXPECT_EQ(d.back.some(~std::size_t{0}), 0u) << "work of the stream may use it";
  ASSERT_TRUE(d.bench.control->run());
  EXPECT_EQ(d.back.some(~std::size_t{0}), page);
  EXPECT_EQ(d.of.counts.reserved(), 0u);
}

TEST(handle_return, keeps_its_books_when_refused) {
  one_device d;
  clock::stream_clock& home = d.bench.stream(0);
  std::size_t const page = d.of.space.page_bytes();
  void* const p = d.grown(home, page);
  d.free_at_home(p);
  (void)d.bench.control->fail_call("unmap", 1, driver::code::failed);
  EXPECT_EQ(d.back.some(~std::size_t{0}), 0u);
  EXPECT_EQ(d.of.counts.reserved(), page);
  EXPECT_EQ(memory::session(d.heaps.of(home)).take(d.request(home, page)), p) << "the block serves again";
}

TEST(peer_access, opens_a_block_once_and_each_later_handle) {
  one_device d;
  clock::stream_clock& home = d.bench.stream(0);
  void* const p = d.grown(home, 1 << 20);
  EXPECT_FALSE(d.peers.granted(p, 1));
  EXPECT_TRUE(d.peers.grant(p, 1).ok());
  EXPECT_TRUE(d.peers.grant(p, 1).ok()) << "again: no call";
  EXPECT_TRUE(d.peers.granted(p, 1));
  EXPECT_EQ(memory::quiet_session(d.heaps.of(home)).peer_bytes() % d.of.space.page_bytes(), 0u);
  EXPECT_TRUE(d.peers.open_to(&home, 2).ok());
  void* const q = d.grown(home, 8 << 20);
  EXPECT_TRUE(d.peers.granted(q, 1));
  std::vector<std::string> wrong;
  d.peers.validate(memory::quiet_session(d.heaps.of(home)), wrong, "heap");
  EXPECT_EQ(wrong, std::vector<std::string>{});
}

TEST(handle_mover, lays_an_alias_where_a_handle_was) {
  one_device d(64 << 20, {.epsilon = 0});
  clock::stream_clock &a = d.bench.stream(0), &b = d.bench.stream(0);
  std::size_t const page = d.of.space.page_bytes();
  std::vector<void*> blocks;
  for (int i = 0; i < 4; ++i)
    blocks.push_back(d.grown(a, page));
  for (void* const p : blocks)
    d.free_at_home(p);
  ASSERT_TRUE(d.bench.clocks().synchronize(a.now()).ok());
  ASSERT_NE(d.grown(b, page), nullptr);
  EXPECT_EQ(d.of.counts.reserved(), 5 * page) << "the bound: the most that was live, and a page";
  ASSERT_NE(d.grown(b, page), nullptr);
  EXPECT_EQ(d.of.counts.reserved(), 5 * page) << "a free handle of the other heap moved";
  EXPECT_EQ(d.mover.take_all().size(), 1u);
}

TEST(completion_poller, settles_what_the_driver_says_is_complete) {
  one_device d;
  clock::stream_clock &home = d.bench.stream(0), &user = d.bench.stream(0);
  memory::free_path free(d.of, d.heaps, d.graphs);
  void* const p = d.grown(home, 100'000);
  d.work(user);
  free.deallocate(p, &user, d.at);
  memory::stream_heap& m = d.heaps.of(home);
  EXPECT_EQ(d.completion.poll(m), 0u);
  EXPECT_EQ(memory::quiet_session(m).pending_bytes(), 100'352u);
  ASSERT_TRUE(d.bench.control->run());
  EXPECT_EQ(d.completion.poll(m), 100'352u);
  EXPECT_FALSE(memory::quiet_session(m).has_pending());
  EXPECT_TRUE(d.completion.wait_for_oldest({})) << "the home's own work, which no question was about";
  EXPECT_FALSE(d.completion.wait_for_oldest({})) << "nothing is left to wait for";
}

TEST(block_reuse, takes_from_a_heap_that_is_ordered_before) {
  one_device d;
  clock::stream_clock &a = d.bench.stream(0), &b = d.bench.stream(0);
  void* const p = d.grown(a, 1 << 20);
  (void)d.heaps.of(b);
  d.work(a);
  d.free_at_home(p);
  EXPECT_EQ(d.reuse.from_others(d.heaps.of(b), d.request(b, 1 << 20), ~std::size_t{0}), nullptr);
  ASSERT_TRUE(b.wait(a.now()).ok());
  EXPECT_EQ(d.reuse.from_others(d.heaps.of(b), d.request(b, 1 << 20), ~std::size_t{0}), p);
}

TEST(free_path, frees_at_once_or_defers) {
  one_device d;
  clock::stream_clock &home = d.bench.stream(0), &user = d.bench.stream(0);
  memory::free_path free(d.of, d.heaps, d.graphs);
  memory::stream_heap& m = d.heaps.of(home);
  void *const p = d.grown(home, 100'000), *const q = d.grown(home, 100'000);
  d.work(home);
  free.deallocate(p, nullptr, d.at);
  EXPECT_FALSE(memory::quiet_session(m).has_pending()) << "used at home alone";
  d.work(user);
  free.deallocate(q, &user, d.at);
  EXPECT_EQ(memory::quiet_session(m).pending_count(), 1u);
  EXPECT_TRUE(has(refusal_of([&] { free.deallocate(q, nullptr, d.at); }), "was freed already"));
}

// A hold may end on another thread between the look for ended ones and the choice of the next, and the next may
// then have its address.
TEST(graph_pools, a_hold_at_an_ended_ones_address_is_another) {
  one_device d;
  driver::driver& machine = d.bench.machine();
  auto& choices = d.bench.core.part<memory::graph_choices>();
  alignas(memory::graph_hold) std::byte place[sizeof(memory::graph_hold)];
  auto const made_there = [&] {
    return memory::graph_holder(new (place) memory::graph_hold, [](memory::graph_hold const* h) { h->~graph_hold(); });
  };
  auto const begun = [&](clock::stream_clock& s) {
    EXPECT_TRUE(machine.begin_capture(0, s.handle(), driver::capture_mode::relaxed).ok());
    return s.lane().value;
  };
  clock::stream_clock &a = d.bench.stream(0), &b = d.bench.stream(0);
  clock::stream_clock& first = *begun(a);
  choices.declare(first.capture(), made_there());
  memory::memory_pool const* const ended = d.graphs.of(first, d.at).pool;
  choices.forget(first.capture());
  auto const graph = machine.end_capture(0, a.handle());
  ASSERT_TRUE(graph.ok());
  memory::graph_holder next;
  auto const number = choices.add(
      0,
      [&](CUstream_st*) {
        EXPECT_TRUE(machine.destroy_graph(graph.value).ok());
        next = made_there();
        return true;
      },
      memory::graph_holder(memory::graph_holder(), reinterpret_cast<memory::graph_hold const*>(place)));
  memory::memory_pool const* const pool = d.graphs.of(*begun(b), d.at).pool;
  EXPECT_NE(pool, ended);
  d.graphs.end_those_over();
  EXPECT_EQ(d.graphs.of_hold(*next), pool);
  choices.remove(number);
  auto const second = machine.end_capture(0, b.handle());
  EXPECT_TRUE(second.ok() && machine.destroy_graph(second.value).ok());
}

TEST(memory_audit, sums_what_is_there_and_tells_a_wrong_book) {
  one_device d;
  memory::memory_audit audit(d.of, d.heaps, d.mover, d.peers, d.memory);
  clock::stream_clock& home = d.bench.stream(0);
  void* const p = d.grown(home, 1 << 20);
  EXPECT_EQ(audit.validate(), std::vector<std::string>{});
  EXPECT_EQ(audit.counted().allocated_bytes.all.current, 1 << 20);
  EXPECT_EQ(audit.unreclaimable(), d.of.counts.reserved());
  d.free_at_home(p);
  ASSERT_TRUE(d.bench.clocks().synchronize(home.now()).ok());
  EXPECT_EQ(audit.unreclaimable(), 0u);
  memory::heap_probe::counts(d.heaps.of(home)).freed_pending(observe::size_pool::large, 512, 512);
  EXPECT_NE(audit.validate(), std::vector<std::string>{}) << "a book that is wrong is told";
}

TEST(memory_audit, lists_the_stream_with_most_memory_first) {
  one_device d;
  memory::memory_audit audit(d.of, d.heaps, d.mover, d.peers, d.memory);
  clock::stream_clock &less = d.bench.stream(0), &more = d.bench.stream(0);
  (void)d.grown(less, 1 << 20);
  (void)d.grown(more, 8 << 20);
  auto const all = audit.by_stream();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].stream, more.id());
  EXPECT_EQ(all[1].stream, less.id());
}

TEST(oom_callbacks, run_in_order_and_not_inside_one_another) {
  memory::oom_callbacks all;
  struct notes {
    memory::oom_callbacks& all;
    std::string order;
  } seen{all, ""};
  auto const second =
      all.add([](void* s, memory_report const&) { return static_cast<notes*>(s)->order += "b", false; }, &seen, 2);
  (void)all.add(
      [](void* s, memory_report const& r) {
        auto& n = *static_cast<notes*>(s);
        n.order += "a";
        EXPECT_FALSE(n.all.call(r)) << "an allocation inside a callback fails plainly";
        return true;
      },
      &seen, 1);
  EXPECT_TRUE(all.call({}));
  EXPECT_EQ(seen.order, "ab");
  all.remove(second);
  EXPECT_TRUE(all.call({}));
  EXPECT_EQ(seen.order, "aba");
}

TEST(oom_ladder, throws_with_its_steps_and_changes_nothing_else) {
  one_device d(4 << 20);
  memory::memory_audit audit(d.of, d.heaps, d.mover, d.peers, d.memory);
  memory::oom_callbacks none;
  memory::oom_ladder ladder(d.of, d.heaps, d.memory, d.more, d.reuse, d.completion, d.graphs, d.back, audit, none);
  clock::stream_clock& home = d.bench.stream(0);
  void* const p = d.grown(home, 3 << 20);
  memory::stream_heap& m = d.heaps.of(home);
  try {
    (void)ladder.climb(m, d.request(home, 3 << 20), {driver::code::out_of_memory});
    ADD_FAILURE() << "the device has 4 MiB";
  } catch (out_of_memory const& e) {
    EXPECT_GE(e.report().recovery.size(), 6u);
    EXPECT_EQ(e.report().requested, std::size_t{3} << 20);
  }
  EXPECT_EQ(audit.validate(), std::vector<std::string>{});
  d.free_at_home(p);
  EXPECT_EQ(ladder.climb(m, d.request(home, 3 << 20), {driver::code::out_of_memory}), p);
}

}  // namespace
}  // namespace weir
