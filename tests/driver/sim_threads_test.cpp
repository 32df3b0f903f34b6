// The simulated machine with threads.
// Threads: tests wait for each other through gates, logs and synchronize, never by time.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "runtime/base/os.h"
#include "tests/driver/sim_threads_bench.h"

namespace weir::driver::sim {
namespace {

using scheduling = weir::simulated::scheduling;

TEST_F(sim_threads, a_held_stream_runs_nothing_and_then_all_in_order) {
  auto const s = stream();
  auto const gate = machine->hold(0, s);
  ASSERT_TRUE(gate.ok());
  std::vector<int> want;
  for (int i = 0; i < 64; ++i) {
    log(s, i);
    want.push_back(i);
  }
  EXPECT_EQ(machine->query_stream(0, s).what, code::not_ready);
  EXPECT_FALSE(control->run());  // all runnable work has run
  EXPECT_TRUE(logged().empty());
  EXPECT_NE(control->stuck().find("held by gate"), std::string::npos) << control->stuck();
  ASSERT_TRUE(machine->open_gate(gate.value).ok());
  ASSERT_TRUE(machine->synchronize_stream(0, s).ok());
  EXPECT_EQ(logged(), want);
}

TEST_F(sim_threads, a_wait_takes_the_current_record_across_devices) {
  auto const a = stream(0), b = stream(1), c = stream(0);
  auto const e = event(0);
  auto const gate = machine->hold(0, a);
  log(a, 1);
  ASSERT_TRUE(machine->record(0, a, e).ok());
  ASSERT_TRUE(machine->wait(1, b, e).ok());
  log(b, 2, 1);
  ASSERT_TRUE(machine->record(0, c, e).ok());
  ASSERT_TRUE(machine->synchronize_event(e).ok());
  EXPECT_FALSE(control->run());
  EXPECT_TRUE(logged().empty());
  machine->open_gate(gate.value);
  ASSERT_TRUE(machine->synchronize_stream(1, b).ok());
  EXPECT_EQ(logged(), (std::vector{1, 2}));
  EXPECT_EQ(machine->record(1, b, e).what, code::invalid);
}

TEST_F(sim_threads, copies_between_pinned_and_device_memory) {
  pages_of_host host(4_MiB);
  ASSERT_TRUE(machine->pin(host.at, host.bytes).ok());
  address const x = map(0, 2_MiB), y = map(1, 2_MiB);
  auto const s = stream();
  auto* const bytes = static_cast<unsigned char*>(host.at);
  for (std::size_t i = 0; i < 2_MiB; ++i)
    bytes[i] = static_cast<unsigned char>(i * 7);
  auto* const there = bytes + 2_MiB;
  ASSERT_TRUE(machine->copy(0, s, reinterpret_cast<void*>(x), bytes, 2_MiB).ok());
  ASSERT_TRUE(machine->copy_peer(0, s, reinterpret_cast<void*>(y), 1, reinterpret_cast<void*>(x), 0, 2_MiB).ok());
  EXPECT_EQ(machine->copy(0, s, there, reinterpret_cast<void*>(y), 2_MiB).what, code::invalid)
      << "not granted to device 0";
  ASSERT_TRUE(machine->grant(y, 2_MiB, 0).ok());
  ASSERT_TRUE(machine->copy(0, s, there, reinterpret_cast<void*>(y), 2_MiB).ok());
  ASSERT_TRUE(machine->synchronize_stream(0, s).ok());
  EXPECT_EQ(std::memcmp(bytes, there, 2_MiB), 0);
  std::vector<char> pageable(64);
  EXPECT_EQ(machine->copy(0, s, pageable.data(), reinterpret_cast<void*>(x), 64).what, code::invalid);
  EXPECT_EQ(machine->copy(0, s, reinterpret_cast<void*>(x), pageable.data(), 64).what, code::invalid);
  EXPECT_EQ(machine->copy(0, s, reinterpret_cast<void*>(x), bytes, 2_MiB + 1).what, code::invalid)
      << "one byte past the mapping";
  ASSERT_TRUE(machine->fill(0, s, reinterpret_cast<void*>(x), 0x01020304, 4, 512).ok());
  ASSERT_TRUE(machine->copy(0, s, there, reinterpret_cast<void*>(x), 2052).ok());
  ASSERT_TRUE(machine->synchronize_stream(0, s).ok());
  EXPECT_EQ(*reinterpret_cast<std::uint32_t*>(there + 2044), 0x01020304u);
  EXPECT_EQ(there[2048], bytes[2048]) << "the fill ended where it should";
  ASSERT_TRUE(machine->unpin(host.at).ok());
}

TEST_F(sim_threads, bytes_belong_to_the_handle) {
  address const at = machine->reserve(8_MiB, 2_MiB).value;
  auto const h = machine->create(0, 2_MiB).value;
  ASSERT_TRUE(machine->map(at, 2_MiB, h).ok());
  ASSERT_TRUE(machine->map(at + 4_MiB, 2_MiB, h).ok());
  *reinterpret_cast<int*>(at) = 42;
  EXPECT_EQ(*reinterpret_cast<int*>(at + 4_MiB), 42) << "two mappings, the same bytes";
  ASSERT_TRUE(machine->unmap(at, 2_MiB).ok());
  ASSERT_TRUE(machine->unmap(at + 4_MiB, 2_MiB).ok());
  ASSERT_TRUE(machine->map(at + 2_MiB, 2_MiB, h).ok());
  EXPECT_EQ(*reinterpret_cast<int*>(at + 2_MiB), 42);
  EXPECT_EQ(machine->memory(0).value.free, 254_MiB);
  ASSERT_TRUE(machine->release(h).ok());
  EXPECT_EQ(machine->release(h).what, code::invalid);
  EXPECT_EQ(machine->memory(0).value.free, 254_MiB) << "still mapped";
  EXPECT_EQ(machine->map(at, 2_MiB, h).what, code::invalid);
  ASSERT_TRUE(machine->unmap(at + 2_MiB, 2_MiB).ok());
  EXPECT_EQ(machine->memory(0).value.free, 256_MiB);
  ASSERT_TRUE(machine->unreserve(at, 8_MiB).ok());
  EXPECT_TRUE(control->census().empty());
}

TEST_F(sim_threads, an_ungranted_access_loses_its_device_only) {
  address const y = map(1, 2_MiB);
  auto const s = stream(0), other = stream(1), waits = stream(1);
  auto const e = event(0);
  std::atomic<int> ran{0}, drops{0};
  auto const gate = machine->hold(0, s);
  touch const t{y, 16, true};
  ASSERT_TRUE(machine->enqueue(0, s, {&t, 1}, task::of([&] { ++ran; }, &drops)).ok());
  ASSERT_TRUE(machine->enqueue(0, s, {}, task::of([&] { ++ran; }, &drops)).ok());
  ASSERT_TRUE(machine->host_function(0, s, task::of([&] { ++ran; }, &drops)).ok());
  ASSERT_TRUE(machine->record(0, s, e).ok());
  ASSERT_TRUE(machine->wait(1, waits, e).ok());
  machine->open_gate(gate.value);
  EXPECT_EQ(machine->synchronize_stream(0, s).what, code::lost);
  EXPECT_EQ(machine->query_event(e).what, code::lost);
  EXPECT_EQ(machine->enqueue(0, s, {}, task::of([&] { ++ran; }, &drops)).what, code::lost);
  log(other, 7, 1);
  ASSERT_TRUE(machine->synchronize_stream(1, other).ok());
  EXPECT_EQ(logged(), std::vector{7});
  EXPECT_EQ(machine->query_stream(1, waits).what, code::lost) << "it waits for what never comes";
  EXPECT_EQ(machine->query_stream(1, other).what, code::lost) << "a call said that the device is lost";
  EXPECT_EQ(ran, 0);
  // the host may see the loss before the worker has dropped the remaining work
  for (int i = 0; i < 20000 && drops < 4; ++i)
    ::usleep(100);
  EXPECT_EQ(drops, 4);
  ASSERT_EQ(control->findings().size(), 1u);
  EXPECT_NE(control->findings()[0].find("without a grant"), std::string::npos) << control->findings()[0];
}

// Regression: timing chose the error, `lost`, or `failed` of the device that waits for the lost one.
TEST_F(sim_threads, a_wait_behind_a_device_that_is_lost_answers_lost) {
  auto const s = stream(0), behind = stream(1);
  auto const e = event(0), f = event(1);
  auto const gate = machine->hold(0, s);
  ASSERT_TRUE(machine->record(0, s, e).ok());
  ASSERT_TRUE(machine->wait(1, behind, e).ok());
  ASSERT_TRUE(machine->record(1, behind, f).ok());
  std::array<status, 3> said{};
  std::atomic<int> begun{0};
  std::thread waiting[] = {
      std::thread([&] { ++begun, said[0] = machine->synchronize_stream(1, behind); }),
      std::thread([&] { ++begun, said[1] = machine->synchronize_event(f); }),
      std::thread([&] { ++begun, said[2] = machine->synchronize_device(1); }),
  };
  while (begun < 3)
    std::this_thread::yield();
  control->lose_device(0);
  for (auto& t : waiting)
    t.join();
  for (status const& one : said)
    EXPECT_EQ(one.what, code::lost);
  EXPECT_EQ(control->findings(), std::vector<std::string>{}) << "the program is right";
  machine->open_gate(gate.value);
}

TEST_F(sim_threads, a_call_waiting_for_room_behind_a_loss_returns) {
  auto const s = stream(0), behind = stream(1);
  auto const e = event(0);
  auto const gate = machine->hold(0, s);
  std::atomic<int> given{0}, drops{0};
  ASSERT_TRUE(machine->record(0, s, e).ok());
  ASSERT_TRUE(machine->wait(1, behind, e).ok());
  std::thread giving([&] {
    while (machine->enqueue(1, behind, {}, task::of([] { FAIL() << "it ran"; }, &drops)).ok())
      ++given;
  });
  while (given < 1000)
    std::this_thread::yield();
  control->lose_device(0);
  giving.join();
  EXPECT_EQ(given, 1023) << "the wait and these fill the queue, and the very next call says that there will be no room";
  EXPECT_EQ(drops, given + 1);
  EXPECT_EQ(machine->query_stream(1, behind).what, code::lost);
  machine->open_gate(gate.value);
}

TEST_F(sim_threads, a_call_waiting_for_room_ahead_of_a_loss_gets_it) {
  auto const s = stream(0), behind = stream(1);
  auto const e = event(0);
  auto const never = machine->hold(0, s), gate = machine->hold(1, behind);
  for (int i = 0; i < 600; ++i)
    log(behind, i, 1);
  ASSERT_TRUE(machine->record(0, s, e).ok());
  ASSERT_TRUE(machine->wait(1, behind, e).ok());
  control->lose_device(0);
  for (int i = 0; i < 422; ++i)
    ASSERT_TRUE(machine->enqueue(1, behind, {}, task::of([] {})).ok());
  status said{};
  std::thread giving([&] { said = machine->enqueue(1, behind, {}, task::of([] {})); });
  auto const waits = [&] {
    for (auto const& line : control->census()) {
      if (line.find("with 1025 operations") != std::string::npos)
        return true;
    }
    return false;
  };
  while (!waits() && machine->query_stream(1, stream(1)).ok())
    std::this_thread::yield();
  machine->open_gate(gate.value);
  giving.join();
  EXPECT_TRUE(said.ok());
  while (logged().size() < 600)
    std::this_thread::yield();  // everything before the wait runs
  EXPECT_EQ(machine->query_stream(1, behind).what, code::lost);
  machine->open_gate(never.value);
}

TEST_F(sim_threads, streams_of_one_device_overlap_a_copy_with_work) {
  pages_of_host host(2_MiB);
  ASSERT_TRUE(machine->pin(host.at, host.bytes).ok());
  address const x = map(0, 2_MiB);
  auto const works = stream(), copies = stream();
  std::atomic<bool> copied{false};
  ASSERT_TRUE(machine
                  ->enqueue(0, works, {}, task::of([&] {
                              while (!copied)
                                ::usleep(100);
                            }))
                  .ok());
  ASSERT_TRUE(machine->copy(0, copies, reinterpret_cast<void*>(x), host.at, 2_MiB).ok());
  ASSERT_TRUE(machine->synchronize_stream(0, copies).ok());
  copied = true;
  ASSERT_TRUE(machine->synchronize_device(0).ok());
}

TEST_F(sim_threads, a_driver_call_inside_work_is_not_permitted) {
  auto const s = stream();
  std::atomic<code> in_host{code::ok}, in_work{code::ok}, in_drop{code::ok};
  ASSERT_TRUE(machine->host_function(0, s, task::of([&] { in_host = machine->query_stream(0, s).what; })).ok());
  ASSERT_TRUE(machine->enqueue(0, s, {}, task::of([&] { in_work = machine->memory(0).is.what; })).ok());
  ASSERT_TRUE(machine->synchronize_stream(0, s).ok());
  EXPECT_EQ(in_host, code::not_permitted);
  EXPECT_EQ(in_work, code::not_permitted);
}

TEST_F(sim_threads, unmap_waits_for_running_work_that_uses_the_range) {
  address const x = map(0, 2_MiB);
  auto const s = stream();
  std::atomic<int> stage{0};
  touch const t{x, 64, true};
  ASSERT_TRUE(machine
                  ->enqueue(0, s, {&t, 1}, task::of([&] {
                              stage = 1;
                              ::usleep(20000);
                              *reinterpret_cast<volatile int*>(x) = 1;
                              stage = 2;
                            }))
                  .ok());
  while (stage == 0)
    ::usleep(100);
  ASSERT_TRUE(machine->unmap(x, 2_MiB).ok());
  EXPECT_EQ(stage, 2);
  ASSERT_TRUE(machine->synchronize_stream(0, s).ok());
}

TEST_F(sim_threads, a_call_on_a_full_queue_waits_for_room) {
  auto const s = stream();
  auto const gate = machine->hold(0, s);
  std::atomic<int> given{0};
  std::thread host([&] {
    for (int i = 0; i < 3000; ++i) {
      log(s, i);
      ++given;
    }
  });
  while (given < 1000)
    ::usleep(100);
  ::usleep(20000);
  EXPECT_LT(given, 1100);
  machine->open_gate(gate.value);
  host.join();
  ASSERT_TRUE(machine->synchronize_stream(0, s).ok());
  EXPECT_EQ(logged().size(), 3000u);
}

TEST_F(sim_threads, a_loss_ends_waits_for_room) {
  auto const s = stream();
  ASSERT_TRUE(machine->hold(0, s).ok());
  std::atomic<int> given{0};
  std::thread host([&] {
    while (machine->enqueue(0, s, {}, task::of([] {})).ok())
      ++given;
  });
  while (given < 1000)
    ::usleep(100);
  ::usleep(20000);
  control->lose_device(0);
  host.join();
  EXPECT_LT(given, 1100);
}

// Both wait until no queued work can use the memory, as NVIDIA's driver does.
TEST_F(sim_threads, work_not_ready_waits_for_a_recheck_or_other_work) {
  struct part {
    std::atomic<bool> go{false}, ran{false};
  } part;
  auto const s = stream(0), other = stream(1);
  work const w{[](void* p) { static_cast<struct part*>(p)->ran = true; }, nullptr, &part,
               [](void* p) { return static_cast<struct part*>(p)->go.load(); }};
  ASSERT_TRUE(machine->enqueue(0, s, {}, w).ok());
  EXPECT_FALSE(control->run());
  EXPECT_FALSE(part.ran);
  ASSERT_TRUE(machine->enqueue(1, other, {}, task::of([&] { part.go = true; })).ok());
  ASSERT_TRUE(machine->synchronize_stream(0, s).ok());
  EXPECT_TRUE(part.ran);
  part.go = part.ran = false;
  ASSERT_TRUE(machine->enqueue(0, s, {}, w).ok());
  EXPECT_FALSE(control->run());
  part.go = true;
  machine->recheck();
  ASSERT_TRUE(machine->synchronize_stream(0, s).ok());
  EXPECT_TRUE(part.ran);
}

TEST_F(sim_threads, a_destroyed_stream_and_event_cancel_nothing) {
  auto const s = stream();
  auto const e = event();
  auto const gate = machine->hold(0, s);
  log(s, 1);
  ASSERT_TRUE(machine->record(0, s, e).ok());
  ASSERT_TRUE(machine->destroy_stream(0, s).ok());
  ASSERT_TRUE(machine->destroy_event(0, e).ok());
  EXPECT_EQ(machine->query_stream(0, s).what, code::invalid);
  machine->open_gate(gate.value);
  ASSERT_TRUE(machine->synchronize_device(0).ok());
  EXPECT_EQ(logged(), std::vector{1});
  EXPECT_TRUE(control->census().empty()) << control->census()[0];
}

TEST_F(sim_threads, a_forked_child_is_refused_and_the_parent_goes_on) {
  auto const s = stream();
  log(s, 1);
  ASSERT_TRUE(machine->synchronize_stream(0, s).ok());  // the workers exist
  pid_t const child = ::fork();
  if (child == 0) {
    bool const refused =
        machine->query_stream(0, s).what == code::forked && machine->create(0, 2_MiB).is.what == code::forked;
    machine.reset();  // must not wait for workers that are not there
    ::_exit(refused ? 0 : 1);
  }
  int how = 0;
  ASSERT_EQ(::waitpid(child, &how, 0), child);
  EXPECT_TRUE(WIFEXITED(how) && WEXITSTATUS(how) == 0);
  log(s, 2);
  ASSERT_TRUE(machine->synchronize_stream(0, s).ok());
  EXPECT_EQ(logged(), (std::vector{1, 2}));
}

driver* outlives_exit = nullptr;
// Registered before any machine exists: runs after the process is marked as ending.
[[maybe_unused]] int const registered = std::atexit([] {
  if (!outlives_exit)
    return;
  bool const refused = outlives_exit->query_event(event_handle{1}).what == code::unloading &&
                       outlives_exit->create(0, 2_MiB).is.what == code::unloading;
  ::_exit(refused ? 7 : 1);
});

// Regression: threads were created at the first work, so a host could wait for ever for work without a
// thread. A device that opens has all its threads.
TEST(sim_process, a_device_without_threads_does_not_open) {
  static int left;
  for (int k = 1; k <= 5; ++k) {
    auto m = make({.devices = 2, .memory = 8_MiB});
    left = k;
    os::refuse_by([](os::call c) noexcept { return c == os::call::make_thread && --left == 0; });
    int refused = 0;
    for (int d = 0; d < 2; ++d) {
      status const s = m.machine->open(d);
      if (s.ok())
        continue;
      ++refused;
      EXPECT_EQ(s.what, code::out_of_memory);
      EXPECT_EQ(m.machine->create_stream(d, stream_kind::independent, 0).is.what, code::invalid) << "it is not open";
      EXPECT_TRUE(m.machine->open(d).ok());
    }
    left = 1000;  // a further thread would be allowed, but none is requested
    EXPECT_EQ(refused, 1) << "thread " << k;
    int ran = 0;
    for (int d = 0; d < 2; ++d) {
      stream_handle const s = m.machine->create_stream(d, stream_kind::independent, 0).value;
      ASSERT_TRUE(m.machine->enqueue(d, s, {}, task::of([&] { ++ran; })).ok());
      ASSERT_TRUE(m.machine->host_function(d, s, task::of([&] { ++ran; })).ok());
      ASSERT_TRUE(m.machine->synchronize_stream(d, s).ok());
    }
    EXPECT_EQ(ran, 4);
    EXPECT_EQ(left, 1000);
    os::refuse_by(nullptr);
  }
}

TEST(sim_process, calls_of_a_process_that_ends_answer_unloading) {
  pid_t const child = ::fork();
  if (child == 0) {
    outlives_exit = make({.devices = 1}).machine.release();
    if (!outlives_exit->open(0).ok())
      ::_exit(2);
    std::exit(3);
  }
  int how = 0;
  ASSERT_EQ(::waitpid(child, &how, 0), child);
  EXPECT_TRUE(WIFEXITED(how));
  EXPECT_EQ(WEXITSTATUS(how), 7);
}

TEST(sim_process, streams_keep_their_order_among_many_threads) {
  auto m = make({.devices = 4, .memory = 64_MiB});
  auto& machine = *m.machine;
  for (int d = 0; d < 4; ++d)
    ASSERT_TRUE(machine.open(d).ok());
  std::atomic<int> wrong{0};
  std::vector<std::thread> hosts;
  for (int h = 0; h < 4; ++h) {
    hosts.emplace_back([&, h] {
      auto const a = machine.create_stream(h, stream_kind::independent, 0).value;
      auto const b = machine.create_stream((h + 1) % 4, stream_kind::independent, -1).value;
      auto const to_b = machine.create_event(h, event_kind::order_only).value;
      auto const to_a = machine.create_event((h + 1) % 4, event_kind::order_only).value;
      int count = 0;  // written by both streams: only events order them
      struct step {
        int* count;
        int want;
        std::atomic<int>* wrong;
      };
      std::vector<step> steps;
      steps.reserve(600);
      for (int i = 0; i < 300; ++i) {
        auto const put = [&](int device, stream_handle s) {
          steps.push_back({&count, static_cast<int>(steps.size()), &wrong});
          machine.enqueue(device, s, {},
                          {[](void* p) {
                             auto const& self = *static_cast<step*>(p);
                             if ((*self.count)++ != self.want)
                               ++*self.wrong;
                           },
                           nullptr, &steps.back()});
        };
        put(h, a);
        machine.record(h, a, to_b);
        machine.wait((h + 1) % 4, b, to_b);
        put((h + 1) % 4, b);
        machine.record((h + 1) % 4, b, to_a);
        machine.wait(h, a, to_a);
      }
      if (!machine.synchronize_stream(h, a).ok() || count != 600)
        ++wrong;
      machine.destroy_stream(h, a);
      machine.destroy_stream((h + 1) % 4, b);
      machine.destroy_event(h, to_b);
      machine.destroy_event((h + 1) % 4, to_a);
    });
  }
  for (auto& t : hosts)
    t.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(m.control->run());
  EXPECT_TRUE(m.control->census().empty());
}

}  // namespace
}  // namespace weir::driver::sim
