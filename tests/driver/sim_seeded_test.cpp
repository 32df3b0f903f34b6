// The seeded simulated machine takes every freedom of a device, and the same seed takes the same ones.
// Threads: one.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <bitset>
#include <cstring>
#include <functional>
#include <random>
#include <set>

#include "simulator/machine/machine.h"

namespace weir::driver::sim {
namespace {

using scheduling = weir::simulated::scheduling;
constexpr std::size_t page = 64_KiB;

work task(std::function<void()> body) {
  using held = std::function<void()>;
  return {[](void* f) { (*static_cast<held*>(f))(); }, [](void* f) { delete static_cast<held*>(f); },
          new held(std::move(body))};
}

// A machine for one program, with pinned words.
struct bench {
  explicit bench(std::uint64_t seed, scheduling how = scheduling::seeded, int devices = 2) {
    auto m = make({.devices = devices, .memory = 16_MiB, .schedule = how, .seed = seed});
    machine = std::move(m.machine);
    control = m.control;
    for (int d = 0; d < devices; ++d)
      EXPECT_TRUE(machine->open(d).ok());
    pinned =
        static_cast<std::uint32_t*>(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_TRUE(machine->pin(pinned, 4096).ok());
  }
  ~bench() {
    machine.reset();
    ::munmap(pinned, 4096);
  }
  stream_handle stream(int device = 0) { return machine->create_stream(device, stream_kind::independent, 0).value; }
  event_handle event(int device = 0) { return machine->create_event(device, event_kind::order_only).value; }
  std::uint32_t* device_page(int device = 0) {
    address const at = machine->reserve(page, page).value;
    memory_handle const h = machine->create(device, page).value;
    EXPECT_TRUE(machine->map(at, page, h).ok());
    EXPECT_TRUE(machine->grant(at, page, device).ok());
    EXPECT_TRUE(machine->release(h).ok());
    return reinterpret_cast<std::uint32_t*>(at);
  }
  std::unique_ptr<driver> machine;
  controls* control;
  std::uint32_t* pinned;
};

TEST(sim_seeded, the_trace_follows_from_seed_and_calls) {
  auto const trace = [](std::uint64_t seed, int ops) {
    bench b(seed);
    auto const s = b.stream(), t = b.stream(1);
    auto const e = b.event();
    auto* const x = b.device_page();
    for (int i = 0; i < ops; ++i) {
      b.machine->fill(0, s, x, static_cast<std::uint32_t>(i), 4, 16);
      b.machine->record(0, s, e);
      b.machine->wait(1, t, e);
      b.machine->enqueue(1, t, {}, task([] {}));
      b.machine->query_event(e);
    }
    b.machine->synchronize_device(1);
    return b.control->trace_hash();
  };
  std::set<std::uint64_t> different;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    auto const once = trace(seed, 20);
    EXPECT_EQ(once, trace(seed, 20)) << "seed " << seed;
    EXPECT_NE(once, trace(seed, 21)) << "seed " << seed;
    different.insert(once);
  }
  EXPECT_GT(different.size(), 30u) << "few habits leave no choice, most do";
}

TEST(sim_seeded, unordered_work_is_seen_before_after_and_half_way) {
  std::set<std::uint32_t> seen;
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    bench b(seed);
    auto const s = b.stream(), t = b.stream();
    auto* const x = b.device_page();
    b.machine->fill(0, s, x, 1, 4, 64);
    b.machine->synchronize_stream(0, s);
    b.machine->fill(0, s, x, 2, 4, 64);
    b.machine->copy(0, t, b.pinned, x, 64);  // not ordered after the fill
    b.machine->query_stream(0, t);
    b.machine->query_stream(0, s);
    b.machine->synchronize_stream(0, t);
    seen.insert(b.pinned[3]);
  }
  EXPECT_TRUE(seen.contains(1)) << "never before";
  EXPECT_TRUE(seen.contains(2)) << "never after";
  EXPECT_TRUE(seen.contains(0xdbdbdbdb)) << "never half way";
  EXPECT_EQ(seen.size(), 3u);
}

TEST(sim_seeded, work_behind_an_event_is_never_early) {
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    bench b(seed);
    auto const s = b.stream(), t = b.stream(1);
    auto const e = b.event();
    auto* const x = b.device_page();
    ASSERT_TRUE(b.machine->fill(0, s, x, 2, 4, 64).ok());
    ASSERT_TRUE(b.machine->record(0, s, e).ok());
    ASSERT_TRUE(b.machine->wait(1, t, e).ok());
    ASSERT_TRUE(b.machine->copy_peer(1, t, b.pinned, 1, x, 0, 64).ok());
    ASSERT_TRUE(b.machine->synchronize_stream(1, t).ok());
    ASSERT_EQ(b.pinned[3], 2u) << "seed " << seed;
    ASSERT_TRUE(b.machine->query_event(e).ok()) << "what t saw done is done, seed " << seed;
  }
}

TEST(sim_seeded, a_pinned_source_is_read_until_completion) {
  std::set<std::uint32_t> arrived;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    bench b(seed);
    auto const s = b.stream();
    auto* const x = b.device_page();
    b.pinned[0] = 1;
    b.machine->copy(0, s, x, b.pinned, 4);
    b.machine->query_stream(0, s);
    b.pinned[0] = 2;
    b.machine->synchronize_stream(0, s);
    arrived.insert(*x);
  }
  EXPECT_EQ(arrived, (std::set<std::uint32_t>{1, 2}));
}

TEST(sim_seeded, polling_ends_and_complete_stays_complete) {
  int late = 0, at_once = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    bench b(seed);
    auto const s = b.stream();
    auto const e = b.event();
    for (int i = 0; i < 5; ++i)
      b.machine->enqueue(0, s, {}, task([] {}));
    b.machine->record(0, s, e);
    int polls = 0;
    while (b.machine->query_event(e).what == code::not_ready)
      ASSERT_LT(++polls, 1000) << "seed " << seed;
    (polls ? late : at_once) += 1;
    for (int i = 0; i < 20; ++i)
      ASSERT_TRUE(b.machine->query_event(e).ok()) << "seed " << seed;
  }
  EXPECT_GT(late, 20);
  EXPECT_GT(at_once, 20);
}

TEST(sim_seeded, completion_can_be_seen_later_than_the_bytes) {
  int seen = 0;
  for (std::uint64_t seed = 1; seed <= 400 && !seen; ++seed) {
    bench b(seed);
    auto const s = b.stream();
    auto const e = b.event();
    b.pinned[0] = 0;
    b.machine->enqueue(0, s, {}, task([&] { b.pinned[0] = 7; }));
    b.machine->record(0, s, e);
    for (int i = 0; i < 4; ++i) {
      if (b.machine->query_event(e).what == code::not_ready && b.pinned[0] == 7)
        ++seen;
    }
  }
  EXPECT_GT(seen, 0);
}

TEST(sim_seeded, a_wait_for_a_closed_gate_names_it_and_goes_on) {
  bench b(5);
  auto const s = b.stream(), t = b.stream(1);
  auto const e = b.event();
  auto const gate = b.machine->hold(0, s);
  ASSERT_TRUE(gate.ok());
  b.machine->record(0, s, e);
  b.machine->wait(1, t, e);
  EXPECT_EQ(b.machine->synchronize_stream(1, t).what, code::failed);
  ASSERT_EQ(b.control->findings().size(), 1u);
  EXPECT_EQ(
      b.control->findings()[0],
      "stuck: the host waits, and no stream can proceed: stream 2 of device 1 waits for operation 2 of stream 1 of "
      "device 0 is held by gate 1");
  ASSERT_TRUE(b.machine->open_gate(gate.value).ok());
  EXPECT_TRUE(b.machine->synchronize_stream(1, t).ok());
}

TEST(sim_seeded, handles_are_reused_and_fresh_bytes_are_not_zero) {
  bench b(9);
  auto const h = b.machine->create(0, page).value;
  address const at = b.machine->reserve(page, page).value;
  ASSERT_TRUE(b.machine->map(at, page, h).ok());
  EXPECT_NE(*reinterpret_cast<std::uint64_t*>(at), 0u);
  ASSERT_TRUE(b.machine->unmap(at, page).ok());
  ASSERT_TRUE(b.machine->release(h).ok());
  EXPECT_EQ(b.machine->create(1, page).value, h);
  auto const s = b.stream();
  b.machine->destroy_stream(0, s);
  EXPECT_EQ(b.stream(1), s);
}

TEST(sim_seeded, untouched_outputs_survive_the_poison) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    bench b(seed);
    auto const s = b.stream();
    auto* const x = b.device_page();
    b.machine->fill(0, s, x, 5, 4, 64);
    touch const all{reinterpret_cast<address>(x), 256, true};
    b.machine->enqueue(0, s, {&all, 1}, task([x] { x[0] += 1; }));
    for (int i = 0; i < 3; ++i)
      b.machine->query_stream(0, s);
    ASSERT_TRUE(b.machine->synchronize_stream(0, s).ok());
    ASSERT_EQ(x[0], 6u) << "seed " << seed;
    ASSERT_EQ(x[1], 5u) << "seed " << seed;
  }
}

TEST(sim_seeded, a_lost_device_releases_what_its_work_used) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    bench b(seed);
    auto const s = b.stream();
    auto* const x = b.device_page();
    int drops = 0;
    touch const t{reinterpret_cast<address>(x), 256, true};
    for (int i = 0; i < 3; ++i)
      b.machine->enqueue(0, s, {&t, 1}, {[](void*) {}, [](void* n) { ++*static_cast<int*>(n); }, &drops});
    for (int i = 0; i < 2; ++i)
      b.machine->query_stream(0, s);
    b.control->lose_device(0);
    ASSERT_EQ(drops, 3) << "seed " << seed;
    ASSERT_EQ(b.machine->query_stream(0, s).what, code::lost);
    ASSERT_TRUE(b.machine->unmap(reinterpret_cast<address>(x), page).ok());  // would wait for ever
    ASSERT_TRUE(b.machine->unreserve(reinterpret_cast<address>(x), page).ok());
    ASSERT_TRUE(b.machine->unpin(b.pinned).ok());
    ASSERT_TRUE(b.control->census().empty()) << b.control->census()[0];
    ASSERT_TRUE(b.machine->pin(b.pinned, 4096).ok());
  }
}

TEST(sim_seeded, work_meets_the_pages_of_when_it_runs) {
  int lost = 0, ran = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    bench b(seed);
    auto const s = b.stream();
    auto* const x = b.device_page();
    touch const t{reinterpret_cast<address>(x), 256, true};
    b.machine->enqueue(0, s, {&t, 1}, task([x] { *x = 1; }));
    b.machine->query_stream(0, s);
    ASSERT_TRUE(b.machine->unmap(reinterpret_cast<address>(x), page).ok());
    status const end = b.machine->synchronize_stream(0, s);
    (end.ok() ? ran : lost) += 1;
    ASSERT_EQ(b.control->findings().size(), end.ok() ? 0u : 1u);
  }
  EXPECT_GT(lost, 10);
  EXPECT_GT(ran, 10);
}

TEST(sim_seeded, a_fault_takes_the_other_devices_with_it_or_none) {
  int taken = 0, spared = 0;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(seed);
    bench b(seed, scheduling::seeded, 3);
    auto const s = b.stream(), t = b.stream(1), u = b.stream(2);
    auto const e = b.event();
    auto const closed = b.machine->hold(2, u);
    int drops = 0;
    b.machine->enqueue(2, u, {}, {[](void*) {}, [](void* n) { ++*static_cast<int*>(n); }, &drops});
    touch const stray{reinterpret_cast<address>(b.device_page(1)), 4, true};
    b.machine->enqueue(0, s, {&stray, 1}, task([] { FAIL() << "it ran"; }));
    bool const early = b.machine->record(0, s, e).ok() && b.machine->wait(1, t, e).ok();
    ASSERT_EQ(b.machine->synchronize_stream(0, s).what, code::lost);
    bool const all = b.machine->query_stream(2, u).what == code::lost;
    (all ? taken : spared) += 1;
    if (seed % 2) {
      ASSERT_EQ(b.machine->query_stream(1, t).what, all || early ? code::lost : code::ok);
    }
    ASSERT_EQ(b.machine->synchronize_stream(1, t).what, all || early ? code::lost : code::ok);
    b.machine->open_gate(closed.value);
    ASSERT_EQ(b.machine->synchronize_stream(2, u).what, all ? code::lost : code::ok);
    ASSERT_EQ(drops, 1);
  }
  EXPECT_GT(taken, 20);
  EXPECT_GT(spared, 20);
}

TEST(sim_seeded, a_wait_for_a_faulty_device_loses_its_own_device) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(seed);
    bench b(seed);
    auto const s = b.stream(), t = b.stream(1), idle = b.stream(1);
    auto const e = b.event();
    touch const stray{reinterpret_cast<address>(b.device_page(1)), 4, true};
    b.machine->enqueue(0, s, {&stray, 1}, task([] { FAIL() << "it ran"; }));
    if (!b.machine->record(0, s, e).ok() || !b.machine->wait(1, t, e).ok())
      continue;
    status const end = b.machine->synchronize_stream(1, t);
    ASSERT_EQ(end.what, code::lost);
    ASSERT_EQ(b.machine->query_stream(1, idle).what, code::lost) << "the answer spoke for the device";
    ASSERT_EQ(b.control->findings().size(), 1u) << "the stray touch, and no circle";
  }
}

TEST(sim_seeded, a_blocking_call_sometimes_waits_for_all_work) {
  int waited = 0, did_not = 0;
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    bench b(seed);
    auto const s = b.stream(), t = b.stream(1);
    int ran = 0;
    for (int i = 0; i < 8; ++i)
      b.machine->enqueue(0, s, {}, task([&] { ++ran; }));
    for (int i = 0; i < 8; ++i)
      b.machine->enqueue(1, t, {}, task([&] { ++ran; }));
    int const before = ran;
    b.machine->unreserve(b.machine->reserve(page, page).value, page);
    (ran == 16 && before < 12 ? waited : did_not) += 1;
  }
  EXPECT_GT(waited, 10);
  EXPECT_GT(did_not, 100);
}

TEST(sim_seeded, parts_that_wait_for_each_other_meet) {
  struct meeting {
    int here = 0, ran = 0;
    std::set<int> parts;
  };
  struct part {
    meeting* at;
    int number;
  };
  for (auto how : {scheduling::seeded, scheduling::stepped, scheduling::threads}) {
    for (std::uint64_t seed = 1; seed <= (how == scheduling::seeded ? 50u : 1u); ++seed) {
      bench b(seed, how, 4);
      meeting m;
      std::vector<part> parts;
      for (int d = 0; d < 4; ++d)
        parts.push_back({&m, d});
      std::vector<stream_handle> streams;
      for (int d = 0; d < 4; ++d) {
        streams.push_back(b.stream(d));
        auto const* const p = &parts[static_cast<std::size_t>(d)];
        work const w{[](void*) {}, nullptr, const_cast<part*>(p),
                     [](void* q) {
                       auto const& self = *static_cast<part*>(q);
                       self.at->parts.insert(self.number);
                       return self.at->parts.size() == 4;
                     }};
        ASSERT_TRUE(b.machine->enqueue(d, streams.back(), {}, w).ok());
      }
      b.machine->recheck();
      for (int d = 0; d < 4; ++d)
        ASSERT_TRUE(b.machine->synchronize_stream(d, streams[static_cast<std::size_t>(d)]).ok())
            << "device " << d << " seed " << seed;
    }
  }
}

// Random programs of logs, records and waits. Each log must follow the order that a graph search finds.
TEST(sim_seeded, random_programs_run_in_an_order_their_waits_allow) {
  constexpr std::size_t most = 128;
  using before = std::bitset<most>;
  for (auto how : {scheduling::seeded, scheduling::stepped, scheduling::threads}) {
    for (std::uint64_t seed = 1; seed <= (how == scheduling::seeded ? 300u : 30u); ++seed) {
      bench b(seed, how);
      std::mt19937_64 rng(seed);
      auto const roll = [&](std::size_t n) { return static_cast<std::size_t>(rng() % n); };
      constexpr std::size_t streams = 5, events = 4;
      std::vector<stream_handle> s;
      std::vector<event_handle> e;
      std::array<before, streams> done_before{};  // operations ordered before the stream's next one
      std::array<before, events> recorded{};
      before host;
      std::vector<before> wants;
      std::vector<std::size_t> order;
      std::vector<bool> complete(most);
      std::mutex mutex;
      auto const device = [](std::size_t i) { return static_cast<int>(i % 2); };
      for (std::size_t i = 0; i < streams; ++i)
        s.push_back(b.stream(device(i)));
      for (std::size_t i = 0; i < events; ++i)
        e.push_back(b.event(device(i)));
      for (int step = 0; step < 80; ++step) {
        std::size_t const i = roll(streams), j = roll(events);
        switch (roll(6)) {
          case 0:
          case 1:
          case 2: {
            std::size_t const op = wants.size();
            if (op >= most)
              break;
            done_before[i] |= host;
            wants.push_back(done_before[i]);
            done_before[i].set(op);
            auto const body = [&, op] {
              std::lock_guard lock(mutex);
              order.push_back(op);
            };
            if (roll(4) == 0)
              ASSERT_TRUE(b.machine->host_function(device(i), s[i], task(body)).ok());
            else
              ASSERT_TRUE(b.machine->enqueue(device(i), s[i], {}, task(body)).ok());
            break;
          }
          case 3:
            if (device(i) != device(j))
              break;
            ASSERT_TRUE(b.machine->record(device(i), s[i], e[j]).ok());
            recorded[j] = done_before[i] | host;
            break;
          case 4:
            ASSERT_TRUE(b.machine->wait(device(i), s[i], e[j]).ok());
            done_before[i] |= recorded[j];
            break;
          case 5:
            if (roll(3) == 0) {
              ASSERT_TRUE(b.machine->synchronize_event(e[j]).ok());
              host |= recorded[j];
            } else if (b.machine->query_event(e[j]).ok()) {
              host |= recorded[j];
            }
            std::lock_guard lock(mutex);
            std::set<std::size_t> const seen(order.begin(), order.end());
            for (std::size_t op = 0; op < wants.size(); ++op)
              ASSERT_TRUE(!host[op] || seen.contains(op)) << "seen complete and did not run, seed " << seed;
            break;
        }
      }
      for (int d = 0; d < 2; ++d)
        ASSERT_TRUE(b.machine->synchronize_device(d).ok());
      ASSERT_EQ(order.size(), wants.size());
      before so_far;
      for (std::size_t op : order) {
        ASSERT_EQ(wants[op] & ~so_far, before{}) << "operation " << op << " ran too early, seed " << seed;
        so_far.set(op);
      }
    }
  }
}

}  // namespace
}  // namespace weir::driver::sim
