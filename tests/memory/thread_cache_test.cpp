// Small blocks kept by threads: the fast path and the locked path count alike, and other threads can reach
// all that a thread keeps.
// Threads: as each test says.
#include <algorithm>
#include <random>

#include "runtime/memory/device/device_allocator.h"
#include "runtime/memory/heap/fast_path.h"
#include "streams/stream/context.h"
#include "tests/memory/small_device.h"
#include "tests/support/heap_probe.h"

namespace weir {
namespace {

struct thread_caches : tests::small_device {
  stream s;
  void fill(std::vector<void*>& all, std::size_t bytes, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i)
      all.push_back(allocate(s.ref(), bytes));
  }
};

TEST_F(thread_caches, the_fast_path_is_counted_exactly) {
  std::vector<void*> all;
  for (std::size_t bytes : {1, 100, 516, 1024, 1500, 32'000})
    fill(all, bytes, 50);
  auto n = memory_stats(0);
  EXPECT_EQ(n.allocation.small.current, 300);
  EXPECT_EQ(n.requested_bytes.small.current, 50 * (1 + 100 + 516 + 1024 + 1500 + 32'000));
  sound();
  for (void* p : all)
    deallocate(p);
  n = memory_stats(0);
  EXPECT_EQ(n.allocation.small.current, 0);
  EXPECT_EQ(n.requested_bytes.all.current, 0);
  EXPECT_EQ(n.allocation.small.allocated, 300);
  EXPECT_EQ(n.allocation.small.freed, 300);
  sound();
}

// Only the first call of a size takes the lock, and the rare call that finds its size empty or full.
TEST_F(thread_caches, almost_all_calls_for_small_blocks_take_no_lock) {
  if (!base::has_process_wide_fence() || own.get().observer())
    GTEST_SKIP() << "no thread can be fenced here, or each call is told to a checker: nothing is kept";
  int locked = 0;
  clock::stream_clock* const line = &streams::clock_of(s.ref());
  auto const take = [&](std::size_t bytes) {
    if (void* const p = memory::fast_allocate(line, bytes, 0))
      return p;
    return ++locked, allocate(s.ref(), bytes);
  };
  auto const give = [&](void* p) {
    if (memory::fast_deallocate(p))
      return;
    ++locked, deallocate(p);
  };
  for (std::size_t const bytes : {16, 512, 1024, 1500, 32'768}) {
    locked = 0;
    for (int i = 0; i < 2000; ++i)
      give(take(bytes));
    EXPECT_LE(locked, 4) << bytes << " B, of 4000 calls";
  }
  std::minstd_rand random(5);
  std::vector<void*> all(1000);
  auto const replace = [&](int times) {
    for (int i = 0; i < times; ++i) {
      void*& one = all[random() % all.size()];
      if (one)
        give(one);
      one = take(16 << random() % 9);
    }
  };
  replace(10'000);
  locked = 0;
  replace(10'000);
  EXPECT_LE(locked, 100) << "of 20,000 calls";
  locked = 0;
  std::thread([&] {
    runtime_guard const here_too(own);
    for (void* const p : all)
      give(p);
  }).join();
  EXPECT_LE(locked, 250) << "another thread's, of 1,000: a full size sends half of it home at once";
  sound();
}

// A larger size gets more room in the cache only if its blocks come and go.
TEST_F(thread_caches, larger_blocks_that_only_come_are_not_kept) {
  if (!base::has_process_wide_fence() || own.get().observer())
    GTEST_SKIP() << "no thread can be fenced here, or each call is told to a checker: nothing is kept";
  clock::stream_clock* const line = &streams::clock_of(s.ref());
  std::vector<void*> all;
  int ahead = 0;
  for (int i = 0; i < 200; ++i) {
    void* const p = memory::fast_allocate(line, 32'768, 0);
    ahead += p != nullptr;
    all.push_back(p ? p : allocate(s.ref(), 32'768));
  }
  EXPECT_LE(ahead, 100) << "one with each";
  for (void* p : all)
    deallocate(p);
}

TEST_F(thread_caches, emptied_caches_are_in_no_later_peak) {
  std::thread([&] {
    runtime_guard const here_too(own);
    std::vector<void*> all;
    fill(all, 100, 50);
    std::vector<void*> const more = some(s.ref(), 100, 50);
    std::thread([&] {
      runtime_guard const there(own);
      for (void* p : more)
        deallocate(p);
      for (void* p : all)
        deallocate(p);
      empty_cache(0);
      reset_peak_memory_stats(0);
      EXPECT_EQ(memory_stats(0).allocation.small.peak, 0);
      EXPECT_EQ(memory_stats(0).allocated_bytes.all.peak, 0);
    }).join();
  }).join();
  sound();
}

// A refused free changes nothing.
TEST_F(thread_caches, a_double_or_inner_free_is_refused) {
  std::vector<void*> all;
  fill(all, 512, 20);
  deallocate(all[7]);
  EXPECT_THROW(deallocate(all[7]), invalid_use);
  EXPECT_THROW(deallocate(static_cast<char*>(all[8]) + 16), invalid_use);
  EXPECT_EQ(memory_stats(0).allocation.small.current, 19);
  sound();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i != 7)
      deallocate(all[i]);
  }
}

// Sizes above the slabs': served by the bias owner without a locked instruction, and by any other thread.
struct large_blocks : thread_caches {
  static constexpr std::size_t bytes = 100'000, rounded = 100'352;
  void become_owner() {
    for (int i = 0; i < 20; ++i)
      deallocate(allocate(s.ref(), bytes));
  }
  bool owned() {  // the next pair of calls takes the owner's path
    void* const p = memory::fast_allocate(line(), bytes, 0);
    return p && memory::fast_deallocate(p);
  }
  clock::stream_clock* line() { return &streams::clock_of(s.ref()); }
  void SetUp() override {
    if (!base::has_process_wide_fence() || own.get().observer())
      GTEST_SKIP() << "no thread can be fenced here, or each call is told to a checker: nothing is owned";
    become_owner();
    ASSERT_TRUE(owned());
  }
};

TEST(biased_mutex, loses_only_the_owner_that_is_disowned) {
  base::biased_mutex m;
  base::bias_word mine, other;
  for (int i = 0; i < 8; ++i) {
    base::biased_lock const hold(m);
    m.bias_to(mine);
  }
  ASSERT_TRUE(m.enter(mine));
  base::biased_mutex::leave(mine);
  base::biased_lock const hold(m);
  m.revoke_bias(other);
  EXPECT_TRUE(m.is_owned());
  m.revoke_bias(mine);
  EXPECT_FALSE(m.is_owned());
}

TEST_F(thread_caches, a_memory_owned_by_uses_is_listed_in_full) {
  if (!base::has_process_wide_fence() || own.get().observer())
    GTEST_SKIP() << "no thread can be fenced here, or each call is told to a checker: nothing is owned";
  auto& all = static_cast<memory::device_allocator&>(device());
  void* const p = allocate(s.ref(), 4_MiB);
  memory::stream_heap& m = *all.addresses().find(p)->owner.load();
  ASSERT_FALSE(memory::heap_probe::is_owned(m));
  for (int i = 0; i < 8; ++i)
    EXPECT_EQ(all.use(p, streams::clock_of(s.ref())).base, p);
  ASSERT_TRUE(memory::heap_probe::is_owned(m));
  ASSERT_TRUE(memory::fast_deallocate(p));
  sound();
}

TEST_F(large_blocks, are_counted_exactly) {
  memory_stats(0);  // takes the lock, as its owner
  auto const before = memory_stats(0);
  std::vector<void*> all;
  for (int i = 0; i < 20; ++i)
    all.push_back(memory::fast_allocate(line(), bytes, 0));
  auto const taken = std::count_if(all.begin(), all.end(), [](void* p) { return p != nullptr; });
  EXPECT_GT(taken, 5);
  auto n = memory_stats(0);
  EXPECT_EQ(n.allocation.large.current, taken);
  EXPECT_EQ(n.requested_bytes.large.current, taken * static_cast<std::int64_t>(bytes));
  EXPECT_EQ(n.allocated_bytes.large.current, taken * static_cast<std::int64_t>(rounded));
  sound();
  for (void* p : all)
    EXPECT_EQ(memory::fast_deallocate(p), p != nullptr);
  n = memory_stats(0);
  EXPECT_EQ(n.allocation.all.current, 0);
  EXPECT_EQ(n.allocation.large.freed - before.allocation.large.freed, taken);
  sound();
}

TEST_F(large_blocks, all_but_plain_frees_take_the_path_with_the_lock) {
  stream other;
  void* const p = allocate(s.ref(), bytes);
  EXPECT_FALSE(memory::fast_deallocate(static_cast<char*>(p) + 512)) << "an inner address";
  EXPECT_THROW(deallocate(static_cast<char*>(p) + 512), invalid_use);
  record_stream(p, other.ref());
  EXPECT_FALSE(memory::fast_deallocate(p)) << "another stream's stamp is to be taken";
  deallocate(p);
  EXPECT_FALSE(memory::fast_deallocate(p)) << "a second time";
  EXPECT_THROW(deallocate(p), invalid_use);
  EXPECT_EQ(memory::fast_allocate(line(), bytes, 3), nullptr) << "no power of two";
  EXPECT_EQ(memory::fast_allocate(line(), bytes, 4_MiB), nullptr) << "too large an alignment";
  EXPECT_EQ(memory::fast_allocate(line(), ~std::size_t{0} - 100, 0), nullptr) << "a size that overflowed";
  sound();
}

TEST_F(large_blocks, another_thread_takes_the_lock_and_owns_it) {
  std::thread([&] {
    runtime_guard const here_too(own);
    EXPECT_EQ(memory::fast_allocate(line(), bytes, 0), nullptr);
    deallocate(allocate(s.ref(), bytes));
    for (int i = 0; i < 40; ++i)
      deallocate(allocate(s.ref(), bytes));
    EXPECT_TRUE(owned());
  }).join();
  EXPECT_FALSE(owned());
  become_owner();
  for (int i = 0; i < 40; ++i)
    become_owner();
  EXPECT_TRUE(owned());
  sound();
}

TEST_F(thread_caches, a_parked_threads_cache_serves_short_memory) {
  a_block_of_all_pages_is_had_while_a_thread_is_parked_after(
      [&] {
        for (void* p : some(s.ref(), 4096, 200))
          deallocate(p);
      },
      s.ref());
}

TEST_F(thread_caches, an_ended_threads_cache_goes_back) {
  std::thread([&] {
    runtime_guard const here_too(own);
    std::vector<void*> all;
    for (int i = 0; i < 100; ++i)
      all.push_back(allocate(s.ref(), 700));
    for (void* p : all)
      deallocate(p);
  }).join();
  sound();
  auto const n = memory_stats(0);
  EXPECT_EQ(n.allocation.small.allocated, 100);
  EXPECT_EQ(n.allocation.small.freed, 100);
  empty_cache(0);
  EXPECT_EQ(memory_stats(0).reserved_bytes.all.current, 0);
}

// Whether a step finds the cache open or closed, no slot is lost and none is handed out twice.
TEST_F(thread_caches, a_thread_works_while_others_empty_its_cache) {
  base::atomic<bool> done{false};
  base::atomic<int> wrong{0};
  auto const work = [&](unsigned seed) {
    runtime_guard const here_too(own);
    std::minstd_rand random(seed);
    std::vector<std::pair<void*, std::size_t>> held;
    for (int i = 0; i < 60'000; ++i) {
      if (held.size() < 40 && random() % 2) {
        std::size_t const bytes = random() % 5 ? random() % 1100 : random() % 9000;
        held.emplace_back(allocate(s.ref(), bytes), bytes);
        if (i % 64 == 0 && find_block(held.back().first).value().bytes != bytes)
          wrong.fetch_add(1);
      } else if (!held.empty()) {
        std::swap(held[random() % held.size()], held.back());
        deallocate(held.back().first);
        held.pop_back();
      }
    }
    for (auto const& h : held)
      deallocate(h.first);
    done.store(true);
  };
  std::thread one([&] { work(1); }), other([&] { work(2); });
  for (int i = 0; !done.load(); ++i) {
    if (i % 2)
      empty_cache(0);
    for (std::string const& what : device().validate()) {  // sums of bytes are of different moments while threads work
      if (what.find("slot") != std::string::npos)
        ADD_FAILURE() << what;
    }
  }
  one.join();
  other.join();
  EXPECT_EQ(wrong.load(), 0);
  sound();
  auto const n = memory_stats(0);
  EXPECT_EQ(n.allocation.small.current, 0);
  EXPECT_EQ(n.requested_bytes.all.current, 0);
  EXPECT_EQ(n.allocation.small.allocated, n.allocation.small.freed);
}

// It keeps some slots and returns the rest together.
TEST_F(thread_caches, a_thread_that_only_frees_returns_the_surplus) {
  std::vector<void*> all;
  fill(all, 256, 1000);
  std::thread([&] {
    runtime_guard const here_too(own);
    for (void* p : all)
      deallocate(p);
    sound();
    EXPECT_EQ(memory_stats(0).allocation.small.current, 0);
    std::vector<void*> again;
    fill(again, 256, 40);  // some of them come from this thread's cache
    EXPECT_TRUE(std::any_of(again.begin(), again.end(),
                            [&](void* p) { return std::find(all.begin(), all.end(), p) != all.end(); }));
    for (void* p : again)
      deallocate(p);
  }).join();
  sound();
}

}  // namespace
}  // namespace weir
