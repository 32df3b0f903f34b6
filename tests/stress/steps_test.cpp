// Concurrent steps on one atomic: none is lost, and each result goes to one thread. Threads are the system's,
// or scheduled: with WEIR_SCHEDULE_ATOMICS these switch between any two atomic accesses.
// Seeds: see tests/support/seeds.h.
// Threads: several.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <optional>

#include "peer/collective/group.h"
#include "peer/link/links.h"
#include "peer/share/exports.h"
#include "runtime/base/idle_watch.h"
#include "runtime/base/os.h"
#include "runtime/base/os_socket.h"
#include "runtime/memory/blocks/slab.h"
#include "runtime/memory/heap/heap_index.h"
#include "simulator/threads/thread_scheduler.h"
#include "streams/pinned/pinned_memory.h"
#include "streams/pinned/use_cache.h"
#include "streams/stream/context.h"
#include "tests/stress/crowd.h"
#include "tests/support/memory_bench.h"
#include "tests/support/sanitized.h"
#include "weir/share.h"
#include "weir/sim.h"

namespace weir {
namespace {

using tests::memory_bench;

simulated machine_of(simulated::scheduling how, std::uint64_t seed, int devices = 1, std::size_t memory = 1_MiB) {
  return {.devices = devices, .memory = memory, .schedule = how, .seed = seed};
}
simulated seeded(std::uint64_t seed, int devices = 1, std::size_t memory = 1_MiB) {
  return machine_of(simulated::scheduling::seeded, seed, devices, memory);
}
simulated const standing = machine_of(simulated::scheduling::stepped, 1);  // nothing moves

// A fixed number of orders, whatever WEIR_TEST_SEEDS says: some of them never switch between two accesses.
std::vector<std::uint64_t> orders() {
  constexpr std::uint64_t n = 20;
  std::uint64_t const one = tests::number_from_environment("WEIR_TEST_SEED", 0);
  std::uint64_t const first = one ? one : tests::number_from_environment("WEIR_TEST_BASE_SEED", 1);
  std::vector<std::uint64_t> all(one ? 1 : n);
  std::iota(all.begin(), all.end(), first);
  tests::count_runs("steps", all.size(), first);
  return all;
}

// Threads that start together: the system's, or scheduled ones in an order of a seed.
class together {
 public:
  together() = default;
  explicit together(std::uint64_t seed) : machine_(driver::sim::make(seeded(seed))) {}
  bool in_order() const noexcept { return machine_.has_value(); }
  int times() const noexcept { return in_order() ? 60 : tests::sanitized ? 300 : 1000; }

  template <class Step>
  void make(int threads, int n, Step step) {
    auto const life = [&](int me) {
      for (int i = 0; i < n; ++i)
        step(me);
    };
    if (in_order()) {
      auto& relay = *machine_->control->host_threads();
      relay.enter("main", base::thread_scheduler::life::while_needed);
      for (int me = 0; me < threads; ++me)
        relay.spawn("makes steps", [&life, me] { life(me); });
      EXPECT_EQ(relay.join(), "");
      return;
    }
    std::atomic<int> there{0};
    std::vector<std::thread> all;
    for (int me = 0; me < threads; ++me) {
      all.emplace_back([&, me] {
        ++there;
        for (int asked = 0; there < threads; ++asked) {
          if (asked > 10'000)
            std::this_thread::yield();
        }
        life(me);
      });
    }
    for (auto& one : all)
      one.join();
  }
  void let_others_go_on() const {
    if (in_order())
      base::yield_thread();
    else
      tests::pause(std::chrono::microseconds(3));
  }

 private:
  std::optional<driver::sim::made> machine_;
};

template <class Body>
void each_way(Body body) {
  {
    together now;
    body(now);
  }
  for (auto const seed : orders()) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    together now(seed);
    body(now);
    if (::testing::Test::HasFailure())
      return;
  }
}

template <class T>
std::size_t different(std::span<std::vector<T> const> all) {
  std::vector<T> seen;
  for (auto const& some : all)
    seen.insert(seen.end(), some.begin(), some.end());
  std::sort(seen.begin(), seen.end());
  return static_cast<std::size_t>(std::unique(seen.begin(), seen.end()) - seen.begin());
}

// System threads only: the base of the thread scheduler ---------------------------------------------------

constexpr int many = tests::sanitized ? 2000 : 50'000;  // for very short steps

TEST(steps, atomic_values_come_out_once_and_additions_count) {
  base::atomic<int> at{0}, sum{0};
  std::array<std::vector<int>, 2> out;
  together().make(2, many, [&](int me) {
    auto& mine = out[static_cast<std::size_t>(me)];
    mine.push_back(at.exchange(1 + me + 2 * static_cast<int>(mine.size())));
    sum.fetch_add(2);
    sum.fetch_sub(1);
  });
  EXPECT_EQ(sum.load(), 2 * many);
  out[0].push_back(at.load());
  EXPECT_EQ(different<int>(out), std::size_t{2 * many + 1});
}

TEST(steps, no_two_threads_have_one_id) {
  std::array<std::vector<std::uint64_t>, 2> ids;
  together().make(2, many, [&](int me) {
    base::detail::end_thread_values();  // makes this a new thread
    ids[static_cast<std::size_t>(me)].push_back(base::this_thread_id());
  });
  EXPECT_EQ(different<std::uint64_t>(ids), std::size_t{2 * many});
}

TEST(steps, concurrent_relays_are_all_counted) {
  int const before = base::detail::relays;
  std::atomic<bool> missed{false};
  std::array const machines{driver::sim::make(seeded(1)), driver::sim::make(seeded(1))};
  together().make(2, 4 * many, [&](int me) {
    auto& relay = *machines[static_cast<std::size_t>(me)].control->host_threads();
    relay.enter("main", base::thread_scheduler::life::until_left);
    if (!base::detail::is_scheduled())
      missed = true;
    relay.leave();
  });
  EXPECT_FALSE(missed);
  EXPECT_EQ(base::detail::relays, before);
}

// Both kinds of threads ----------------------------------------------------------------------------------

TEST(steps, no_two_streams_of_a_process_have_one_id) {
  each_way([](together& now) {
    memory_bench one(standing), other(standing);
    std::array<std::vector<std::uint64_t>, 2> ids;
    int const n = now.times() / 5;
    now.make(2, n, [&](int me) { ids[static_cast<std::size_t>(me)].push_back((me ? other : one).stream(0).id()); });
    EXPECT_EQ(different<std::uint64_t>(ids), static_cast<std::size_t>(2 * n));
  });
}

TEST(steps, fences_waits_questions_and_collectives_are_all_counted) {
  each_way([](together& now) {
    memory_bench bench(standing);
    clock::stream_clock* const lines[] = {&bench.stream(0), &bench.stream(0)};
    clock::stream_clock* const others[] = {&bench.stream(0), &bench.stream(0)};
    now.make(2, now.times(), [&](int me) {
      auto& line = *lines[me];
      auto const f = others[me]->fence();
      (void)line.wait(f.value);
      (void)bench.clocks().poll(f.value);  // incomplete: one query of the event, one of the stream
      (void)line.query();
      lines[0]->count_collective();
    });
    auto const n = bench.clocks().counted();
    auto const all = static_cast<std::uint64_t>(2 * now.times());
    EXPECT_EQ(n.fences, all);
    EXPECT_EQ(n.waits, all);
    EXPECT_EQ(n.polls, 2 * all);
    EXPECT_EQ(lines[0]->collectives(), all);
  });
}

// The end of the registration waits until none is under way: it would wait forever for one that is not counted out.
TEST(steps, calls_about_a_registered_stream_are_all_counted) {
  each_way([](together& now) {
    memory_bench bench(standing);
    bench.core.open(0, "test", source_location::current());
    auto const h = bench.machine().create_stream(0, driver::stream_kind::independent, 0).value;
    clock::stream_clock& line = bench.clocks().enrol(0, h);
    now.make(2, now.times(), [&](int) {
      clock::stream_clock::stay const here(line);
      EXPECT_TRUE(here);
    });
    EXPECT_TRUE(bench.clocks().leave(line));
    EXPECT_FALSE(clock::stream_clock::stay(line));
  });
}

TEST(steps, a_memory_stays_listed_whatever_its_neighbours_are) {
  each_way([](together& now) {
    memory::heap_index all;
    all.make_room();
    constexpr auto rows = memory::heap_index::whole_handle | memory::heap_index::waits;
    std::atomic<int> wrong{0};
    now.make(2, now.times(), [&](int me) {
      auto const number = static_cast<std::size_t>(me);
      all.list(number, 0, rows);
      if (all.listed(number) != rows)
        ++wrong;
      all.list(number, rows, 0);
      if (all.listed(number) != 0)
        ++wrong;
    });
    EXPECT_EQ(wrong, 0);
  });
}

// Two threads mark a slot first, without the lock, and a lock holder adds more marks. Each removes its own.
TEST(steps, a_slot_keeps_its_first_two_marks) {
  each_way([](together& now) {
    memory_bench bench(standing);
    std::array const users{&bench.stream(0), &bench.stream(0)};
    unsigned char byte[1] = {static_cast<unsigned char>(memory::slot::live)};
    memory::slab s;
    s.first = byte;
    s.slots = 1;
    s.users_storage = std::make_unique<memory::slab::first_users[]>(1);
    auto& words = s.users_storage[0];
    auto const take_back = [](memory::slab::user_word& word, std::uintptr_t bits) {
      for (std::uintptr_t known = word.load(); !word.compare_exchange(known, known & ~bits);) {}
    };
    std::atomic<int> wrong{0};
    now.make(3, now.times(), [&](int me) {
      constexpr auto more = memory::slab::more;
      if (me == 2) {
        s.say_more(0);
        now.let_others_go_on();
        if (!(words[0].load() & more))
          ++wrong;
        return take_back(words[0], more);
      }
      auto& user = *users[static_cast<std::size_t>(me)];
      if (!s.add_first_user(&words, 0, user))
        ++wrong;
      now.let_others_go_on();
      auto* const mine =
          std::ranges::find_if(words, [&](auto const& word) { return memory::slab::clock_of(word.load()) == &user; });
      if (mine == words.end())
        ++wrong;
      else
        take_back(*mine, ~more);
    });
    EXPECT_EQ(wrong, 0);
  });
}

TEST(steps, one_asker_is_told_to_look_for_idle_memory) {
  each_way([](together& now) {
    base::idle_watch watch(4);
    std::atomic<std::int64_t> time{1};
    std::vector<std::atomic<int>> told(static_cast<std::size_t>(2 * now.times() + 2));
    now.make(2, now.times(), [&](int) {
      std::int64_t const at = time;
      if (!watch.is_time(at))
        return;
      ++told[static_cast<std::size_t>(at)];
      time = at + 1;
    });
    for (auto const& times : told)
      ASSERT_LE(times, 1);
  });
}

// A thread's cache of pinned blocks holds for one version. Each freed block or ended pool changes it.
TEST(steps, each_returned_pinned_block_changes_the_version) {
  each_way([](together& now) {
    memory_bench one(standing), other(standing);
    std::array const pools{&one.core.part<streams::pinned_memory>(), &other.core.part<streams::pinned_memory>()};
    auto const take_and_give = [&](int k) {
      auto& pool = *pools[static_cast<std::size_t>(k)];
      pool.deallocate(pool.allocate(64, 0, source_location::current()), source_location::current());
    };
    for (int k = 0; k < 2; ++k)
      take_and_give(k);
    std::uint64_t const before = streams::pinned_uses::version().load();
    now.make(3, now.times(), [&](int me) {
      if (me == 2)
        streams::pinned_memory const ends(one.core);
      else
        take_and_give(me);
    });
    EXPECT_EQ(streams::pinned_uses::version().load(), before + static_cast<std::uint64_t>(3 * now.times()));
  });
}

TEST(steps, guards_that_end_out_of_place_are_all_counted) {
  runtime own(standing);
  runtime_guard const in(own);
  each_way([&](together& now) {
    auto const before = streams::misplaced_guards();
    int const some = now.times() / 10;
    std::array<std::vector<std::unique_ptr<device_guard>>, 2> guards;
    for (int i = 0; i < some; ++i) {
      for (auto& all : guards)
        all.push_back(std::make_unique<device_guard>(0));
    }
    now.make(2, some, [&](int me) { guards[static_cast<std::size_t>(me)].pop_back(); });  // on another thread
    auto const elsewhere = streams::misplaced_guards();
    EXPECT_EQ(elsewhere, before + static_cast<std::uint64_t>(2 * some));
    now.make(2, now.times(), [&](int) {
      runtime_guard const here_too(own);
      auto outer = std::make_unique<device_guard>(0);
      device_guard const inner(0);
      outer.reset();  // before the inner one
    });
    EXPECT_EQ(streams::misplaced_guards(), elsewhere + static_cast<std::uint64_t>(2 * now.times()));
  });
}

TEST(steps, a_handle_that_two_threads_send_has_one_descriptor) {
  auto const files = [] { return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}); };
  each_way([&](together& now) {
    memory_bench bench(standing);
    bench.core.open(0, "test", source_location::current());
    auto& machine = bench.machine();
    std::vector<peer::exported> all(10);
    for (auto& one : all)
      one.pages = peer::mapped_handle(machine, machine.create_shared(0, 64_KiB).value, 64_KiB);
    auto const before = files();
    std::array<std::vector<int>, 2> seen;
    std::array<std::size_t, 2> next{};
    now.make(2, static_cast<int>(all.size()), [&](int me) {
      auto const k = static_cast<std::size_t>(me);
      seen[k].push_back(all[next[k]++].descriptor(machine).value);
    });
    EXPECT_EQ(files(), before + std::ssize(all));
    EXPECT_EQ(seen[0], seen[1]);
    for (auto& one : all) {
      one.close_descriptor();
      EXPECT_TRUE(one.pages.give_back());
    }
  });
}

// Scheduled threads ---------------------------------------------------------------------------------------

TEST(unordered_steps, a_device_has_one_default_stream) {
  for (auto const seed : orders()) {
    runtime own(seeded(seed, 16));
    runtime_guard const in(own);
    auto machine = simulation::of(own);
    std::array<std::array<std::uint64_t, 16>, 3> ids{};
    for (auto& mine : ids) {
      machine.spawn("asks", [&mine] {
        for (std::size_t d = 0; d < mine.size(); ++d)
          mine[d] = default_stream(static_cast<int>(d)).id();
      });
    }
    machine.join();
    EXPECT_EQ(ids[0], ids[1]) << "seed " << seed;
    EXPECT_EQ(ids[0], ids[2]) << "seed " << seed;
  }
}

std::pair<share_channel, share_channel> line_and_its_other_end() {
  auto const [a, b] = os::make_sockets();
  return {share_channel(a, std::chrono::seconds(60)), share_channel(b, std::chrono::seconds(60))};
}

// If the system cannot compare descriptors, memory from the same channel counts as the same.
TEST(unordered_steps, concurrent_lines_differ) {
  for (auto const seed : orders()) {
    runtime own(seeded(seed, 1, 16_MiB));
    runtime_guard const in(own);
    auto machine = simulation::of(own);
    std::array<std::vector<std::pair<share_channel, share_channel>>, 2> lines;
    for (auto& mine : lines) {
      machine.spawn("makes lines", [&mine] {
        for (int i = 0; i < 8; ++i)
          mine.push_back(line_and_its_other_end());
      });
    }
    machine.join();
    stream const s(0);
    exportable_buffer const one(1000, 0);
    os::refuse_by([](os::call c) noexcept { return c == os::call::compare_files; });
    std::vector<imported_buffer> opened;
    for (auto& mine : lines) {
      for (auto& [to, from] : mine)
        to.send(one, s), opened.push_back(from.receive(0));
    }
    EXPECT_EQ(own.get().part<peer::imports>().mapped(), opened.size()) << "seed " << seed;
    os::refuse_by(nullptr);
  }
}

// Two devices whose streams never run work: the test's threads
// run it. If the machine is `idle`, all fences are complete.
struct two_devices {
  struct keeps_work final : driver::fault_injector {
    using fault_injector::fault_injector;
    using status = weir::driver::status;
    using work = weir::driver::work;
    status enqueue(int, weir::driver::stream_handle, std::span<weir::driver::touch const>, work w) override {
      return given.push_back(w), status{};
    }
    status query_event(weir::driver::event_handle e) override {
      return idle ? status{} : fault_injector::query_event(e);
    }
    std::vector<work> given;
    bool idle = false;
  };
  explicit two_devices(std::uint64_t seed)
      : bench(seeded(seed, 2, 16_MiB), {}, [this](std::unique_ptr<driver::driver> m) {
          auto around = std::make_unique<keeps_work>(std::move(m));
          machine = around.get();
          return around;
        }) {
    threads.enter("main", base::thread_scheduler::life::until_left);
  }
  keeps_work* machine = nullptr;
  memory_bench bench;
  base::thread_scheduler& threads = *bench.control->host_threads();
  std::vector<int> const both{0, 1};
};

TEST(unordered_steps, every_part_counts_despite_abort) {
  for (auto const seed : orders()) {
    two_devices rig(seed);
    std::array const lines{&rig.bench.stream(0), &rig.bench.stream(1)};
    for (std::uint64_t turn = 0; turn < 40; ++turn) {
      auto const carrier = peer::carried_by_streams(rig.bench.core, rig.both);
      std::array<float, 2> x{1, 2};
      for (std::size_t k = 0; k < 2; ++k) {
        peer::collective_request const what{.count = 1, .in = &x[k], .out = &x[k], .turn = turn};
        carrier->issue(static_cast<int>(k), *lines[k], {&what, 1}, source_location::current());
      }
      auto const parts = std::exchange(rig.machine->given, {});
      int standing_still = 0;
      for (std::size_t k = 0; k < 2; ++k) {
        rig.threads.spawn("rank", [&, k] {
          for (std::size_t i = 3 * k; i < 3 * k + 3; ++i) {
            for (int asked = 0; parts[i].ready && !parts[i].ready(parts[i].state); ++asked) {
              if (asked == 2000)
                return void(++standing_still);
              base::yield_thread();
            }
            parts[i].run(parts[i].state);
          }
        });
      }
      if (turn % 2)
        rig.threads.spawn("aborts", [&] { carrier->abort(); });
      EXPECT_EQ(rig.threads.join(), "");
      for (auto const& part : parts)
        part.drop(part.state);
      ASSERT_EQ(standing_still, 0) << "seed " << seed << ", turn " << turn;
      if (turn % 2 == 0) {
        ASSERT_EQ(x, (std::array<float, 2>{3, 3})) << "seed " << seed << ", turn " << turn;
      }
    }
  }
}

}  // namespace
}  // namespace weir
