// Memory whose last use a gate holds goes only to streams behind that gate, and does go to them. WEIR_DEVICES
// chooses the machine. No test depends on time; a watchdog ends a hanging one.
// Threads: a test and its watchdog.
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <random>
#include <thread>

#include "runtime/core/parts.h"
#include "streams/stream/context.h"
#include "tests/soak/crooked.h"
#include "tests/soak/gatekeeper.h"
#include "tests/soak/stamp.h"
#include "tests/support/seeds.h"
#include "weir/copy.h"
#include "weir/observe.h"

namespace weir::soak {
namespace {

constexpr std::size_t big = 8_MiB;

struct rig {
  explicit rig(options o = {}) {
    auto [machine, why] = open_machine();
    auto owned = std::make_unique<gatekeeper>(std::move(machine));
    keeper = owned.get();
    runs = make_runtime(std::move(owned), o, why);
    in.emplace(*runs);
    watchdog = std::thread([this] {
      std::unique_lock hold(lock);
      if (changed.wait_for(hold, std::chrono::seconds(60), [this] { return over; }))
        return;
      std::fprintf(stderr, "gate_test: nothing came for 60 s\n");
      std::_Exit(1);
    });
  }
  ~rig() {
    keeper->open_all();
    {
      std::lock_guard const hold(lock);
      over = true;
    }
    changed.notify_all();
    watchdog.join();
    in.reset();
  }
  struct lane {
    stream on;
    tally* found;
    stream_key key;
    explicit lane(int d = 0) : on(device(d)), key{d, streams::clock_of(on).handle()} {
      stream_guard const here_(on);
      found = static_cast<tally*>(allocate(sizeof(tally)));
      fill(found, std::byte{0}, sizeof(tally));
      // no first launch in a test, because it may wait for the device
      auto* const some = static_cast<std::byte*>(allocate(512));
      stamp(on, some, 512, 1, 0);
      verify(on, some, 512, 1, 0, found);
      deallocate(some);
      on.synchronize();
    }
    ~lane() { deallocate(found); }
    lane(lane const&) = delete;
  };
  void hold_(lane& l) { ASSERT_TRUE(keeper->hold(l.key.first, l.key.second).ok()); }
  // Returns: whether the held stream stays incomplete over many queries.
  bool stays(lane& l) {
    for (int i = 0; i < 300; ++i) {
      if (keeper->query_stream(l.key.first, l.key.second).ok())
        return false;
    }
    return true;
  }
  std::uint64_t mismatches(std::initializer_list<lane*> all) {
    keeper->open_all();
    std::uint64_t sum = 0;
    for (lane* l : all) {
      tally now{};
      copy(l->on, &now, l->found, sizeof now);
      sum += now.mismatches;
    }
    return sum;
  }

  gatekeeper* keeper = nullptr;
  std::unique_ptr<runtime> runs;
  std::optional<runtime_guard> in;
  std::mutex lock;
  std::condition_variable changed;
  bool over = false;
  std::thread watchdog;
};
using lane = rig::lane;

std::byte* block_on(lane& l, std::size_t bytes, noted* notes = nullptr) {
  noted unread;
  crooked::asking const in(notes ? *notes : unread);
  return static_cast<std::byte*>(allocate(l.on, bytes));
}
bool overlap(std::byte const* a, std::byte const* b, std::size_t bytes) {
  return a < b + bytes && b < a + bytes;
}

struct freed {
  std::byte* at;
  std::uint64_t last_use;  // what was given until then
};
// A block is written, used behind the gate and freed.
freed freed_while_held(rig& r, lane& l) {
  auto* const p = block_on(l, big);
  stamp(l.on, p, big, 1, 0);
  r.hold_(l);
  verify(l.on, p, big, 1, 0, l.found);
  auto const last_use = r.keeper->given(l.key);
  deallocate(p);
  return {p, last_use};
}

// Room for the counters and one `big`.
options only_one(int lanes) {
  return {.device_limit = big + static_cast<std::size_t>(lanes) * 2_MiB};
}

TEST(gate, held_memory_serves_its_own_stream_only) {
  rig r;
  lane a, b;
  auto* const p = freed_while_held(r, a).at;
  auto* const other = block_on(b, big);
  EXPECT_FALSE(overlap(p, other, big));
  stamp(b.on, other, big, 2, 0);
  EXPECT_EQ(block_on(a, big), p);
  EXPECT_EQ(r.keeper->closed(), 1u) << "the host waited";
  stamp(a.on, p, big, 3, 0);
  verify(a.on, p, big, 3, 0, a.found);
  b.on.synchronize();  // not held, but a host wait opens gates
  EXPECT_EQ(r.mismatches({&a, &b}), 0u);
}

TEST(gate, without_other_memory_a_stream_waits_for_the_held_use) {
  rig r(only_one(2));
  lane a, b;
  auto const [p, last_use] = freed_while_held(r, a);
  noted notes;
  auto* const q = block_on(b, big, &notes);
  ASSERT_TRUE(overlap(p, q, big));
  ASSERT_EQ(r.keeper->closed(), 1u) << "the host waited";
  stamp(b.on, q, big, 2, 0);
  verify(b.on, q, big, 2, 0, b.found);
  EXPECT_EQ(r.keeper->gates_of(b.key), r.keeper->gates_of(a.key));
  EXPECT_TRUE(r.stays(b));
  ASSERT_EQ(notes.waits.size(), 1u);
  EXPECT_EQ(notes.waits[0].on, a.key);
  EXPECT_EQ(notes.waits[0].covered, last_use) << "an over-wait where nothing was given after the last use";
  EXPECT_EQ(r.mismatches({&a, &b}), 0u);
}

TEST(gate, a_wait_beyond_the_last_use_is_counted) {
  rig r(only_one(2));
  lane a, b;
  auto const [p, last_use] = freed_while_held(r, a);
  auto* const small = block_on(a, 4096);
  for (int i = 0; i < 5; ++i)
    stamp(a.on, small, 4096, 7, 0);
  noted notes;
  ASSERT_TRUE(overlap(p, block_on(b, big, &notes), big));
  ASSERT_EQ(notes.waits.size(), 1u);
  EXPECT_EQ(notes.waits[0].covered - last_use, 5u) << "a fence first recorded at a miss covers what was given since";
}

TEST(gate, a_timely_fence_spares_the_waiter_later_work) {
  rig r(only_one(2));
  lane a, b;
  auto* const p = block_on(a, big);
  stamp(a.on, p, big, 1, 0);
  verify(a.on, p, big, 1, 0, a.found);
  deallocate(p);
  event const fence = a.on.record_event();
  r.hold_(a);
  auto* const small = block_on(a, 4096);
  stamp(a.on, small, 4096, 7, 0);
  while (!fence.query()) {}
  noted notes;
  auto* const q = block_on(b, big, &notes);
  ASSERT_TRUE(overlap(p, q, big));
  EXPECT_TRUE(notes.waits.empty());
  EXPECT_TRUE(r.keeper->gates_of(b.key).empty());
  EXPECT_EQ(r.keeper->closed(), 1u);
  stamp(b.on, q, big, 2, 0);
  while (!b.on.query()) {}  // it runs although the first stream is held
  EXPECT_EQ(r.mismatches({&a}), 0u);
}

TEST(gate, a_stream_behind_the_held_use_gets_it_for_nothing) {
  rig r;
  lane a, b;
  auto* const p = freed_while_held(r, a).at;
  b.on.wait(a.on.ref());
  noted notes;
  auto* const q = block_on(b, big, &notes);
  EXPECT_EQ(q, p);
  EXPECT_TRUE(notes.waits.empty());
  EXPECT_EQ(notes.created, 0);
  stamp(b.on, q, big, 2, 0);
  EXPECT_TRUE(r.stays(b));
  EXPECT_EQ(r.mismatches({&a, &b}), 0u);
}

TEST(gate, complete_memory_is_transferred_without_a_wait) {
  rig r(only_one(2));
  lane a, b;
  auto* const p = block_on(a, big);
  stamp(a.on, p, big, 1, 0);
  deallocate(p);
  ASSERT_TRUE(r.keeper->inner().synchronize_stream(a.key.first, a.key.second).ok());  // without weir's knowledge
  noted notes;
  EXPECT_TRUE(overlap(p, block_on(b, big, &notes), big));
  EXPECT_TRUE(notes.waits.empty());
  EXPECT_GT(notes.yes, 0);
}

// Three ways to declare another stream: record_stream, a launch, or the free.
void used_elsewhere(int way) {
  rig r;
  lane home, user;
  auto* const p = block_on(home, big);
  stamp(home.on, p, big, 1, 0);
  user.on.wait(home.on.ref());
  r.hold_(user);
  if (way == 0)
    record_stream(p, user.on);
  verify(user.on, p, big, 1, 0, user.found);
  if (way == 2)
    deallocate(user.on, p);
  else
    deallocate(p);
  auto* const q = block_on(home, big);
  EXPECT_FALSE(overlap(p, q, big)) << "its own stream got it although another one is not done";
  stamp(home.on, q, big, 2, 0);
  while (!home.on.query()) {}
  EXPECT_EQ(r.keeper->closed(), 1u);
  EXPECT_EQ(r.mismatches({&home, &user}), 0u);
}
TEST(gate, memory_marked_for_a_held_stream_does_not_serve_its_home) {
  used_elsewhere(0);
}
TEST(gate, memory_a_held_launch_declares_does_not_serve_its_home) {
  used_elsewhere(1);
}
TEST(gate, memory_with_a_held_last_use_does_not_serve_its_home) {
  used_elsewhere(2);
}

TEST(gate, a_held_copys_pinned_source_does_not_serve_the_host) {
  rig r;
  lane a;
  auto* const to = block_on(a, 1_MiB);
  buffer from = pinned(1_MiB);
  for (std::size_t i = 0; i < 1_MiB / 4; ++i)
    from.data<std::uint32_t>()[i] = stamped(5, i);
  r.hold_(a);
  copy(a.on, to, from.data(), 1_MiB, non_blocking);
  verify(a.on, to, 1_MiB, 5, 0, a.found);
  auto* const was = from.data<std::byte>();
  from.reset();
  buffer next = pinned(1_MiB);
  EXPECT_FALSE(overlap(was, next.data<std::byte>(), 1_MiB));
  std::fill_n(next.data<std::byte>(), next.size(), std::byte{9});
  EXPECT_EQ(r.keeper->closed(), 1u);
  EXPECT_EQ(r.mismatches({&a}), 0u);
}

TEST(gate, pages_under_a_held_use_are_unmapped_when_it_is_done) {
  rig r;
  lane a;
  (void)freed_while_held(r, a);
  r.keeper->keep_closed(true);
  int const before = r.keeper->host_waits();
  std::size_t gave = 0;
  std::thread emptier([&] {
    runtime_guard const in(*r.runs);
    gave = empty_cache(device(0));
  });
  while (r.keeper->host_waits() == before)
    std::this_thread::yield();
  EXPECT_EQ(r.keeper->unmapped(), 0u);
  r.keeper->keep_closed(false);
  r.keeper->open_all();
  emptier.join();
  EXPECT_GE(gave, big);
  EXPECT_GT(r.keeper->unmapped(), 0u);
  EXPECT_EQ(r.mismatches({&a}), 0u);
}

TEST(gate, the_source_of_a_held_peer_copy_is_not_reused) {
  rig r;
  if (device_count() < 2)
    GTEST_SKIP() << "needs 2 devices; there are " << device_count();
  lane a(0), b(1), c(0);  // created before any hold, because each waits for its stream
  auto *const from = block_on(a, big), *const to = block_on(b, big);
  stamp(a.on, from, big, 1, 0);
  {
    stream_guard const there(b.on), here_(a.on);
    copy(b.on, to, from, big, non_blocking);  // orders both streams, and tests the link
    synchronize(0), synchronize(1);
    r.hold_(b);
    copy(b.on, to, from, big, non_blocking);
  }
  verify(b.on, to, big, 1, 0, b.found);
  deallocate(from);
  EXPECT_EQ(r.keeper->gates_of(a.key), r.keeper->gates_of(b.key)) << "a copy between devices orders both";
  auto* const other = block_on(c, big);
  EXPECT_FALSE(overlap(from, other, big));
  ASSERT_EQ(r.keeper->gates_of(b.key).size(), 1u) << "the host waited, so that nothing was held any more";
  r.keeper->open_all();
  // without weir's knowledge
  for (lane* l : {&a, &b})
    ASSERT_TRUE(r.keeper->inner().synchronize_stream(l->key.first, l->key.second).ok());
  EXPECT_TRUE(overlap(from, block_on(c, big), big))
      << "once the copy is done its source serves others before new memory does";
  EXPECT_EQ(r.mismatches({&a, &b}), 0u);
}

// Random programs. The oracle is the gatekeeper, which does not use weir's clocks.
struct memory_of_past {
  std::size_t bytes;
  gatekeeper::gates behind;  // the gates of its last uses at the free
};

void run_program(std::uint64_t seed, std::uint64_t& handed, std::uint64_t& waits, std::uint64_t& over_held) {
  SCOPED_TRACE("WEIR_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  auto const below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  // so that streams wait for each other
  rig r(options{.device_limit = seed % 2 ? 12_MiB : 0, .fence_interval = 1_MiB});
  std::vector<std::unique_ptr<lane>> lanes;
  for (int i = 0; i < 4; ++i)
    lanes.push_back(std::make_unique<lane>());
  struct live_block {
    std::byte* at;
    std::size_t bytes;
    std::uint64_t id;
    lane* home;
    gatekeeper::gates others;
  };
  std::vector<live_block> live;
  std::map<std::byte*, memory_of_past> past;
  std::uint64_t next_id = 1;
  std::size_t const sizes[] = {4096, 100'000, 300'000, 1_MiB};
  auto const make = [&] {
    lane& l = *lanes[below(4)];
    std::size_t const bytes = sizes[below(4)];
    noted notes;
    std::byte* at = nullptr;
    try {
      at = block_on(l, bytes, &notes);
    } catch (out_of_memory const&) {
      return;
    }
    gatekeeper::gates needed;
    for (auto const& [from, was] : past) {
      if (from < at + bytes && at < from + was.bytes)
        needed.merge(r.keeper->still_closed(was.behind));
    }
    auto const has = r.keeper->gates_of(l.key);
    for (auto const g : needed) {
      ASSERT_TRUE(has.contains(g)) << "memory whose last use is held was handed to a stream that is not";
    }
    handed += !needed.empty();
    waits += notes.waits.size();
    if (!notes.waits.empty())
      over_held += has.size() - needed.size();
    std::erase_if(past, [&](auto const& one) { return one.first < at + bytes && at < one.first + one.second.bytes; });
    live.push_back({at, bytes, next_id++, &l, {}});
    stamp(l.on, at, bytes, live.back().id, 0);
  };
  auto const drop = [&](std::size_t i) {
    live_block b = live[i];
    live.erase(live.begin() + static_cast<std::ptrdiff_t>(i));
    verify(b.home->on, b.at, b.bytes, b.id, 0, b.home->found);
    b.others.merge(r.keeper->gates_of(b.home->key));
    past[b.at] = {b.bytes, b.others};
    deallocate(b.at);
  };
  for (int step = 0; step < 200 && !testing::Test::HasFatalFailure(); ++step) {
    std::size_t const dice = below(100);
    if (live.empty() || dice < 40) {
      make();
    } else if (dice < 65) {
      drop(below(live.size()));
    } else if (dice < 80) {  // used by another stream, ordered after the home
      live_block& b = live[below(live.size())];
      lane& user = *lanes[below(4)];
      user.on.wait(b.home->on.ref());
      verify(user.on, b.at, b.bytes, b.id, 0, user.found);
      b.others.merge(r.keeper->gates_of(user.key));
    } else if (dice < 90) {
      if (r.keeper->closed() < 3)
        r.hold_(*lanes[below(4)]);
    } else if (dice < 97) {
      r.keeper->open_all();
    } else {
      lanes[below(4)]->on.synchronize();
    }
  }
  while (!live.empty())
    drop(live.size() - 1);
  EXPECT_EQ(r.mismatches({lanes[0].get(), lanes[1].get(), lanes[2].get(), lanes[3].get()}), 0u);
}

TEST(gate, held_memory_goes_to_streams_behind_the_same_gates) {
  char const* const one = std::getenv("WEIR_TEST_SEED");
  std::uint64_t const first = tests::number_from_environment("WEIR_TEST_SEED", 1);
  std::uint64_t const asked =
      one ? 1 : std::max<std::uint64_t>(tests::number_from_environment("WEIR_TEST_SEEDS", 400) / 20, 10);
  std::uint64_t handed = 0, waits = 0, over_held = 0, seed = first;
  // Fast work needs few waits: draws up to twenty times as many programs until one has come.
  auto const due = [&] {
    return seed < first + asked || (!one && (handed == 0 || waits == 0) && seed < first + 20 * asked);
  };
  for (; due() && !HasFatalFailure(); ++seed)
    run_program(seed, handed, waits, over_held);
  std::printf(
      "%llu programs: %llu blocks handed over behind a closed gate, %llu waits inserted, which held a stream by %llu "
      "gates more than the memory asked for\n",
      static_cast<unsigned long long>(seed - first), static_cast<unsigned long long>(handed),
      static_cast<unsigned long long>(waits), static_cast<unsigned long long>(over_held));
  if (one)
    return;
  EXPECT_GT(handed, 0u);
  EXPECT_GT(waits, 0u);
}

}  // namespace
}  // namespace weir::soak
