// Slots that are freed while another stream uses them: they are pending wherever they are kept, and deferred
// frees stay reachable for other threads.
// Threads: as each test says.
#include "runtime/memory/heap/fast_path.h"
#include "streams/stream/context.h"
#include "tests/memory/small_device.h"
#include "tests/support/memory_bench.h"
#include "weir/launch.h"

namespace weir {
namespace {

struct deferred : tests::small_device {
  stream home, user;
  void SetUp() override {
    if (!base::has_process_wide_fence() || own.get().observer())
      GTEST_SKIP() << "no thread can be fenced here, or each call is told to a checker: nothing is gathered";
  }
  std::vector<void*> some(std::size_t bytes, std::size_t n) { return small_device::some(home.ref(), bytes, n); }
  // Frees without the lock where possible, else with it.
  // Returns: how many frees took no lock.
  std::size_t give_back(std::vector<void*> const& all) {
    std::size_t quick = 0;
    for (void* p : all) {
      bool const gone = memory::fast_deallocate_used(&streams::clock_of(user), p);
      quick += gone;
      if (!gone)
        deallocate(user, p);
    }
    return quick;
  }
};

// Most frees take no lock.
TEST_F(deferred, gathered_frees_count_as_pending_at_once) {
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
    for (auto const& w : u.waits_for)
      waits += w.bytes;
  }
  EXPECT_EQ(pending, static_cast<std::size_t>(n.pending_bytes.all.current)) << "the layout says the same";
  EXPECT_EQ(waits, pending) << "and so does what they wait for";
  empty_cache(0);
  EXPECT_EQ(memory_stats(0).reserved_bytes.all.current, 0);
  sound();
}

TEST_F(deferred, waiting_blocks_are_part_of_the_pending_peak) {
  void* const large = allocate(home.ref(), 1_MiB);
  auto const all = some(512, 40);
  deallocate(user, large);
  give_back(all);
  auto const most = memory_stats(0).pending_bytes.all.current;
  EXPECT_EQ(most, 40 * 512 + static_cast<std::int64_t>(1_MiB));
  user.synchronize();
  deallocate(allocate(home.ref(), 4_MiB));  // a miss reclaims complete memory; deferred frees wait on
  auto const n = memory_stats(0).pending_bytes;
  EXPECT_LT(n.all.current, most);
  EXPECT_GT(n.all.current, 0);
  EXPECT_EQ(n.all.peak, most);
  EXPECT_GE(n.small.peak, 40 * 512);
}

TEST_F(deferred, a_slot_in_one_is_no_live_block) {
  auto const all = some(512, 20);
  give_back(all);
  for (void* p : all)
    EXPECT_FALSE(find_block(p));
  EXPECT_THROW(deallocate(all.back()), invalid_use);
  EXPECT_THROW(deallocate(user, all.back()), invalid_use);
  EXPECT_THROW(record_stream(all.back(), user), invalid_use);
  EXPECT_EQ(memory_stats(0).allocation.all.freed, 20);
  sound();
}

// Neither needs a deferred free.
TEST_F(deferred, marks_and_other_homes_take_the_lock) {
  auto const all = some(512, 40);
  give_back({all.begin(), all.begin() + 10});
  record_stream(all[10], home);  // its home stream: no mark
  EXPECT_TRUE(memory::fast_deallocate_used(&streams::clock_of(user), all[10]));
  stream third;
  record_stream(all[11], third);
  EXPECT_FALSE(memory::fast_deallocate_used(&streams::clock_of(user), all[11]));
  deallocate(user, all[11]);
  EXPECT_FALSE(memory::fast_deallocate_used(&streams::clock_of(third), all[12])) << "another user";
  EXPECT_FALSE(memory::fast_deallocate_used(&streams::clock_of(user), static_cast<char*>(all[12]) + 16));
  deallocate(all[12]);
  deallocate(all[13]);
  std::int64_t const waiting = memory_stats(0).pending_bytes.all.current;
  EXPECT_TRUE(memory::fast_deallocate_used(&streams::clock_of(home), all[14])) << "no wait is needed";
  EXPECT_EQ(memory_stats(0).pending_bytes.all.current, waiting);
  for (std::size_t i = 15; i < all.size(); ++i)
    deallocate(all[i]);
  sound();
}

// Marks: the first two marks of a slot take no lock, and neither does the free of a slot with one or two marks.
struct users : deferred {
  stream third;
  std::vector<std::uint64_t> waited_for() {
    std::vector<std::uint64_t> all;
    for (auto const& u : device().by_stream()) {
      for (auto const& w : u.waits_for)
        all.push_back(w.stream);
    }
    return all;
  }
  static std::uint64_t id(stream const& s) { return streams::clock_of(s).id(); }
  auto& machine() { return own.get().machine(); }
  // Work enqueued on that stream from now on waits until the gate opens.
  driver::gate_handle hold(stream const& s) { return machine().hold(0, streams::clock_of(s).handle()).value; }
  void let_go(driver::gate_handle gate, stream const& s) {
    EXPECT_TRUE(machine().open_gate(gate).ok());
    s.synchronize();
  }
  void miss(std::size_t bytes) { deallocate(allocate(home.ref(), bytes)); }  // a miss reclaims pending blocks
};

// The block waits for its stream.
TEST_F(users, are_made_and_removed_without_the_lock) {
  auto const all = some(512, 400);
  std::size_t quick = 0, gone = 0;
  for (void* p : all) {
    bool const put = memory::fast_record_use(&streams::clock_of(user), p);
    quick += put;
    if (!put)
      record_stream(p, user);
    EXPECT_FALSE(memory::fast_deallocate(p)) << "a mark is to be looked at";
  }
  EXPECT_GT(quick, 350u);
  sound();
  for (void* p : all) {
    bool const went = memory::fast_deallocate_marked(nullptr, p);
    gone += went;
    if (!went)
      deallocate(p);
  }
  EXPECT_GT(gone, 300u);
  EXPECT_EQ(memory_stats(0).pending_bytes.all.current, 400 * 512);
  EXPECT_EQ(waited_for(), std::vector{id(user)});
  sound();
  user.synchronize();
  empty_cache(0);
  EXPECT_EQ(memory_stats(0).pending_bytes.all.current, 0);
  for (void* p : some(512, 400))
    deallocate(p);  // the same slots, without marks
  EXPECT_EQ(memory_stats(0).pending_bytes.all.current, 0);
  sound();
}

// Also if one of the two is named by the free, and whichever mark comes first.
TEST_F(users, for_two_streams_are_gathered_without_the_lock) {
  auto const all = some(700, 400);
  auto const first = hold(user), second = hold(third);
  std::size_t quick = 0, gone = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    stream const& last = i % 2 ? user : third;
    bool const is_named = i % 5 == 0;
    record_stream(all[i], i % 2 ? third : user);
    if (!is_named) {
      bool const put = memory::fast_record_use(&streams::clock_of(last), all[i]);
      quick += put;
      if (!put)
        record_stream(all[i], last);
    }
    bool const went = memory::fast_deallocate_marked(is_named ? &streams::clock_of(last) : nullptr, all[i]);
    gone += went;
    if (!went)
      is_named ? deallocate(last, all[i]) : deallocate(all[i]);
  }
  EXPECT_GT(quick, 250u);
  EXPECT_GT(gone, 300u);
  EXPECT_EQ(memory_stats(0).pending_bytes.all.current, 400 * 704);
  sound();
  let_go(first, user);
  miss(4_MiB);
  EXPECT_EQ(waited_for(), std::vector{id(third)}) << "each block waits for both";
  EXPECT_EQ(memory_stats(0).pending_bytes.all.current, 400 * 704);
  let_go(second, third);
  empty_cache(0);
  EXPECT_EQ(memory_stats(0).pending_bytes.all.current, 0);
  sound();
}

// Frees that wait for one stream and frees that wait for two do not drive each other out.
TEST_F(users, for_one_and_for_two_streams_are_gathered_apart) {
  auto const all = some(700, 400);
  std::size_t gone = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    record_stream(all[i], user);
    if (i % 2)
      record_stream(all[i], third);
    bool const went = memory::fast_deallocate_marked(nullptr, all[i]);
    gone += went;
    if (!went)
      deallocate(all[i]);
  }
  EXPECT_GT(gone, 300u);
  EXPECT_EQ(memory_stats(0).pending_bytes.all.current, 400 * 704);
  sound();
}

// Neither the first nor the second stream may have had a fence since.
TEST_F(users, with_a_new_stamp_are_parted_from_those_before) {
  auto const all = some(700, 60);
  auto const give = [&](std::size_t from, std::size_t to) {
    std::size_t gone = 0;
    for (std::size_t i = from; i < to; ++i) {
      record_stream(all[i], user), record_stream(all[i], third);
      bool const went = memory::fast_deallocate_marked(nullptr, all[i]);
      gone += went;
      if (!went)
        deallocate(all[i]);
    }
    return gone;
  };
  EXPECT_GT(give(0, 20), 10u);
  (void)third.record_event();
  EXPECT_EQ(give(20, 21), 0u) << "the second stream's stamp is another one";
  EXPECT_GT(give(21, 40), 10u);
  (void)user.record_event();
  EXPECT_EQ(give(40, 41), 0u) << "the first stream's stamp is another one";
  EXPECT_GT(give(41, 60), 10u);
  sound();
}

// Also beside another user: the block waits for all of them.
TEST_F(users, for_three_streams_take_the_lock) {
  auto const all = some(700, 20);
  stream fourth;
  auto const first = hold(user), second = hold(third);
  for (void* p : all)
    record_stream(p, user), record_stream(p, user), record_stream(p, fourth);
  record_stream(all[10], third);
  EXPECT_FALSE(memory::fast_deallocate_marked(nullptr, all[10]));
  deallocate(all[10]);
  EXPECT_FALSE(memory::fast_deallocate_marked(&streams::clock_of(third), all[11])) << "used by two others, too";
  deallocate(third, all[11]);
  EXPECT_FALSE(memory::fast_deallocate_marked(nullptr, static_cast<char*>(all[12]) + 16)) << "an inner address";
  EXPECT_THROW(deallocate(static_cast<char*>(all[12]) + 16), invalid_use);
  let_go(first, user);
  fourth.synchronize();
  miss(4_MiB);
  EXPECT_EQ(waited_for(), std::vector{id(third)}) << "both blocks, though its own work was done last";
  EXPECT_EQ(memory_stats(0).pending_bytes.all.current, 2 * 704);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i == 10 || i == 11)
      continue;
    deallocate(i % 2 ? home : user, all[i]);
    EXPECT_THROW(deallocate(all[i]), invalid_use) << "a second time";
  }
  let_go(second, third);
  sound();
}

TEST_F(users, of_a_block_that_has_another_home_stay_with_it) {
  buffer b(512);
  record_stream(b.data(), user);
  b.set_stream(third);
  EXPECT_FALSE(memory::fast_record_use(&streams::clock_of(user), b.data()));
  EXPECT_FALSE(memory::fast_deallocate_marked(nullptr, b.data()));
  record_stream(b.data(), home);
  b.reset();
  auto const them = waited_for();
  EXPECT_FALSE(them.empty());
  sound();
}

// Two threads mark the same blocks for two streams at once: no mark is lost, whichever comes first.
TEST_F(users, by_two_threads_at_once_are_both_kept) {
  for (int i = 0; i < 5; ++i) {
    auto const held = hold(user), held_third = hold(third);
    auto const all = some(640, 1000);
    base::atomic<int> here_now{0};
    auto const mark_all = [&](stream const& s) {
      runtime_guard const here_too(own);
      auto const first = some(640, 8);  // so that the thread has a cache of that heap
      record_stream(first[0], s);
      here_now.fetch_add(1);
      while (here_now.load() < 2) {}
      for (void* p : all)
        record_stream(p, s);
      for (void* p : first)
        deallocate(p);
    };
    std::thread other([&] { mark_all(third); });
    mark_all(user);
    other.join();
    for (void* p : all)
      deallocate(p);
    let_go(held, user);
    miss(8_MiB);
    EXPECT_EQ(waited_for(), std::vector{id(third)}) << "round " << i;
    EXPECT_EQ(memory_stats(0).pending_bytes.all.current, 640 * 1001)
        << "with the one that the other thread marked alone";
    let_go(held_third, third);
    empty_cache(0);
    ASSERT_TRUE(waited_for().empty());
  }
  sound();
}

// Each deferred free waits for its own stamp only: the first free does not wait for work enqueued after it.
TEST_F(deferred, a_fence_between_two_frees_parts_them) {
  auto const all = some(512, 30);
  give_back({all.begin(), all.begin() + 10});
  event const done = user.record_event();
  EXPECT_FALSE(memory::fast_deallocate_used(&streams::clock_of(user), all[10])) << "its stamp is another one";
  deallocate(user, all[10]);
  home.wait(done);
  auto const n = memory_stats(0).pending_bytes.all.current;
  EXPECT_EQ(n, 512) << "the first ten are ordered before what home is given next";
  sound();
  give_back({all.begin() + 11, all.end()});
  sound();
}

TEST_F(deferred, go_home_with_their_thread) {
  auto const all = some(700, 100);
  std::thread([&] {
    runtime_guard const here_too(own);
    give_back(all);
    sound();
  }).join();
  sound();
  std::size_t waits = 0;
  for (auto const& u : device().by_stream()) {
    for (auto const& w : u.waits_for)
      waits += w.bytes;
  }
  EXPECT_EQ(waits, 100 * 704u);
  auto const again = some(700, 100);
  EXPECT_EQ(memory_stats(0).allocation.all.current, 100);
  for (void* p : again)
    deallocate(p);
  empty_cache(0);
  EXPECT_EQ(memory_stats(0).reserved_bytes.all.current, 0);
}

TEST_F(deferred, of_a_parked_thread_serve_when_memory_is_short) {
  auto const all = some(4096, 200);
  a_block_of_all_pages_is_had_while_a_thread_is_parked_after([&] { EXPECT_GT(give_back(all), 100u); }, home.ref());
}

// A miss reclaims complete deferred frees before the memory grows.
TEST_F(deferred, are_asked_before_small_blocks_cause_growth) {
  auto all = some(512, 4096);  // 2 MiB: a whole page
  while (memory_stats(0).cached_bytes.all.current >= 512) {
    auto const more = some(512, 1);
    all.push_back(more.front());
  }
  auto const reserved = memory_stats(0).reserved_bytes.all.current;
  give_back({all.end() - 3, all.end()});  // the first is freed alone, two are deferred
  auto const three = some(512, 3);
  EXPECT_EQ(memory_stats(0).reserved_bytes.all.current, reserved);
  for (void* p : three)
    deallocate(p);
  all.resize(all.size() - 3);
  for (void* p : all)
    deallocate(p);
  sound();
}

TEST_F(deferred, a_taken_over_memory_gets_no_old_numbers) {
  for (int i = 0; i < 4; ++i) {
    std::vector<void*> all;
    {
      stream old;
      for (int k = 0; k < 50; ++k)
        all.push_back(allocate(old.ref(), 512));
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

// Whether a step finds the deferred frees open or closed, no slot is lost and none is handed out twice.
TEST_F(deferred, a_thread_gathers_while_others_empty_its_outbox) {
  base::atomic<bool> done{false};
  std::thread one([&] {
    runtime_guard const here_too(own);
    for (int i = 0; i < 300; ++i)
      give_back(some(i % 3 ? 300 : 3000, 100));
    done.store(true);
  });
  for (int i = 0; !done.load(); ++i) {
    if (i % 2)
      empty_cache(0);
    for (std::string const& what : device().validate()) {  // sums of bytes are of different moments while threads work
      if (what.find("slot") != std::string::npos)
        ADD_FAILURE() << what;
    }
  }
  one.join();
  sound();
  auto const n = memory_stats(0);
  EXPECT_EQ(n.allocation.small.current, 0);
  EXPECT_EQ(n.requested_bytes.all.current, 0);
  EXPECT_EQ(n.allocation.small.allocated, 30'000);
}

// Deferred frees keep the stamp of their home at the last free. After the home stream has ended, its numbers
// mean nothing for the stream that inherits its heap. Slots that returned too late would wait for a number
// that the heir reaches only after hundreds of fences.
TEST(ended_deferred, go_home_before_their_memory_is_reused) {
  if (!base::has_process_wide_fence())
    GTEST_SKIP() << "no thread can be fenced here: nothing is gathered";
  tests::memory_bench bench({.devices = 1, .memory = 8_MiB, .schedule = simulated::scheduling::stepped});
  if (bench.core.observer())
    GTEST_SKIP() << "each call is told to a checker: nothing is gathered";
  memory::allocator& d = bench.on(0);
  clock::stream_clock &first = bench.stream(0), &user = bench.stream(0), &next = bench.stream(0),
                      &third = bench.stream(0);
  for (int i = 0; i < 200; ++i)
    ASSERT_TRUE(first.fence().ok());  // its numbers are ahead of the next stream's
  std::vector<void*> all;
  for (int i = 0; i < 40; ++i)
    all.push_back(d.allocate(first, 512, 0, source_location::current()));
  ASSERT_TRUE(bench.machine().enqueue(0, user.handle(), {}, {[](void*) {}, nullptr, nullptr}).ok());
  std::size_t gathered = 0;
  for (void* p : all) {
    bool const quick = memory::fast_deallocate_used(&user, p);
    gathered += quick;
    if (!quick)
      d.deallocate(p, &user, source_location::current());
  }
  ASSERT_GT(gathered, 20u);
  bench.clocks().retire(first);
  for (auto* line : {&first, &user})
    ASSERT_TRUE(bench.clocks().synchronize(line->now()).ok());
  d.deallocate(d.allocate(next, 512, 0, source_location::current()), nullptr, source_location::current());
  for (stream_memory_use const& u : d.by_stream()) {
    EXPECT_EQ(u.stream, next.id()) << "the next stream has inherited it";
    EXPECT_EQ(u.pending, 0u) << "what was given back is done";
  }
  std::uint64_t const fences = bench.clocks().counted().fences;
  void* whole = nullptr;
  EXPECT_NO_THROW(whole = d.allocate(third, 8_MiB, 0, source_location::current()))
      << "what has come free serves every stream";
  EXPECT_LE(bench.clocks().counted().fences - fences, 4u)
      << "to complete a number of the first stream on the next one takes as many as that";
  if (whole)
    d.deallocate(whole, nullptr, source_location::current());
  EXPECT_EQ(d.validate(), std::vector<std::string>{});
}

}  // namespace
}  // namespace weir
