// Each freedom of docs/reference/simulated-machine.md, forced where possible: what it does and never does.
// Threads: one.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <set>

#include "simulator/machine/machine.h"

namespace weir::driver::sim {
namespace {

using scheduling = weir::simulated::scheduling;
using taken = weir::simulated::allowed;
constexpr std::size_t page = 64_KiB;

work task(std::function<void()> body) {
  using held = std::function<void()>;
  return {[](void* f) { (*static_cast<held*>(f))(); }, [](void* f) { delete static_cast<held*>(f); },
          new held(std::move(body))};
}

struct bench {
  explicit bench(weir::simulated like) {
    auto m = make(like);
    machine = std::move(m.machine);
    control = m.control;
    for (int d = 0; d < like.devices; ++d)
      EXPECT_TRUE(machine->open(d).ok());
  }
  stream_handle stream(int device = 0) { return machine->create_stream(device, stream_kind::independent, 0).value; }
  event_handle event(int device = 0, event_kind kind = event_kind::order_only) {
    return machine->create_event(device, kind).value;
  }
  std::uint32_t* device_page(int device) {
    address const at = machine->reserve(page, page).value;
    memory_handle const h = machine->create(device, page).value;
    EXPECT_TRUE(machine->map(at, page, h).ok());
    EXPECT_TRUE(machine->grant(at, page, device).ok());
    EXPECT_TRUE(machine->release(h).ok());
    return reinterpret_cast<std::uint32_t*>(at);
  }
  std::uint64_t times(int freedom) const {
    return control->freedoms_taken()[static_cast<std::size_t>(freedom) - 1].times;
  }
  std::unique_ptr<driver> machine;
  controls* control;
};

TEST(sim_freedoms, a_wait_blocks_other_work_on_its_connection) {
  bench b({.devices = 2, .memory = 1_MiB, .schedule = scheduling::stepped, .connections = 1});
  auto const s = b.stream(), t = b.stream(), far = b.stream(1);
  auto const e = b.event(1);
  b.machine->enqueue(1, far, {}, task([] {}));
  b.machine->record(1, far, e);
  ASSERT_TRUE(b.machine->wait(0, s, e).ok());
  bool ran = false;
  ASSERT_TRUE(b.machine->enqueue(0, t, {}, task([&] { ran = true; })).ok());
  EXPECT_FALSE(b.control->step(0, t)) << "it stands behind the wait of s";
  EXPECT_TRUE(b.control->step(1, far)) << "another device has its own connections";
  EXPECT_FALSE(b.control->step(0, t));
  EXPECT_TRUE(b.control->step(1, far));
  EXPECT_TRUE(b.control->step(0, s));
  EXPECT_TRUE(b.control->step(0, t));
  EXPECT_TRUE(ran);
  EXPECT_GT(b.times(2), 0u);
}

TEST(sim_freedoms, begun_work_delays_nothing_and_a_host_wait_ends) {
  for (auto how : {scheduling::seeded, scheduling::threads, scheduling::stepped}) {
    for (std::uint64_t seed = 1; seed <= (how == scheduling::seeded ? 100u : 5u); ++seed) {
      bench b({.devices = 2,
               .memory = 1_MiB,
               .schedule = how,
               .seed = seed,
               .connections = 1 + static_cast<int>(seed % 3)});
      std::vector<stream_handle> s;
      std::vector<event_handle> e;
      for (int i = 0; i < 6; ++i)
        s.push_back(b.stream(i % 2)), e.push_back(b.event(i % 2));
      std::vector<int> ran(6);
      for (int round = 0; round < 5; ++round) {
        for (std::size_t i = 0; i < 6; ++i) {
          int const d = static_cast<int>(i % 2);
          ASSERT_TRUE(b.machine->wait(d, s[i], e[(i * 5 + seed) % 6]).ok());
          ASSERT_TRUE(b.machine->enqueue(d, s[i], {}, task([&ran, i] { ++ran[i]; })).ok());
          ASSERT_TRUE(b.machine->record(d, s[i], e[i]).ok());
        }
      }
      for (std::size_t i = 6; i-- > 0;)
        ASSERT_TRUE(b.machine->synchronize_stream(static_cast<int>(i % 2), s[i]).ok()) << "seed " << seed;
      ASSERT_EQ(ran, std::vector<int>(6, 5));
    }
  }
}

TEST(sim_freedoms, while_a_gate_is_closed_no_stream_shares) {
  bench b({.devices = 1, .memory = 1_MiB, .schedule = scheduling::stepped, .connections = 1});
  auto const s = b.stream(), t = b.stream(), u = b.stream();
  auto const e = b.event();
  auto const gate = b.machine->hold(0, s);
  b.machine->record(0, s, e);
  b.machine->wait(0, t, e);
  b.machine->enqueue(0, u, {}, task([] {}));
  EXPECT_TRUE(b.control->step(0, u));
  EXPECT_TRUE(b.machine->open_gate(gate.value).ok());
}

// A program whose streams must not block each other gives a number that is at least theirs.
TEST(sim_freedoms, given_connections_are_shared_in_turn) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    bench b({.devices = 1, .memory = 1_MiB, .schedule = scheduling::seeded, .seed = seed, .connections = 8});
    int ran = 0;
    weir::driver::work never{[](void*) {}, nullptr, nullptr};
    never.ready = [](void*) { return false; };
    std::vector<stream_handle> s;
    for (int i = 0; i < 8; ++i)
      s.push_back(b.stream(0));
    ASSERT_TRUE(b.machine->enqueue(0, s[0], {}, never).ok());
    weir::driver::work const counts{[](void* p) { ++*static_cast<int*>(p); }, nullptr, &ran};
    for (int i = 1; i < 8; ++i)
      ASSERT_TRUE(b.machine->enqueue(0, s[static_cast<std::size_t>(i)], {}, counts).ok());
    EXPECT_FALSE(b.control->run());
    EXPECT_EQ(ran, 7) << "seed " << seed;
  }
}

// A wait puts a part behind work that stands behind the other part: a deadlock with shared connections.
TEST(sim_freedoms, a_part_holds_its_connection_until_all_have_come) {
  for (int connections : {0, 1}) {
    bench b({.devices = 2, .memory = 1_MiB, .schedule = scheduling::stepped, .connections = connections});
    auto const parts = b.stream(0), beside = b.stream(0), far = b.stream(1);
    int arrived = 0;
    auto const arrive = [](void* n) { ++*static_cast<int*>(n); };
    auto const all_here = [](void* n) { return *static_cast<int*>(n) == 2; };
    auto const part = [&](int device, stream_handle s) {
      ASSERT_TRUE(b.machine->enqueue(device, s, {}, {arrive, nullptr, &arrived}).ok());
      ASSERT_TRUE(b.machine->enqueue(device, s, {}, {[](void*) {}, nullptr, &arrived, all_here}).ok());
    };
    part(0, parts);
    auto const e = b.event(0);
    ASSERT_TRUE(b.machine->enqueue(0, beside, {}, task([] {})).ok());
    ASSERT_TRUE(b.machine->record(0, beside, e).ok());
    ASSERT_TRUE(b.machine->wait(1, far, e).ok());
    part(1, far);
    EXPECT_EQ(b.control->run(), connections == 0);
    if (connections == 0)
      continue;
    EXPECT_NE(b.control->stuck().find("stream 2 of device 0 shares a connection and is behind stream 1 of device 0 "
                                      "is at work that waits for other streams"),
              std::string::npos)
        << b.control->stuck();
    EXPECT_EQ(b.machine->synchronize_stream(1, far).what, code::failed);
    ASSERT_EQ(b.control->findings().size(), 1u);
    EXPECT_EQ(b.control->findings()[0].find("stuck"), 0u);
  }
}

// At the latest, the call that waits reports it.
TEST(sim_freedoms, an_error_surfaces_at_a_later_call) {
  std::set<int> after;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    bench b({.devices = 1, .memory = 1_MiB, .schedule = scheduling::seeded, .seed = seed});
    auto const s = b.stream(), t = b.stream();
    auto* const x = b.device_page(0);
    auto const done = b.event();
    ASSERT_TRUE(b.machine->record(0, t, done).ok());
    ASSERT_TRUE(b.machine->synchronize_event(done).ok());
    touch const stray{reinterpret_cast<address>(x), page + 4, true};
    int drops = 0;
    b.machine->enqueue(0, s, {&stray, 1},
                       {[](void*) { FAIL() << "it ran"; }, [](void* n) { ++*static_cast<int*>(n); }, &drops});
    int calls = 0;
    while (b.control->findings().empty())
      b.machine->query_stream(0, s);
    for (; b.machine->enqueue(0, t, {}, {}).ok(); ++calls) {
      status const complete = b.machine->query_event(done);
      ASSERT_TRUE(complete.ok() || complete.what == code::lost) << "complete stays so";
      ASSERT_LT(calls, 20);
      if (complete.what == code::lost)
        break;
    }
    after.insert(calls);
    EXPECT_EQ(drops, 1);
    EXPECT_EQ(b.machine->synchronize_stream(0, s).what, code::lost);
    EXPECT_EQ(b.machine->create_event(0, event_kind::order_only).is.what, code::lost);
  }
  EXPECT_GT(after.size(), 2u);
}

TEST(sim_freedoms, a_waiting_host_gets_an_error_at_once) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    bench b({.devices = 1, .memory = 1_MiB, .schedule = scheduling::seeded, .seed = seed});
    auto const s = b.stream(), t = b.stream();
    touch const stray{reinterpret_cast<address>(b.device_page(0)), page + 4, true};
    b.machine->enqueue(0, s, {&stray, 1}, {});
    while (b.control->findings().empty())
      b.machine->query_stream(0, s);
    b.machine->enqueue(0, t, {}, {});
    EXPECT_EQ(b.machine->synchronize_stream(0, t).what, code::lost) << "seed " << seed;
  }
}

TEST(sim_freedoms, addresses_come_back_at_once_with_other_bytes) {
  bench b({.devices = 1, .memory = 1_MiB, .schedule = scheduling::seeded, .seed = 3});
  address const one = b.machine->reserve(page, page).value, two = b.machine->reserve(2 * page, page).value;
  ASSERT_TRUE(b.machine->unreserve(one, page).ok());
  EXPECT_EQ(b.machine->reserve(page, page).value, one);
  ASSERT_TRUE(b.machine->unreserve(two, 2 * page).ok());
  EXPECT_NE(b.machine->reserve(page, page).value, two);
  EXPECT_EQ(b.machine->reserve(2 * page, page).value, two);
  address const segment = b.machine->create_segment(0, page).value;
  ASSERT_TRUE(b.machine->release_segment(0, segment).ok());
  EXPECT_EQ(b.machine->create_segment(0, page).value, segment);
  EXPECT_EQ(b.times(6), 4u) << "the segment's memory handle, too";
}

TEST(sim_freedoms, only_one_host_function_is_under_way) {
  int waited = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    bench b({.devices = 2, .memory = 1_MiB, .schedule = scheduling::seeded, .seed = seed});
    auto const s = b.stream(), t = b.stream(1);
    int ran = 0;
    for (int i = 0; i < 5; ++i) {
      b.machine->host_function(0, s, task([&] { ++ran; }));
      b.machine->host_function(1, t, task([&] { ++ran; }));
    }
    waited += b.times(7) > 0;
    ASSERT_TRUE(b.machine->synchronize_stream(1, t).ok());
    ASSERT_TRUE(b.machine->synchronize_stream(0, s).ok());
    ASSERT_EQ(ran, 10);
  }
  EXPECT_GT(waited, 50);
}

// Other processes allocate and free memory.
TEST(sim_freedoms, memory_may_be_refused_although_there_is_room) {
  int refused = 0;
  std::set<std::size_t> rooms;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    bench b(
        {.devices = 1, .memory = 1_MiB, .schedule = scheduling::seeded, .seed = seed, .nondeterminism = taken::all});
    for (int i = 0; i < 20; ++i) {
      std::size_t const room = b.machine->memory(0).value.free;
      rooms.insert(room);
      auto const h = b.machine->create(0, page);
      if (h.ok())
        b.machine->release(h.value);
      else
        refused += room >= page;
    }
  }
  EXPECT_GT(refused, 5);
  EXPECT_GT(rooms.size(), 5u);
}

TEST(sim_freedoms, addresses_are_refused_although_there_are_some) {
  int refused = 0;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    bench b(
        {.devices = 1, .memory = 1_MiB, .schedule = scheduling::seeded, .seed = seed, .nondeterminism = taken::all});
    for (int i = 0; i < 20; ++i) {
      auto const before = b.times(8);
      auto const at = b.machine->reserve(page, page);
      if (at.ok()) {
        ASSERT_TRUE(b.machine->unreserve(at.value, page).ok());
        continue;
      }
      ASSERT_EQ(at.is.what, code::out_of_memory);
      ASSERT_GT(b.times(8), before) << "counted";
      ++refused;
    }
  }
  EXPECT_GT(refused, 5);
}

// Each call that may block, thus every call except enqueues and queries, takes that freedom under some seed
// and counts it. All work that can run has then run.
TEST(sim_freedoms, calls_that_may_block_sometimes_run_all_work) {
  using calls = std::vector<std::pair<char const*, std::function<bool(bench&)>>>;
  event_handle from{}, to{};
  calls const all{
      {"info", [](bench& b) { return b.machine->info(0).ok(); }},
      {"open", [](bench& b) { return b.machine->open(0).ok(); }},
      {"find", [](bench& b) { return b.machine->find(&b).ok(); }},
      {"elapsed_ms", [&](bench& b) { return b.machine->elapsed_ms(from, to).ok(); }},
      {"memory", [](bench& b) { return b.machine->memory(0).ok(); }},
      {"peer", [](bench& b) { return b.machine->peer(0, 0).ok(); }},
      {"reserve", [](bench& b) { return b.machine->reserve(page, page).ok(); }},
      {"create", [](bench& b) { return b.machine->create(0, page).ok(); }},
      {"create_segment", [](bench& b) { return b.machine->create_segment(0, page).ok(); }},
      {"create_stream", [](bench& b) { return b.machine->create_stream(0, stream_kind::independent, 0).ok(); }},
      {"create_event", [](bench& b) { return b.machine->create_event(0, event_kind::order_only).ok(); }},
  };
  for (auto const& [name, call] : all) {
    int taken_here = 0;
    for (std::uint64_t seed = 1; seed <= 100; ++seed) {
      bench b({.devices = 1, .memory = 1_MiB, .schedule = scheduling::seeded, .seed = seed});
      auto const s = b.stream();
      from = b.event(0, event_kind::timing), to = b.event(0, event_kind::timing);
      b.machine->record(0, s, from);
      b.machine->record(0, s, to);
      ASSERT_TRUE(b.machine->synchronize_event(to).ok());
      int ran = 0;
      for (int i = 0; i < 3; ++i)
        b.machine->enqueue(0, s, {}, task([&] { ++ran; }));
      auto const before = b.times(3);
      ASSERT_TRUE(call(b)) << name;
      if (b.times(3) == before)
        continue;
      ++taken_here;
      EXPECT_EQ(ran, 3) << name;
    }
    EXPECT_GT(taken_here, 0) << name << " never blocked";
  }
}

TEST(sim_freedoms, a_corrupt_link_changes_only_what_crosses_it) {
  for (auto how : {scheduling::threads, scheduling::stepped}) {
    bench b({.devices = 2, .memory = 4_MiB, .schedule = how});
    std::size_t const unit = b.machine->info(0).value.granularity;
    auto const memory_of = [&](int device) {
      address const at = b.machine->reserve(unit, unit).value;
      EXPECT_TRUE(b.machine->map(at, unit, b.machine->create(device, unit).value).ok());
      EXPECT_TRUE(b.machine->grant(at, unit, device).ok());
      return reinterpret_cast<std::uint32_t*>(at);
    };
    auto const s = b.stream(0), t = b.stream(1);
    auto* const near = memory_of(0);
    auto *const far = memory_of(1), *const granted = memory_of(1);
    EXPECT_TRUE(b.machine->grant(reinterpret_cast<address>(granted), unit, 0).ok());
    b.control->corrupt(0, 1);
    auto const finish = [&](int device, stream_handle of) {
      EXPECT_TRUE(b.machine->synchronize_stream(device, of).ok());
    };
    b.machine->fill(0, s, near, 7, 4, 16);
    b.machine->copy_peer(0, s, far, 1, near, 0, 64);
    finish(0, s);
    EXPECT_TRUE(std::all_of(far, far + 16, [](auto x) { return x == 7; })) << "not granted: by way of the host";
    b.machine->copy_peer(0, s, granted, 1, near, 0, 64);
    finish(0, s);
    EXPECT_FALSE(std::all_of(granted, granted + 16, [](auto x) { return x == 7; }));
    b.machine->fill(1, t, granted, 7, 4, 16);
    finish(1, t);
    EXPECT_TRUE(std::all_of(granted, granted + 16, [](auto x) { return x == 7; })) << "its own memory";
    b.machine->copy_peer(1, t, near, 0, granted, 1, 64);
    finish(1, t);
    EXPECT_FALSE(std::all_of(near, near + 16, [](auto x) { return x == 7; }))
        << "read over the link, on a stream of either device";
    b.machine->fill(0, s, granted, 9, 4, 16);
    finish(0, s);
    EXPECT_FALSE(std::all_of(granted, granted + 16, [](auto x) { return x == 9; })) << "a fill over the link";
    EXPECT_EQ(b.times(9), 3u);
  }
}

TEST(sim_freedoms, time_jumps_forward) {
  float longest = 0;
  for (std::uint64_t seed = 1; seed <= 500; ++seed) {
    bench b({.devices = 1, .memory = 1_MiB, .schedule = scheduling::seeded, .seed = seed});
    auto const s = b.stream();
    auto const from = b.event(0, event_kind::timing), to = b.event(0, event_kind::timing);
    b.machine->record(0, s, from);
    b.machine->synchronize_event(from);
    b.machine->record(0, s, to);
    b.machine->synchronize_event(to);
    auto const ms = b.machine->elapsed_ms(from, to);
    ASSERT_TRUE(ms.ok());
    ASSERT_GE(ms.value, 0);
    longest = std::max(longest, ms.value);
  }
  EXPECT_GT(longest, 60'000) << "minutes";
}

TEST(sim_freedoms, without_freedoms_nothing_is_shared) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    bench b(
        {.devices = 1, .memory = 1_MiB, .schedule = scheduling::seeded, .seed = seed, .nondeterminism = taken::none});
    auto const s = b.stream();
    ASSERT_TRUE(b.machine->destroy_stream(0, s).ok());
    EXPECT_NE(b.stream(), s);
    EXPECT_EQ(b.times(6), 0u);
  }
}

}  // namespace
}  // namespace weir::driver::sim
