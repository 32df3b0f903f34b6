// weir/sim.h: control of a simulated machine by a program's own tests.
#include "weir/sim.h"

#include <sys/mman.h>

#include <set>
#include <utility>

#include "tests/peer/machine_fixture.h"
#include "tests/peer/ranks.h"
#include "tests/support/sanitized.h"
#include "weir/peer.h"

namespace {

using namespace weir;
using namespace weir::test;

TEST(simulation, a_machine_with_gpus_is_no_simulation) {
  if (runtime::current().is_simulated())
    GTEST_SKIP() << "no GPUs: " << runtime::current().description();
  EXPECT_NE(refusal<invalid_use>([] { simulation::of(runtime::current()); }).find("simulation::of"), std::string::npos);
}

TEST(simulation, equal_seeds_and_calls_give_equal_hashes) {
  auto const hash_of = [](std::uint64_t seed, int copies) {
    runtime machine(simulated{.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::seeded, .seed = seed});
    runtime_guard const in(machine);
    EXPECT_EQ(simulation::of(machine).seed(), seed);
    buffer const b(64);
    std::vector<std::byte> host(64);
    for (int i = 0; i < copies; ++i)
      copy(b.data(), host.data(), host.size());
    synchronize();
    return simulation::of(machine).trace_hash();
  };
  EXPECT_EQ(hash_of(3, 4), hash_of(3, 4));
  EXPECT_NE(hash_of(3, 4), hash_of(3, 5));
  EXPECT_NE(hash_of(3, 4), hash_of(4, 4));
}

// Two threads, each staging both ways on its own device. Returns: the order in which they came, and the
// trace.
std::string staging_among_threads(std::uint64_t seed) {
  runtime machine(simulated{.devices = 2, .memory = 16_MiB, .schedule = simulated::scheduling::seeded, .seed = seed});
  runtime_guard const in(machine);
  auto sim = simulation::of(machine);
  std::string order;
  for (char name : {'a', 'b'}) {
    sim.spawn(std::string(1, name), [&order, name, salt = static_cast<std::uint64_t>(name) + seed] {
      stream const s(device(name - 'a'));
      stream_guard const on(s);
      for (int i = 0; i < 2; ++i) {
        auto const sent = pattern(3u << 20, salt);
        bytes_of_host got(sent.size());
        buffer const b(sent.size());
        copy(s, b.data(), sent.data(), sent.size());
        order += name;
        copy(s, got.data(), b.data(), got.size());
        s.synchronize();
        EXPECT_EQ(got, sent);
      }
    });
  }
  sim.join();
  EXPECT_EQ(sim.findings(), std::vector<std::string>{});
  return order + " " + std::to_string(sim.trace_hash());
}

// Also threads that stage.
TEST(simulation, its_threads_take_turns_by_the_seed) {
  std::set<std::string> orders;
  std::uint64_t const only = tests::number_from_environment("WEIR_TEST_SEED", 0);
  std::uint64_t const first = only ? only : 1, end = first + (only ? 1 : tests::sanitized ? 8 : 24);
  for (std::uint64_t seed = first; seed < end; ++seed) {
    SCOPED_TRACE("WEIR_TEST_SEED=" + std::to_string(seed));
    auto const once = staging_among_threads(seed);
    orders.insert(once.substr(0, 4));
  }
  EXPECT_GT(orders.size(), end - first > 1 ? 1u : 0u);
}

// Reserves ranges of other sizes, so that the run's memory is mapped elsewhere and in another order.
class crowded {
 public:
  explicit crowded(std::size_t n) {
    for (std::size_t i = 0; i < 24; ++i) {
      std::size_t const bytes = (1 + (i * n) % 7) << 20;
      pages_.emplace_back(::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0), bytes);
    }
    for (std::size_t i = n % 2; i < pages_.size(); i += 2)
      ::munmap(pages_[i].first, std::exchange(pages_[i].second, 0));
  }
  ~crowded() {
    for (auto const& [at, bytes] : pages_) {
      if (bytes)
        ::munmap(at, bytes);
    }
  }

 private:
  std::vector<std::pair<void*, std::size_t>> pages_;
};

// Wherever the pages lie.
TEST(simulation, a_seed_takes_the_same_course_in_every_process) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  std::uint64_t const only = tests::number_from_environment("WEIR_TEST_SEED", 0), first = only ? only : 1;
  std::uint64_t const count = tests::number_from_environment("WEIR_TEST_PROCESSES", tests::sanitized ? 1 : 2);
  bool const fresh = ::testing::internal::InDeathTestChild();  // the child runs the loop up to its own statement
  for (std::uint64_t seed = first; seed < first + (only ? 1 : count); ++seed) {
    SCOPED_TRACE("WEIR_TEST_SEED=" + std::to_string(seed));
    auto const later = fresh ? std::string() : staging_among_threads(seed);
    for (std::size_t n = 1; n <= 3 && !fresh; ++n) {
      crowded const around(n);
      EXPECT_EQ(staging_among_threads(seed), later);
    }
    EXPECT_EXIT((std::fputs(staging_among_threads(seed).c_str(), stderr), std::exit(0)), ::testing::ExitedWithCode(0),
                later);
  }
}

TEST(simulation, spawning_is_for_seeded_machines) {
  runtime machine(simulated{.devices = 1, .memory = 16_MiB});
  EXPECT_NE(refusal<invalid_use>([&] { simulation::of(machine).spawn("a", [] {}); }).find("scheduling::seeded"),
            std::string::npos);
  runtime one(simulated{.devices = 1, .memory = 16_MiB, .schedule = simulated::scheduling::seeded, .seed = 1});
  runtime other(simulated{.devices = 1, .memory = 16_MiB, .schedule = simulated::scheduling::seeded, .seed = 1});
  std::string why;
  simulation::of(one).spawn("a", [&] { why = refusal<invalid_use>([&] { simulation::of(other).spawn("b", [] {}); }); });
  simulation::of(one).join();
  EXPECT_NE(why.find("belongs to another machine"), std::string::npos) << why;
  simulation::of(other).spawn("b", [] {});
  simulation::of(other).join();
}

TEST(simulation, join_rethrows_a_threads_exception) {
  runtime machine(simulated{.devices = 1, .memory = 16_MiB, .schedule = simulated::scheduling::seeded, .seed = 1});
  simulation::of(machine).spawn("a", [] { throw std::out_of_range("told"); });
  EXPECT_THROW(simulation::of(machine).join(), std::out_of_range);
}

TEST(simulation, a_refused_call_is_an_error_once) {
  runtime machine(simulated{.devices = 1, .memory = 64_MiB});
  runtime_guard const in(machine);
  buffer const a(64), b(64);
  simulation::of(machine).fail_call("copy", 1);
  EXPECT_NE(refusal<driver_error>([&] { copy(a.data(), b.data(), 64); }), "");
  copy(a.data(), b.data(), 64);
}

TEST(simulation, pending_refusals_can_be_cancelled) {
  runtime machine(simulated{.devices = 1, .memory = 64_MiB});
  runtime_guard const in(machine);
  auto sim = simulation::of(machine);
  buffer const a(64), b(64);
  auto const first = sim.fail_call("copy", 1);
  auto const second = sim.fail_call("copy", 2);
  EXPECT_TRUE(sim.cancel_failure(first));
  EXPECT_FALSE(sim.cancel_failure(first)) << "it is gone";
  copy(a.data(), b.data(), 64);
  EXPECT_NE(refusal<driver_error>([&] { copy(a.data(), b.data(), 64); }), "");
  EXPECT_FALSE(sim.cancel_failure(second)) << "it has been refused";
  for (std::uint64_t k = 1; k < 5; ++k)
    sim.fail_call("any", k);
  sim.clear_failures();
  copy(a.data(), b.data(), 64);
  synchronize();
}

// As a program's own driver calls are.
TEST(simulation, a_capture_out_of_turn_is_refused) {
  runtime machine(simulated{.devices = 1, .memory = 64_MiB});
  runtime_guard const in(machine);
  simulated_stream theirs(0);
  EXPECT_NE(refusal<error>([&] { theirs.end_capture(); }).find("simulated_stream::end_capture"), std::string::npos);
  theirs.begin_capture();
  EXPECT_NE(refusal<error>([&] { theirs.begin_capture(); }).find("simulated_stream::begin_capture"), std::string::npos);
  theirs.end_capture();
}

TEST(simulation, only_a_machine_without_threads_is_stepped) {
  runtime machine(simulated{.devices = 1, .memory = 64_MiB});
  runtime_guard const in(machine);
  EXPECT_NE(refusal<invalid_use>([&] { simulation::of(machine).step(current_stream()); }).find("simulation::step"),
            std::string::npos);
}

TEST(simulation, memory_that_another_process_takes_is_not_there) {
  runtime machine(simulated{.devices = 2, .memory = 64_MiB});
  runtime_guard const in(machine);
  simulation::of(machine).consume_memory(device(1), 40_MiB);
  EXPECT_NO_THROW(buffer(30_MiB, {.on = device(0)}));
  EXPECT_THROW(buffer(30_MiB, {.on = device(1)}), out_of_memory);
  EXPECT_LE(mem_get_info(device(1)).free, 24_MiB);
}

TEST(simulation, a_cut_link_is_gone_in_its_direction) {
  runtime machine(simulated{.devices = 2, .memory = 64_MiB});
  runtime_guard const in(machine);
  simulation::of(machine).disconnect(device(0), device(1));
  EXPECT_FALSE(can_access_peer(device(0), device(1)));
  EXPECT_TRUE(can_access_peer(device(1), device(0)));
}

TEST(simulation, a_lost_device_says_so_and_the_other_goes_on) {
  runtime machine(simulated{.devices = 2, .memory = 64_MiB});
  runtime_guard const in(machine);
  buffer const a(64, {.on = device(0)}), b(64, {.on = device(1)});
  simulation::of(machine).lose_device(device(0));
  std::vector<std::byte> host(64);
  EXPECT_THROW(copy(a.data(), host.data(), 64), device_lost);
  EXPECT_NO_THROW(copy(b.data(), host.data(), 64));
}

TEST(simulation, a_device_that_does_not_exist_is_named) {
  runtime machine(simulated{.devices = 2, .memory = 64_MiB});
  runtime_guard const in(machine);
  std::string const text = refusal<invalid_use>([&] { simulation::of(machine).lose_device(device(2)); });
  EXPECT_NE(text.find("gpu:2"), std::string::npos) << text;
}

}  // namespace
