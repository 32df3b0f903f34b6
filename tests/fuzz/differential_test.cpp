// Plays the same random calls, legal and illegal, on two machines. Answers by kind, logs and bytes must
// agree. Seeds: see tests/support/seeds.h; WEIR_FUZZ_SECONDS=n stops after n seconds.
// Threads: one.
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "simulator/faults/fault_injector.h"
#include "simulator/machine/machine.h"
#include "tests/fuzz/player.h"
#include "tests/support/seeds.h"

namespace weir::fuzz {
namespace {

using scheduling = simulated::scheduling;

outcome on_simulated(program const& p, scheduling how, std::uint64_t seed, simulated::allowed takes, limits may) {
  auto made = driver::sim::make(
      {.devices = may.devices, .memory = 256_MiB, .schedule = how, .seed = seed + 1, .nondeterminism = takes});
  outcome out;
  {
    player one(*made.machine, may);
    out = one.play(p);
  }
  for (auto const& f : made.control->findings())
    out.ends.push_back("found: " + f);
  for (auto const& left : made.control->census())
    out.ends.push_back("left: " + left);
  return out;
}

using play = std::function<outcome(program const&, std::uint64_t seed)>;

void compare(std::string const& name, std::uint64_t seeds, play const& one, play const& other) {
  auto const end = std::chrono::steady_clock::now() +
                   std::chrono::seconds(tests::number_from_environment("WEIR_FUZZ_SECONDS", 1 << 20));
  for (auto const seed : tests::seeds("fuzz_" + name, seeds)) {
    if (std::chrono::steady_clock::now() >= end)
      break;
    auto const differs = [&](program const& p) { return difference(p, one(p, seed), other(p, seed)); };
    program const p = make_program(seed);
    if (differs(p).empty())
      continue;
    program const small = shrink(p, [&](program const& q) { return !differs(q).empty(); });
    FAIL() << "WEIR_TEST_SEED=" << seed << ", " << differs(small) << "\n" << text_of(small);
  }
}

TEST(differential, stepped_and_threads_answer_alike) {
  limits const may;
  compare(
      "threads", 100,
      [&](program const& p, std::uint64_t) {
        return on_simulated(p, scheduling::stepped, 0, simulated::allowed::usual, may);
      },
      [&](program const& p, std::uint64_t) {
        return on_simulated(p, scheduling::threads, 0, simulated::allowed::usual, may);
      });
}

TEST(differential, stepped_and_seeded_answer_alike_for_every_seed) {
  limits const may;
  compare(
      "seeded", 200,
      [&](program const& p, std::uint64_t) {
        return on_simulated(p, scheduling::stepped, 0, simulated::allowed::usual, may);
      },
      [&](program const& p, std::uint64_t seed) {
        return on_simulated(p, scheduling::seeded, seed, simulated::allowed::none, may);
      });
}

// Except calls with stale stream handles.
TEST(differential, stepped_and_seeded_with_freedoms_answer_alike) {
  limits const may{.stale_streams = false};
  compare(
      "seeded_freely", 200,
      [&](program const& p, std::uint64_t) {
        return on_simulated(p, scheduling::stepped, 0, simulated::allowed::usual, may);
      },
      [&](program const& p, std::uint64_t seed) {
        return on_simulated(p, scheduling::seeded, seed, simulated::allowed::usual, may);
      });
}

// Machines with a defect: a short program must find each of them.
namespace drv = weir::driver;
struct no_waits final : drv::fault_injector {  // streams never wait
  using fault_injector::fault_injector;
  drv::status wait(int, drv::stream_handle, drv::event_handle) override { return {}; }
};
struct nothing_joins_legacy final : drv::fault_injector {
  using fault_injector::fault_injector;
  drv::result<drv::stream_handle> create_stream(int device, drv::stream_kind, int priority) override {
    return fault_injector::create_stream(device, drv::stream_kind::independent, priority);
  }
};
struct launches_nothing final : drv::fault_injector {
  using fault_injector::fault_injector;
  drv::status launch_graph(int, drv::stream_handle, drv::executable_handle) override { return {}; }
};
struct keeps_spoiled final : drv::fault_injector {  // a query of a captured stream spoils nothing
  using fault_injector::fault_injector;
  drv::status query_stream(int device, drv::stream_handle s) override {
    auto const captured = fault_injector::capturing(device, s);
    return captured.ok() && captured.value ? drv::status{drv::code::not_permitted, 0}
                                           : fault_injector::query_stream(device, s);
  }
};

template <class Defect>
void expect_found_out() {
  limits const may{.stale_streams = false, .others_streams = false};
  auto const play = [&](program const& p, std::uint64_t seed, bool defect) {
    auto made =
        driver::sim::make({.devices = may.devices, .memory = 256_MiB, .schedule = scheduling::seeded, .seed = seed});
    if (defect)
      made.machine = std::make_unique<Defect>(std::move(made.machine));
    return player(*made.machine, may).play(p);
  };
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    auto const differs = [&](program const& p) {
      return !difference(p, play(p, seed, false), play(p, seed, true)).empty();
    };
    program const p = make_program(seed);
    if (!differs(p))
      continue;
    program const small = shrink(p, differs);
    EXPECT_LE(small.size(), 15u) << text_of(small);
    return;
  }
  FAIL() << "never found";
}

TEST(differential, a_machine_without_waits_is_found) {
  expect_found_out<no_waits>();
}
TEST(differential, a_legacy_stream_that_joins_none_is_found) {
  expect_found_out<nothing_joins_legacy>();
}
TEST(differential, a_machine_that_launches_nothing_is_found) {
  expect_found_out<launches_nothing>();
}
TEST(differential, a_machine_that_spoils_no_capture_is_found) {
  expect_found_out<keeps_spoiled>();
}

// Agreement proves nothing for calls that were never made.
TEST(differential, programs_meet_their_purpose) {
  struct wanted {
    verb what;
    char const* answer;
    int least, seen = 0;
  };
  wanted all[] = {{verb::kernel, "ok", 50},
                  {verb::graph, "end ok", 50},
                  {verb::graph, "end not permitted", 10},
                  {verb::graph, "launch ok", 30},
                  {verb::graph, "launch ok, launch ok", 5},
                  {verb::graph, "join ok", 15},
                  {verb::graph, "kernel ok", 10},
                  {verb::graph, "copy ok", 10},
                  {verb::elapsed, "ok or not ready", 3}};
  limits const may;
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    program const p = make_program(seed);
    outcome const out = on_simulated(p, scheduling::stepped, 0, simulated::allowed::usual, may);
    for (std::size_t i = 0; i < p.size(); ++i) {
      for (wanted& w : all)
        w.seen += p[i].what == w.what && out.answers[i].find(w.answer) != std::string::npos;
    }
  }
  for (wanted const& w : all)
    EXPECT_GE(w.seen, w.least) << name_of(w.what) << ": " << w.answer;
}

TEST(differential, simulated_and_cuda_answer_alike) {
  static auto* const found = new driver::opened(driver::open_cuda());
  if (!found->machine)
    GTEST_SKIP() << found->why;
  limits const may{.devices = std::min(2, found->machine->device_count()),
                   .stale_streams = false,
                   .others_streams = false,
                   .others_segments = false};
  compare(
      "cuda", 300,
      [&](program const& p, std::uint64_t) {
        return on_simulated(p, scheduling::threads, 0, simulated::allowed::usual, may);
      },
      [&](program const& p, std::uint64_t) { return player(*found->machine, may).play(p); });
}

}  // namespace
}  // namespace weir::fuzz
