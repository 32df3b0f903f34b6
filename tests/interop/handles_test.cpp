// Streams by handle, on simulated devices: registered ones are as quick as weir's own, borrowed ones may be
// gone at any time after the call that named them.
// Threads: one, or as a test says.
#include <gtest/gtest.h>
#include <malloc.h>

#include <optional>
#include <random>
#include <set>
#include <thread>

#include "tests/interop/come_and_go.h"
#include "tests/interop/handles_fixture.h"
#include "weir/c.h"
#include "weir/copy.h"
#include "weir/launch.h"
#include "weir/observe.h"
#include "weir/share.h"
#include "weir/sim.h"

namespace weir {
namespace {

using namespace by_handle;

// ---- registered

TEST_F(handles, a_registered_stream_makes_no_fence_of_its_own) {
  simulated_stream theirs(0);
  external_stream const registered(0, theirs.handle());
  stream another{device(0)};
  buffer const other_heap(another, large);
  auto const before = owned->watch->records();
  for (int i = 0; i < 1000; ++i)
    deallocate(allocate(registered, small));
  EXPECT_EQ(owned->watch->records(), before);
  EXPECT_GE(memory_stats(0).cache_hits, 900u);
}

TEST_F(handles, a_registered_streams_memory_outlives_it) {
  std::optional<simulated_stream> theirs(0);
  void* first = nullptr;
  {
    external_stream const registered(0, theirs->handle());
    first = allocate(registered, small);
    deallocate(first);  // lies in this thread's cache
  }
  theirs.reset();
  synchronize(0);
  stream mine{device(0)};
  void* const p = allocate(mine, small);
  EXPECT_EQ(p, first) << "the next stream inherits the heap, caches and all";
  deallocate(p);
}

// A cache of a heap whose home changed must not serve a later stream that got the old home's object.
TEST_F(handles, registrations_that_come_and_go_share_no_block) {
  std::set<void*> held;
  std::vector<void*> of_the_gone;
  for (int i = 0; i < 2000; ++i) {
    simulated_stream theirs(0);
    external_stream const registered(0, theirs.handle());
    for (void* const p : of_the_gone) {
      deallocate(p);
      held.erase(p);
    }
    of_the_gone.clear();
    for (int k = 0; k < 3; ++k) {
      void* const p = allocate(registered, small);
      ASSERT_TRUE(held.insert(p).second) << "handed out twice, at " << i;
      ASSERT_EQ(find_block(p)->home, stream_ref(registered)) << "at " << i;
      of_the_gone.push_back(p);
    }
    void* const q = allocate(registered, small);
    ASSERT_FALSE(held.contains(q));
    ASSERT_EQ(find_block(q)->home, stream_ref(registered));
    deallocate(q);
  }
  for (void* const p : held)
    deallocate(p);
}

TEST_F(handles, a_registration_is_found_by_its_handle) {
  simulated_stream theirs(1);
  std::optional<external_stream> registered(std::in_place, 1, theirs.handle());
  stream_ref const its = *registered;
  EXPECT_EQ(borrow_stream(1, theirs.handle()), its);
  EXPECT_EQ(borrow_stream(1, theirs.handle()), its) << "now from the thread's memo";
  registered.reset();
  stream_ref const borrowed = borrow_stream(1, theirs.handle());
  EXPECT_NE(borrowed.id(), its.id()) << "the registration has ended";
  EXPECT_TRUE(has(refused([&] { (void)allocate(its, large); }), "whose registration has ended"));
  registered.emplace(1, theirs.handle());
  EXPECT_EQ(borrow_stream(1, theirs.handle()), stream_ref(*registered)) << "a registration comes first";
}

TEST_F(handles, null_is_the_legacy_stream_of_its_device) {
  EXPECT_EQ(borrow_stream(0, nullptr), borrow_stream(0, nullptr));
  EXPECT_NE(borrow_stream(0, nullptr), borrow_stream(1, nullptr));
  EXPECT_EQ(borrow_stream(1, nullptr).device(), device(1));
}

TEST_F(handles, a_stream_of_another_device_is_refused) {
  simulated_stream theirs(1);
  EXPECT_TRUE(has(refused([&] { external_stream const e(0, theirs.handle()); }), "another device"));
  EXPECT_TRUE(has(refused([&] { (void)borrow_stream(0, theirs.handle()); }), "another device, named for gpu:0"));
  EXPECT_EQ(borrow_stream(1, theirs.handle()).device(), device(1));
  EXPECT_TRUE(has(refused([&] { (void)borrow_stream(0, theirs.handle()); }), "another device"));
}

// ---- borrowed

TEST_F(handles, a_borrowed_stream_is_one_stream_while_it_exists) {
  simulated_stream a(0), b(0);
  auto const id = borrow_stream(0, a.handle()).id();
  EXPECT_NE(borrow_stream(0, b.handle()).id(), id);
  EXPECT_EQ(borrow_stream(0, a.handle()).id(), id);
  std::uint64_t from_another_thread = 0;
  std::thread([&] {
    runtime_guard const here(rt());
    from_another_thread = borrow_stream(0, a.handle()).id();
  }).join();
  EXPECT_EQ(from_another_thread, id);
}

TEST_F(handles, a_borrowed_streams_own_memory_serves_it_at_once) {
  simulated_stream theirs(0);
  void* const p = allocate(borrow_stream(0, theirs.handle()), large);
  deallocate(borrow_stream(0, theirs.handle()), p);
  EXPECT_EQ(allocate(borrow_stream(0, theirs.handle()), large), p);
  deallocate(borrow_stream(0, theirs.handle()), p);
}

TEST_F(handles, a_handle_given_out_again_is_a_new_stream) {
  make({.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::seeded, .seed = 3});
  std::map<CUstream_st*, std::uint64_t> ids;
  bool came_back = false;
  for (int i = 0; i < 20; ++i) {
    simulated_stream const theirs(0);
    stream_ref const s = borrow_stream(0, theirs.handle());
    if (auto const known = ids.find(theirs.handle()); known != ids.end()) {
      came_back = true;
      EXPECT_NE(known->second, s.id());
    }
    ids[theirs.handle()] = s.id();
    deallocate(borrow_stream(0, theirs.handle()), allocate(s, small));
  }
  EXPECT_TRUE(came_back) << "this machine is to give handles out again";
}

// The work of a stream that is gone still uses its memory. No stream gets it before that work is done.
TEST_F(handles, memory_of_a_stream_that_is_gone_waits_for_its_work) {
  make({.devices = 1, .memory = 8_MiB, .schedule = simulated::scheduling::stepped});
  std::optional<simulated_stream> theirs(0);
  void* const p = allocate(borrow_stream(0, theirs->handle()), large);
  busy(borrow_stream(0, theirs->handle()), p, large);
  deallocate(borrow_stream(0, theirs->handle()), p);
  theirs.reset();
  stream mine{device(0)};
  void* const q = allocate(mine, large);
  EXPECT_NE(q, p) << "its work has not run";
  simulation::of(rt()).run();
  void* const again = allocate(mine, 3 * large);  // what is left, and p
  EXPECT_NE(again, nullptr);
  deallocate(q), deallocate(again);
}

TEST_F(handles, a_short_life_leaves_its_last_free_fenced) {
  simulated_stream theirs(0);
  auto const before = fences();
  deallocate(borrow_stream(0, theirs.handle()), allocate(borrow_stream(0, theirs.handle()), small));
  EXPECT_EQ(fences(), before + 1);
}

// Other streams wait for the memory of a large block, so its free is fenced although another block lives.
TEST_F(handles, a_free_of_a_large_block_is_fenced) {
  simulated_stream theirs(0);
  void* const stays = allocate(borrow_stream(0, theirs.handle()), small);
  void* const p = allocate(borrow_stream(0, theirs.handle()), 1_MiB);
  auto const before = fences();
  deallocate(borrow_stream(0, theirs.handle()), p);
  EXPECT_EQ(fences(), before + 1);
  deallocate(borrow_stream(0, theirs.handle()), stays);
}

TEST_F(handles, a_long_life_is_fenced_in_batches) {
  simulated_stream theirs(0);
  auto const pair = [&] {
    deallocate(borrow_stream(0, theirs.handle()), allocate(borrow_stream(0, theirs.handle()), small));
  };
  for (int i = 0; i < 1000; ++i)
    pair();
  auto const before = fences();
  for (int i = 0; i < 3200; ++i)
    pair();
  EXPECT_GE(fences() - before, 90u);
  EXPECT_LE(fences() - before, 110u);
}

TEST_F(handles, many_streams_leave_no_trace) {
  in.reset();
  owned.reset();  // the watch remembers each of them
  test::streams_come_and_go([](auto* s, size_t bytes) { return allocate(borrow_stream(0, s), bytes); },
                            [](auto* s, void* p, size_t) { deallocate(borrow_stream(0, s), p); });
}

TEST_F(handles, many_streams_in_c_leave_no_trace) {
  in.reset();
  owned.reset();
  auto const take = [](auto* s, size_t bytes) {
    void* p = nullptr;
    EXPECT_EQ(weir_allocate(&p, bytes, 0, 0, s), WEIR_OK) << weir_last_error();
    return p;
  };
  test::streams_come_and_go(take, [](auto* s, void* p, size_t) { EXPECT_EQ(weir_free_on_stream(p, 0, s), WEIR_OK); });
}

// Frees that do not name their stream leave no fence: the whole device is waited for, once in a while.
TEST_F(handles, streams_that_end_unfenced_are_waited_for_together) {
  make({.devices = 1, .memory = 4_GiB});
  for (int i = 0; i < 1000; ++i) {
    simulated_stream theirs(0);
    void* const p = allocate(borrow_stream(0, theirs.handle()), small);
    deallocate(p);
  }
  EXPECT_LE(memory_reserved(0), 512_MiB);
  EXPECT_LE(memory_by_stream(0).size(), 300u);
}

TEST_F(handles, memory_is_found_behind_a_free_that_names_no_stream) {
  make({.devices = 1, .memory = 8_MiB});
  std::optional<simulated_stream> theirs(0);
  void* const p = allocate(borrow_stream(0, theirs->handle()), 6_MiB);
  busy(borrow_stream(0, theirs->handle()), p, 6_MiB);
  deallocate(p);
  theirs.reset();
  void* const q = allocate(default_stream(0), 6_MiB);  // the last step before out_of_memory waits
  EXPECT_NE(q, nullptr);
  deallocate(q);
}

TEST_F(handles, a_mark_on_a_borrowed_stream_holds_the_block) {
  make({.devices = 1, .memory = 8_MiB, .schedule = simulated::scheduling::stepped});
  stream mine{device(0)};
  std::optional<simulated_stream> theirs(0);
  void* const p = allocate(mine, large);
  busy(borrow_stream(0, theirs->handle()), p, large);  // declares its use
  deallocate(p);
  EXPECT_NE(allocate(mine, large), p);
  theirs.reset();
  simulation::of(rt()).run();
  EXPECT_NE(allocate(mine, large), nullptr);
  EXPECT_NE(allocate(mine, large), nullptr);
}

// Regression: a stream that had marked a block that lives on was known, and its mark kept, for ever.
struct marks_of_many : handles, testing::WithParamInterface<int> {};
TEST_P(marks_of_many, streams_on_lasting_memory_leave_no_trace) {
  in.reset();
  owned.reset();  // the watch remembers each of them
  runtime plain(simulated{.devices = 1, .memory = 64_MiB});
  runtime_guard const here(plain);
  int const many = tests::sanitized ? 500 : 6'000;
  stream const mine{device(0)};
  buffer const lasting(mine, GetParam() == 1 ? small : large), host = pinned(large);
  exportable_buffer const shared(mine, large);
  auto const lives = [&](int n) {
    for (int i = 0; i < n; ++i) {
      simulated_stream theirs(0);
      auto const s = borrow_stream(0, theirs.handle());
      switch (GetParam()) {
        case 0:
        case 1: busy(s, lasting.data(), lasting.size()); break;
        case 2: copy(s, lasting.data(), host.data(), 1000, non_blocking); break;
        case 3: host.record_stream(s); break;
        case 4: shared.record_stream(s); break;
      }
    }
    synchronize(0);  // the machine has nothing to keep
  };
  lives(2'000);
  std::size_t const before = ::mallinfo2().uordblks;
  lives(many);
  if (!tests::sanitized && !plain.get().observer()) {  // a checker keeps what it has seen
    EXPECT_LT(static_cast<std::ptrdiff_t>(::mallinfo2().uordblks - before), 256 << 10);
  }
  auto const& clocks = plain.get().part<clock::clocks>();
  EXPECT_EQ(clocks.validate(), std::vector<std::string>{});
  EXPECT_LT(clocks.size(), 2'000u) << "most are those that have ended and wait to be used again";
}
INSTANTIATE_TEST_SUITE_P(of, marks_of_many, testing::Range(0, 5));

// It is not known whether such a stream has ended, so that it may go on.
TEST_F(handles, a_mark_of_a_stream_not_named_for_long_still_holds) {
  for (bool const of_host : {false, true}) {
    for (size_t const bytes : {small, large}) {
      make({.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::stepped});
      stream const mine{device(0)};
      simulated_stream theirs(0);
      buffer held = of_host ? pinned(bytes) : buffer(mine, bytes);
      void* const p = held.data();
      held.record_stream(borrow_stream(0, theirs.handle()));
      for (int i = 0; i < 2'000; ++i) {
        simulated_stream other(0);
        held.record_stream(borrow_stream(0, other.handle()));
      }
      auto& machine = rt().get().machine();
      auto const handle = static_cast<driver::stream_handle>(reinterpret_cast<std::uintptr_t>(theirs.handle()));
      ASSERT_TRUE(machine.enqueue(0, handle, {}, {[](void*) {}, nullptr, nullptr}).ok());  // weir does not hear of it
      held.reset();
      std::vector<buffer> others;
      auto const again = [&] {
        others.push_back(of_host ? pinned(bytes) : buffer(mine, bytes));
        return others.back().data();
      };
      for (int i = 0; i < 4; ++i)
        EXPECT_NE(again(), p) << bytes << " B" << (of_host ? " of the host" : "");
      simulation::of(rt()).run();
      synchronize(0);
      bool served = false;
      for (int i = 0; i < 20'000 && !served; ++i)
        served = again() == p;
      EXPECT_TRUE(served) << bytes << " B" << (of_host ? " of the host" : "");
    }
  }
}

TEST_F(handles, copies_on_a_borrowed_stream_are_complete_and_fenced) {
  std::vector<unsigned char> out(100'000), back(out.size());
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<unsigned char>(i * 13);
  for (int i = 0; i < 50; ++i) {
    simulated_stream theirs(0);
    void* const p = allocate(borrow_stream(0, theirs.handle()), out.size());
    copy(borrow_stream(0, theirs.handle()), p, out.data(), out.size());
    copy(borrow_stream(0, theirs.handle()), back.data(), p, out.size());
    ASSERT_EQ(out, back);
    std::fill(back.begin(), back.end(), 0);
    deallocate(borrow_stream(0, theirs.handle()), p);
  }
}

TEST_F(handles, borrowed_streams_wait_and_are_waited_for) {
  simulated_stream a(0), b(1);
  borrow_stream(0, a.handle()).wait(borrow_stream(1, b.handle()));
  stream mine{device(0)};
  mine.wait(borrow_stream(0, a.handle()));
  borrow_stream(0, a.handle()).wait(mine.stamp());
  EXPECT_TRUE(borrow_stream(0, a.handle()).query());
  borrow_stream(0, a.handle()).synchronize();
  event e;
  e.record(borrow_stream(0, a.handle()));
  e.synchronize();
}

// The host waits where nothing else can.
TEST_F(handles, what_no_fence_covers_is_still_waited_for) {
  std::optional<simulated_stream> theirs(0);
  stream mine{device(0)};
  buffer b(borrow_stream(0, theirs->handle()), large);
  busy(borrow_stream(0, theirs->handle()), b.data(), large);
  stamp const done = borrow_stream(0, theirs->handle()).stamp();
  theirs.reset();
  mine.wait(done);
  EXPECT_TRUE(done.query());
  b.set_stream(mine);
  EXPECT_EQ(b.info().home, mine.ref());
}

TEST_F(handles, a_borrowed_stream_is_never_current) {
  simulated_stream theirs(0);
  EXPECT_TRUE(has(refused([&] { set_stream(borrow_stream(0, theirs.handle())); }), "a borrowed stream"));
  EXPECT_TRUE(has(refused([&] { stream_guard const g(borrow_stream(0, theirs.handle())); }), "external_stream"));
}

// cudaStreamPerThread is 2.
TEST_F(handles, the_per_thread_stream_is_each_threads_own) {
  auto* const per_thread = reinterpret_cast<CUstream_st*>(2);
  auto const mine = borrow_stream(0, per_thread).id();
  EXPECT_EQ(borrow_stream(0, per_thread).id(), mine);
  std::uint64_t its = mine;
  std::thread([&] {
    runtime_guard const here(rt());
    its = borrow_stream(0, per_thread).id();
    deallocate(borrow_stream(0, per_thread), allocate(borrow_stream(0, per_thread), small));
  }).join();
  EXPECT_NE(its, mine);
}

// A stream that a thread has just borrowed stays valid for it, however many others are borrowed meanwhile.
TEST_F(handles, a_stream_in_hand_is_not_forgotten) {
  simulated_stream mine(0);
  stream_ref const in_hand = borrow_stream(0, mine.handle());
  std::thread([&] {
    runtime_guard const here(rt());
    for (int i = 0; i < 500; ++i) {
      simulated_stream const other(0);
      deallocate(borrow_stream(0, other.handle()), allocate(borrow_stream(0, other.handle()), small));
    }
  }).join();
  void* const p = allocate(in_hand, small);
  deallocate(borrow_stream(0, mine.handle()), p);
}

TEST_F(handles, threads_borrow_streams_at_once) {
  std::vector<std::thread> all;
  for (int t = 0; t < 4; ++t) {
    all.emplace_back([&, t] {
      runtime_guard const here(rt());
      std::mt19937 draw(static_cast<unsigned>(t));
      for (int i = 0; i < (tests::sanitized ? 100 : 1000); ++i) {
        simulated_stream const theirs(0);
        std::vector<void*> held;
        for (unsigned k = draw() % 5; k; --k)
          held.push_back(allocate(borrow_stream(0, theirs.handle()), 1 + draw() % 100'000));
        for (void* const p : held)
          deallocate(borrow_stream(0, theirs.handle()), p);
      }
    });
  }
  for (auto& t : all)
    t.join();
  EXPECT_EQ(memory_allocated(0), 0u);
}

}  // namespace
}  // namespace weir
