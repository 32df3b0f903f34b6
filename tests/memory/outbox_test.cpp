// Slots given back as used on another stream: they are pending wherever they are, and nothing that a thread gathers is out of reach.
// Threads: as each test says.
#include "runtime/memory/thread_cache.h"
#include "streams/context.h"
#include "tests/memory/small_device.h"
#include "weir/launch.h"

namespace weir {
namespace {

struct outboxes : tests::small_device {
  stream home, user;
  void SetUp() override {
    if (!base::can_fence_owners() || own.get().witness()) GTEST_SKIP() << "no thread can be fenced here, or each call is told to a checker: nothing is gathered";
  }
  std::vector<void*> some(std::size_t bytes, std::size_t n) { return small_device::some(home.ref(), bytes, n); }
  // By the way without the lock; by that with it where that is what is needed. Returns: how many went by the first.
  std::size_t give_back(std::vector<void*> const& all) {
    std::size_t quick = 0;
    for (void* p : all) {
      bool const gone = memory::quick_deallocate_used(&streams::line_of(user), p);
      quick += gone;
      if (!gone) deallocate(user, p);
    }
    return quick;
  }
};

TEST_F(outboxes, what_is_gathered_is_counted_as_pending_at_once_and_most_of_it_without_the_lock) {
  auto const small = some(500, 1000), large = some(20'000, 40);
  auto const before = memory_stats(0);
  EXPECT_GT(give_back(small), 900u);
  EXPECT_GT(give_back(large), 10u) << "an outbox holds 128 KiB";
  auto const n = memory_stats(0);
  EXPECT_EQ(n.allocation.all.current, 0);
  EXPECT_EQ(n.requested_bytes.all.current, 0);
  EXPECT_EQ(n.pending_bytes.all.current, before.allocated_bytes.all.current);
  EXPECT_EQ(n.active.all.current, before.allocation.all.current);
  EXPECT_EQ(n.allocation.small.freed, 1040);
  EXPECT_EQ(n.pending_bytes.small.peak, before.allocated_bytes.all.current);
  sound();
  std::size_t pending = 0, waits = 0;
  for (auto const& u : device().by_stream()) {
    pending += u.pending;
    for (auto const& w : u.waits_for) waits += w.bytes;
  }
  EXPECT_EQ(pending, static_cast<std::size_t>(n.pending_bytes.all.current)) << "the layout says the same";
  EXPECT_EQ(waits, pending) << "and so does what they wait for";
  empty_cache(0);
  EXPECT_EQ(memory_stats(0).reserved_bytes.all.current, 0);
  sound();
}

TEST_F(outboxes, a_slot_in_one_is_no_live_block) {
  auto const all = some(512, 20);
  give_back(all);
  for (void* p : all) EXPECT_FALSE(find_block(p));
  EXPECT_THROW(deallocate(all.back()), invalid_use);
  EXPECT_THROW(deallocate(user, all.back()), invalid_use);
  EXPECT_THROW(record_stream(all.back(), user), invalid_use);
  EXPECT_EQ(memory_stats(0).allocation.all.freed, 20);
  sound();
}

TEST_F(outboxes, marks_and_other_homes_go_by_the_lock_and_the_home_stream_needs_no_outbox) {
  auto const all = some(512, 40);
  give_back({all.begin(), all.begin() + 10});
  record_stream(all[10], home);  // its own stream: no mark
  EXPECT_TRUE(memory::quick_deallocate_used(&streams::line_of(user), all[10]));
  stream third;
  record_stream(all[11], third);
  EXPECT_FALSE(memory::quick_deallocate_used(&streams::line_of(user), all[11]));
  deallocate(user, all[11]);
  EXPECT_FALSE(memory::quick_deallocate_used(&streams::line_of(third), all[12])) << "another user";
  EXPECT_FALSE(memory::quick_deallocate_used(&streams::line_of(user), static_cast<char*>(all[12]) + 16));
  deallocate(all[12]);
  deallocate(all[13]);
  std::int64_t const waiting = memory_stats(0).pending_bytes.all.current;
  EXPECT_TRUE(memory::quick_deallocate_used(&streams::line_of(home), all[14])) << "nobody is to be waited for";
  EXPECT_EQ(memory_stats(0).pending_bytes.all.current, waiting);
  for (std::size_t i = 15; i < all.size(); ++i) deallocate(all[i]);
  sound();
}

// All blocks of an outbox wait for just what each would: work that the stream was given between two frees is waited for by the second alone.
TEST_F(outboxes, a_fence_between_two_frees_parts_them) {
  auto const all = some(512, 30);
  give_back({all.begin(), all.begin() + 10});
  event const done = user.record_event();
  EXPECT_FALSE(memory::quick_deallocate_used(&streams::line_of(user), all[10])) << "its stamp is another one";
  deallocate(user, all[10]);
  home.wait(done);
  auto const n = memory_stats(0).pending_bytes.all.current;
  EXPECT_EQ(n, 11 * 512) << "known only when somebody looks";
  sound();
  give_back({all.begin() + 11, all.end()});
  sound();
}

TEST_F(outboxes, go_home_with_their_thread) {
  auto const all = some(700, 100);
  std::thread([&] {
    runtime_guard const here_too(own);
    give_back(all);
    sound();
  }).join();
  sound();
  std::size_t waits = 0;
  for (auto const& u : device().by_stream()) {
    for (auto const& w : u.waits_for) waits += w.bytes;
  }
  EXPECT_EQ(waits, 100 * 704u);
  auto const again = some(700, 100);
  EXPECT_EQ(memory_stats(0).allocation.all.current, 100);
  for (void* p : again) deallocate(p);
  empty_cache(0);
  EXPECT_EQ(memory_stats(0).reserved_bytes.all.current, 0);
}

TEST_F(outboxes, of_a_thread_that_is_parked_serve_others_when_memory_is_short) {
  auto const all = some(4096, 200);
  a_block_of_all_pages_is_had_while_a_thread_is_parked_after([&] { EXPECT_GT(give_back(all), 100u); }, home.ref());
}

// A miss looks there before the memory grows: what is complete by then serves again.
TEST_F(outboxes, are_asked_before_small_blocks_make_their_memory_grow) {
  auto all = some(512, 4096);  // 2 MiB: a page of it all
  while (memory_stats(0).cached_bytes.all.current >= 512) {
    auto const more = some(512, 1);
    all.push_back(more.front());
  }
  auto const reserved = memory_stats(0).reserved_bytes.all.current;
  give_back({all.end() - 3, all.end()});  // the first by itself, two that wait in the outbox
  auto const three = some(512, 3);
  EXPECT_EQ(memory_stats(0).reserved_bytes.all.current, reserved);
  for (void* p : three) deallocate(p);
  all.resize(all.size() - 3);
  for (void* p : all) deallocate(p);
  sound();
}

TEST_F(outboxes, a_stream_that_takes_over_a_memory_takes_no_numbers_of_the_old_one_with_it) {
  for (int i = 0; i < 4; ++i) {
    std::vector<void*> all;
    {
      stream old;
      for (int k = 0; k < 50; ++k) all.push_back(allocate(old.ref(), 512));
      give_back(all);
      old.synchronize();
      user.synchronize();
    }
    stream heir;
    void* const p = allocate(heir.ref(), 512);
    sound();
    deallocate(p);
  }
}

// Whichever a step finds, open or shut, no slot is lost and none is anybody else's too.
TEST_F(outboxes, a_thread_gathers_on_while_others_shut_and_empty_its_outbox_over_and_over) {
  base::atomic<bool> done{false};
  std::thread one([&] {
    runtime_guard const here_too(own);
    for (int i = 0; i < 300; ++i) give_back(some(i % 3 ? 300 : 3000, 100));
    done.store(true);
  });
  for (int i = 0; !done.load(); ++i) {
    if (i % 2) empty_cache(0);
    for (std::string const& what : device().validate()) {  // sums of bytes are of different moments while others work
      if (what.find("slot") != std::string::npos) ADD_FAILURE() << what;
    }
  }
  one.join();
  sound();
  auto const n = memory_stats(0);
  EXPECT_EQ(n.allocation.small.current, 0);
  EXPECT_EQ(n.requested_bytes.all.current, 0);
  EXPECT_EQ(n.allocation.small.allocated, 30'000);
}

}  // namespace
}  // namespace weir
