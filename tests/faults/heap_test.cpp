// Refuses host allocations: alone, with a few after it, and for good. The process survives, nothing leaks, and
// the scenario then works. The seed chooses which. Seeds: as in calls_test.cpp.
// Threads: one.
#include "tests/faults/heap.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "peer/share/exports.h"
#include "runtime/core/parts.h"
#include "runtime/memory/blocks/arena.h"
#include "runtime/memory/device/device_allocator.h"
#include "runtime/observe/external_memory.h"
#include "simulator/faults/fault_injector.h"
#include "simulator/threads/thread_scheduler.h"
#include "streams/copy/copy_workers.h"
#include "streams/pinned/pinned_memory.h"
#include "streams/pinned/use_cache.h"
#include "tests/faults/trial.h"
#include "tests/support/memory_bench.h"
#include "weir/checkpoint.h"
#include "weir/collective.h"

namespace weir::faults {
namespace {

// Returns: whether the call came to its end. Host memory may be missing in weir, or behind the driver.
template <class Call>
bool succeeds(Call const& call) {
  try {
    call();
    return true;
  } catch (std::bad_alloc const&) {
  } catch (driver_error const&) {}
  return false;
}

struct failing_heap : ::testing::TestWithParam<scenario> {};

TEST_P(failing_heap, leaves_all_whole_and_the_scenario_runs) {
  if (std::getenv("WEIR_CHECK_RACES"))
    GTEST_SKIP() << "the checker allocates inside calls of the driver, and does not go on without memory";
  scenario const& s = GetParam();
  if (std::string_view(s.name) == "streams_by_handle")
    GTEST_SKIP() << "a simulated_stream allocates in the machine, and does not end without memory";
  if (std::string_view(s.name) == "captures")
    GTEST_SKIP()
        << "open: a buffer that ends inside a capture without host memory keeps its block until the runtime ends";
  expectation const e = undisturbed_once_warm(s, 1);
  std::uint64_t const all = 3 * e.allocations;
  drawn_failures failures(all, 100);
  pair_counts counts{};
  while (failures.next()) {
    std::uint64_t const mode = failures.index() % 3;
    failure f;
    f.allocation = 1 + failures.index() / 3;
    f.more_allocations = mode == 0 ? 0 : mode == 1 ? heap::without_end : 1 + failures.seed() % 4;
    std::string const wrong = try_again(s, f, e, counts);
    ASSERT_EQ(wrong, "") << f.text() << "; replay with WEIR_TEST_SEED=" << failures.seed();
  }
}

INSTANTIATE_TEST_SUITE_P(of, failing_heap, ::testing::ValuesIn(scenarios().begin(), scenarios().end()),
                         [](auto const& info) { return info.param.name; });

// Under a seed each thread switch allocates, so such allocations do not fail; system threads let them fail.
std::vector<scenario> that_wait() {
  std::vector<scenario> all;
  for (auto s : scenarios()) {
    if (!s.threads)
      continue;
    s.machine.schedule = simulated::scheduling::threads;
    s.machine.memory *= 4;  // pages are larger
    all.push_back(s);
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(with_threads, failing_heap, ::testing::ValuesIn(that_wait()),
                         [](auto const& info) { return info.param.name; });

// Regression: submit() threw, even out of a host function.
TEST(a_crew_without_memory, copies_all_that_it_was_given) {
  using streams::copy_workers;
  for (std::uint64_t const more : {std::uint64_t{0}, heap::without_end}) {
    std::string const from(200, 'x');
    std::string to(200, '-');
    std::vector<copy_workers::task> tasks(200);  // more than a queue holds without allocating
    copy_workers crew(0);
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      tasks[i] = {&to[i], &from[i], 1};
      heap::fail(1, more);
      crew.submit(tasks[i]);
      heap::stop();
    }
    for (auto& one : tasks)
      crew.finish(one);
    EXPECT_EQ(to, from);
  }
}

// Regression: an arena whose constructor promised not to throw leaked its heap when it had no memory.
TEST(an_arena_without_memory, frees_its_own_pages) {
  struct alignas(64) holder {
    memory::arena inside;
  };
  std::int64_t const before = heap::live();
  bool made = false;
  for (std::uint64_t k = 1; !made; ++k) {
    heap::fail(k, 0);
    try {
      made = std::make_unique<holder>() != nullptr;
    } catch (std::bad_alloc const&) {}
    heap::stop();
    EXPECT_EQ(heap::live(), before) << "allocation " << k;
  }
}

class shared_memory_without_memory : public testing::Test {
 protected:
  void SetUp() override {
    if (std::getenv("WEIR_CHECK_RACES"))
      GTEST_SKIP() << "the checker does not go on without memory";
  }
  void come_to_rest() {
    synchronize(device(0));
    exports.forget_idle();
  }

  runtime own{simulated{.devices = 1, .memory = 64_MiB}};
  runtime_guard const in{own};
  peer::exports& exports = own.get().part<peer::exports>();
};

// If the driver refuses to release memory now, weir releases it later.
TEST_F(shared_memory_without_memory, is_given_back_in_the_end) {
  auto& driver = *driver::fault_injector_of(own.get().machine());
  auto const left = [&] {
    come_to_rest();
    auto all = driver::sim::controls_of(driver)->census();
    all.push_back(std::to_string(driver.memory(0).value.free) + " B free");
    return all;
  };
  { exportable_buffer const b(1000, 0); }
  deallocate(allocate(1000));  // a search for room makes what this makes
  synchronize(device(0));
  empty_cache();
  auto const before = left();
  std::uint64_t refused = 1;
  for (std::uint64_t k = 1; refused; ++k) {
    driver.refuse({.of = driver::call::release, .more = driver::fault_injector::without_end});
    heap::fail(k, 0);
    (void)succeeds([] { exportable_buffer const b(1000, 0); });
    refused = heap::stop();
    driver.forget_orders();
    EXPECT_EQ(left(), before) << "allocation " << k;
  }
}

// What is cached makes room, and to find it takes memory, too.
TEST_F(shared_memory_without_memory, comes_back_if_room_was_sought) {
  auto& driver = *driver::fault_injector_of(own.get().machine());
  auto const free_at_rest = [&] {
    come_to_rest();
    empty_cache();
    return driver.memory(0).value.free;
  };
  { exportable_buffer const b(1000, 0); }
  std::size_t const before = free_at_rest();
  std::uint64_t refused = 1;
  for (std::uint64_t k = 1; refused; ++k) {
    deallocate(allocate(32_MiB));
    synchronize(device(0));
    heap::fail(k, 0);
    (void)succeeds([] { exportable_buffer const b(40_MiB, 0); });
    refused = heap::stop();
    EXPECT_EQ(free_at_rest(), before) << "allocation " << k;
  }
}

TEST(a_pool_without_memory, frees_what_it_holds_once_there_is_some) {
  if (std::getenv("WEIR_CHECK_RACES"))
    GTEST_SKIP() << "the checker does not go on without memory";
  runtime own(simulated{.devices = 1, .memory = 64_MiB});
  runtime_guard const in(own);
  share_pool pool({.on = 0});
  std::uint64_t refused = 1;
  for (std::uint64_t k = 1; refused; ++k) {
    { exportable_buffer const a = pool.allocate(1000), b = pool.allocate(1000), c = pool.allocate(1000); }
    synchronize(device(0));
    heap::fail(k, 0);
    (void)pool.statistics();
    refused = heap::stop();
    EXPECT_EQ(pool.statistics().held, 0u) << "allocation " << k;
  }
}

// The second of a rank's threads may fail when the first runs.
TEST(a_rank_without_memory, is_made_or_refused) {
  if (std::getenv("WEIR_CHECK_RACES"))
    GTEST_SKIP() << "the checker does not go on without memory";
  runtime own(simulated{.devices = 1, .memory = 64_MiB});
  runtime_guard const in(own);
  (void)communicator::create(communicator::unique_id(), 0, 1, device(0));  // what the process and the thread keep
  std::uint64_t refused = 1;
  for (std::uint64_t k = 1; refused; ++k) {
    std::string const id = communicator::unique_id();
    heap::fail(k, 0);
    bool const made = succeeds([&] { (void)communicator::create(id, 0, 1, device(0)); });
    refused = heap::stop();
    EXPECT_TRUE(made || refused) << "allocation " << k;
  }
}

// Its own reason is lost, but not that it is over.
TEST(a_rank_without_memory, gives_up_all_the_same) {
  if (std::getenv("WEIR_CHECK_RACES"))
    GTEST_SKIP() << "the checker does not go on without memory";
  runtime own(simulated{.devices = 1, .memory = 64_MiB});
  runtime_guard const in(own);
  auto c = communicator::create(communicator::unique_id(), 0, 1, device(0));
  heap::fail(1, heap::without_end);
  c.abort();
  EXPECT_GT(heap::stop(), 0u);
  EXPECT_NE(c.failure(), "");
}

bool come_to_rest(std::initializer_list<device> all) {
  auto const end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  for (device const d : all) {
    while (!current_stream(d).query()) {
      if (std::chrono::steady_clock::now() > end)
        return false;
      ::usleep(100);
    }
  }
  return true;
}

// The other ranks know nothing of a call that failed before its first part, and the next try is the first.
// Once a part is enqueued they wait for the rest, so the communicator is over.
TEST(a_collective_without_memory, leaves_no_trace_or_ends_all) {
  if (std::getenv("WEIR_CHECK_RACES"))
    GTEST_SKIP() << "the checker does not go on without memory";
  runtime own(simulated{.devices = 2, .memory = 64_MiB});
  runtime_guard const in(own);
  buffer const a(8, {.on = device(0)}), b(8, {.on = device(1)});
  auto const call = [](communicator& c, buffer const& x) {
    device_span const second{x.data<std::byte>() + 4, 1, int32};
    collective_group both(c);
    both.all_reduce({x.data(), 1, int32});
    if (c.rank() == 0)
      both.send(second, 1);
    else
      both.receive(second, 0);
    both.end();
  };
  enum class fails : std::uint8_t { first, last };  // of the two ranks: the last ends the entry of the call
  int ended = 0;
  for (fails const which : {fails::first, fails::last}) {
    for (std::uint64_t const more : {std::uint64_t{0}, heap::without_end}) {
      std::uint64_t refused = 1;
      for (std::uint64_t k = 0; k <= 1 || refused; ++k) {  // 0: what the process and the thread keep
        SCOPED_TRACE("allocation " + std::to_string(k) + (more ? " and all after it" : ""));
        auto ranks = communicator::create_all(std::vector{device(0), device(1)});
        if (which == fails::last)
          call(ranks[1], b);
        heap::fail(k, more);
        bool const made = succeeds([&] { call(ranks[0], a); });
        refused = heap::stop();
        bool const over = !ranks[0].failure().empty();
        EXPECT_FALSE(made && over);
        ended += over;
        if (!made && !over)
          call(ranks[0], a);
        if (which == fails::first) {
          EXPECT_EQ(succeeds([&] { call(ranks[1], b); }), !over);
        }
        ASSERT_TRUE(come_to_rest({device(0), device(1)}));
      }
    }
  }
  EXPECT_GT(ended, 0);
}

// A rank that fails before it comes is still awaited. The rank that comes last makes the parts: if it fails, every
// rank is told. In either case the next try is as the first.
TEST(a_split_without_memory, can_be_tried_again_by_every_rank) {
  if (std::getenv("WEIR_CHECK_RACES"))
    GTEST_SKIP() << "the checker does not go on without memory";
  runtime own(simulated{.devices = 2, .memory = 64_MiB});
  runtime_guard const in(own);
  auto ranks = communicator::create_all(std::vector{device(0), device(1)});
  std::uint64_t refused = 1;
  for (std::uint64_t k = 0; k <= 1 || refused; ++k) {  // 0: what the process keeps
    SCOPED_TRACE("allocation " + std::to_string(k));
    auto const splits = [](communicator& c) { return succeeds([&] { EXPECT_EQ(c.split(0)->size(), 2); }); };
    std::thread other([&] {
      runtime_guard const too(own);
      while (!splits(ranks[1])) {}
    });
    heap::fail(k, 0);
    bool made = splits(ranks[0]);
    refused = heap::stop();
    while (!made)
      made = splits(ranks[0]);
    other.join();
    EXPECT_TRUE(ranks[0].failure().empty() && ranks[1].failure().empty());
  }
}

// A device wait finds the block, and then the report needs a line for it.
TEST(an_allocation_without_memory, loses_no_block_of_a_step) {
  if (std::getenv("WEIR_CHECK_RACES"))
    GTEST_SKIP() << "the checker does not go on without memory";
  constexpr source_location at{"a test", "a test", 1};
  std::uint64_t refused = 1;
  for (std::uint64_t k = 0; k <= 1 || refused; ++k) {  // 0: what the process and the thread keep
    SCOPED_TRACE("allocation " + std::to_string(k));
    tests::memory_bench bench({.devices = 1, .memory = 64 << 20, .schedule = simulated::scheduling::stepped, .seed = 1},
                              options{.device_limit = 4 << 20});
    clock::stream_clock &a = bench.stream(0), &b = bench.stream(0);
    auto& device = bench.on(0);
    void* const first = device.allocate(a, 3 << 20, 0, at);
    auto const gate = bench.machine().hold(0, a.handle());
    ASSERT_TRUE(gate.ok());
    device.deallocate(first, nullptr, at);
    void* second = nullptr;
    heap::fail(k, 0);
    bool const made = succeeds([&] { second = device.allocate(b, 3 << 20, 0, at); });
    refused = heap::stop();
    EXPECT_EQ(device.statistics().allocated_bytes.all.current, made ? 3 << 20 : 0);
    if (made)
      device.deallocate(second, nullptr, at);
    ASSERT_TRUE(bench.machine().open_gate(gate.value).ok());
    EXPECT_TRUE(bench.control->run());
    EXPECT_EQ(device.validate(), std::vector<std::string>{});
  }
}

// Segments without memory are dropped; the last few stay for threads that may still look them up.
TEST(segments_without_memory, are_dropped_all_the_same) {
  tests::memory_bench bench({.devices = 1, .memory = 1_MiB});
  auto info = bench.machine().info(0).value;
  info.maps = false;
  memory::address_space space(bench.machine(), 0);
  ASSERT_TRUE(space.open(info, 0).ok());
  alignas(16) char place[sizeof(memory::stream_heap)] = {};
  auto& no_heap = reinterpret_cast<memory::stream_heap&>(place);  // only its address is kept
  for (memory::address i = 1; i <= 100; ++i) {
    memory::region* const r = space.adopt_segment(i << 20, 1_MiB, no_heap);
    auto aside = space.set_aside(*r);
    heap::fail(1, heap::without_end);
    space.drop(std::move(aside));
    heap::stop();
    EXPECT_EQ(space.find(reinterpret_cast<void*>(i << 20)), nullptr);
  }
}

// If there is no memory to note a block in external_memory, its whole handle counts as in use.
TEST(books_without_memory, hold_all_of_a_handle_for_in_use) {
  runtime own(simulated{.devices = 1, .memory = std::size_t{64} << 20});
  observe::external_memory books(own.get());
  auto const at = [](std::uintptr_t n) { return reinterpret_cast<void const*>(n); };
  books.appeared(0, observe::sharing::exported, 0x10000, 0x1000);
  EXPECT_FALSE(books.find(at(0x10100))->in_use);
  heap::fail(1, 0);
  books.taken(0x10100, 512, 500, source_location::current());
  EXPECT_EQ(heap::stop(), 1u);
  books.taken(0x10400, 512, 500, source_location::current());
  auto const unknown = *books.find(at(0x10100)), known = *books.find(at(0x10401));
  EXPECT_TRUE(unknown.in_use);
  EXPECT_EQ(unknown.bytes, 0x1000u);
  EXPECT_EQ(known.at, 0x10400u);
  EXPECT_EQ(known.bytes, 500u);
}

// If there is no memory to record a use of a pinned block, its end is unknown, so the block is never reused.
TEST(pinned_blocks, with_an_unrecorded_use_are_never_reused) {
  enum class noted { all, not_all_streams, not_all_stamps };
  for (noted const how : {noted::all, noted::not_all_streams, noted::not_all_stamps}) {
    tests::memory_bench bench({.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::stepped});
    auto& pool = bench.core.part<streams::pinned_memory>();
    constexpr std::size_t bytes = 4096;
    void* const p = pool.allocate(bytes, 0, source_location::current());
    std::uint64_t refused = 0;
    std::vector<clock::stream_clock*> users;
    for (int i = 0; i < 12; ++i) {  // more than most blocks need, which have room reserved
      clock::stream_clock& user = *users.emplace_back(&bench.stream(0));
      ASSERT_TRUE(bench.machine().enqueue(0, user.handle(), {}, {[](void*) {}, nullptr, nullptr}).ok());
      heap::fail(how != noted::all, 0);
      how == noted::not_all_stamps ? pool.record_use(p, user.now()) : pool.record_use(p, user);
      refused += heap::stop();
    }
    EXPECT_EQ(refused > 0, how != noted::all);
    pool.deallocate(p, source_location::current());
    std::vector<void*> others{pool.allocate(bytes, 0, source_location::current())};
    EXPECT_NE(others[0], p) << "its streams are not done";
    for (clock::stream_clock* user : users)
      ASSERT_TRUE(bench.clocks().synchronize(user->now()).ok());
    others.push_back(pool.allocate(32_MiB, 0, source_location::current()));  // a miss, which polls completion
    EXPECT_EQ(pool.statistics().pending_bytes.all.current, how == noted::all ? 0 : static_cast<std::int64_t>(bytes));
    others.push_back(pool.allocate(bytes, 0, source_location::current()));
    EXPECT_EQ(others.back() == p, how == noted::all) << "all that is known of is done";
    for (void* one : others)
      pool.deallocate(one, source_location::current());
    EXPECT_EQ(pool.validate(), std::vector<std::string>{});
  }
}

// After the free, a use's record serves other blocks. This needs no memory.
TEST(pinned_uses, come_back_with_their_blocks) {
  tests::memory_bench bench({.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::stepped});
  auto& pool = bench.core.part<streams::pinned_memory>();
  std::vector<clock::stream_clock*> users;
  for (int i = 0; i < 12; ++i)
    users.push_back(&bench.stream(0));
  std::int64_t once = 0;
  for (int round = 0; round < 20; ++round) {
    streams::pinned_uses mine;
    void* const p = pool.allocate(4096, 0, source_location::current());
    for (clock::stream_clock const* user : users)
      ASSERT_NE(pool.look(p, 4096, user->id(), mine), nullptr);
    heap::fail(1, heap::without_end);
    pool.deallocate(p, source_location::current());
    EXPECT_EQ(heap::stop(), 0u);
    if (round == 0)
      once = heap::live();
  }
  EXPECT_EQ(heap::live(), once);
}

// Regression: such a thread handed on the baton before it dropped its state of the machine, and under load
// the census of a trial saw that. Here the thread runs only when its processor is otherwise idle.
TEST(kept_thread, owns_nothing_of_a_machine_that_went_on_alone) {
  struct in_turn final : base::schedule_choices {
    int next(int now, std::span<int const>) noexcept override { return now; }
    int instead(int, std::span<int const> can) noexcept override { return can.front(); }
    std::size_t woken(std::size_t) noexcept override { return 0; }
    bool move() noexcept override { return false; }
    std::int64_t now_ns() noexcept override { return 0; }
    void jump(std::int64_t) noexcept override {}
    void stuck(std::string const&) noexcept override {}
  } choices;
  cpu_set_t all, one;
  ASSERT_EQ(::sched_getaffinity(0, sizeof all, &all), 0);
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(::sched_getcpu()), &one);
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  sched_param const none{};
  std::vector<pid_t> humble;
  humble.reserve(100);
  auto const run = [&] {
    base::thread_scheduler threads(choices);
    threads.enter("first", base::thread_scheduler::life::while_needed);
    for (int k = 0; k < 2; ++k) {
      threads.spawn("another", [&] {
        humble.push_back(::gettid());
        EXPECT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
        EXPECT_EQ(::sched_setscheduler(0, SCHED_IDLE, &none), 0);
      });
    }
    EXPECT_EQ(threads.join(), "");
  };
  run();  // creates the threads, which are kept
  for (int i = 0; i < 5; ++i) {
    ::usleep(1000);  // lets the threads come to rest
    std::int64_t const before = heap::live();
    run();
    EXPECT_EQ(heap::live(), before) << "run " << i;
  }
  for (pid_t const t : humble) {
    (void)::sched_setscheduler(t, SCHED_OTHER, &none);
    EXPECT_EQ(::sched_setaffinity(t, sizeof all, &all), 0);
  }
  EXPECT_EQ(::sched_setaffinity(0, sizeof all, &all), 0);
}

// A writer's thread that has no host memory tells the path, and the process goes on.
TEST(a_checkpoint_writer_without_memory, tells_its_path) {
  weir::runtime machine(simulated{.devices = 1, .memory = 64_MiB});
  weir::runtime_guard const in(machine);
  auto const file = std::filesystem::temp_directory_path() / ("weir_heap_" + std::to_string(::getpid()));
  float value = 1;
  checkpoint_writer w(file);
  os::refuse_by([](os::call c) noexcept {
    if (c == os::call::write_file)
      heap::fail(1, heap::without_end);  // on the writer's thread
    return c == os::call::write_file;
  });
  ::testing::internal::CaptureStderr();
  w.save({{"x", {&value, 1, float32}, {}}});
  std::string what;
  try {
    w.finish();
  } catch (checkpoint_error const& e) {
    what = e.what();
  }
  os::refuse_by(nullptr);
  EXPECT_NE(what.find(file.string() + " stays as it is: no host memory"), std::string::npos) << what;
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), what + "\n");
  EXPECT_FALSE(std::filesystem::exists(file));
}

}  // namespace
}  // namespace weir::faults
