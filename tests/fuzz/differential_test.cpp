// The same random calls, legal and not, to two machines: the kinds of their answers, their logs and their bytes are the same.
// Seeds as tests/support/seeds.h says; WEIR_FUZZ_SECONDS=n stops after n seconds.
// Threads: one.
#include <gtest/gtest.h>

#include <chrono>

#include "runtime/driver/faulty.h"
#include "runtime/driver/sim/machine.h"
#include "tests/fuzz/player.h"
#include "tests/support/seeds.h"

namespace weir::fuzz {
namespace {

using running = simulated::running;

outcome on_simulated(program const& p, running how, std::uint64_t seed, simulated::freedoms takes, limits may) {
  auto made = driver::sim::make({.devices = may.devices, .memory = 256_MiB, .how = how, .seed = seed + 1, .takes = takes});
  outcome out;
  {
    player one(*made.machine, may);
    out = one.play(p);
  }
  for (auto const& f : made.control->findings()) out.ends.push_back("found: " + f);
  for (auto const& left : made.control->census()) out.ends.push_back("left: " + left);
  return out;
}

using play = std::function<outcome(program const&, std::uint64_t seed)>;

void compare(std::string const& name, std::uint64_t seeds, play const& one, play const& other) {
  auto const end = std::chrono::steady_clock::now() + std::chrono::seconds(tests::number_from_environment("WEIR_FUZZ_SECONDS", 1 << 20));
  for (auto const seed : tests::seeds("fuzz_" + name, seeds)) {
    if (std::chrono::steady_clock::now() >= end) break;
    auto const differs = [&](program const& p) { return difference(p, one(p, seed), other(p, seed)); };
    program const p = make_program(seed);
    if (differs(p).empty()) continue;
    program const small = shrink(p, [&](program const& q) { return !differs(q).empty(); });
    FAIL() << "WEIR_TEST_SEED=" << seed << ", " << differs(small) << "\n" << text_of(small);
  }
}

TEST(differential, stepped_and_threads_answer_alike) {
  limits const may;
  compare("threads", 100, [&](program const& p, std::uint64_t) { return on_simulated(p, running::stepped, 0, simulated::freedoms::usual, may); },
          [&](program const& p, std::uint64_t) { return on_simulated(p, running::threads, 0, simulated::freedoms::usual, may); });
}

TEST(differential, stepped_and_seeded_answer_alike_whatever_the_seed) {
  limits const may;
  compare("seeded", 200, [&](program const& p, std::uint64_t) { return on_simulated(p, running::stepped, 0, simulated::freedoms::usual, may); },
          [&](program const& p, std::uint64_t seed) { return on_simulated(p, running::seeded, seed, simulated::freedoms::none, may); });
}

TEST(differential, stepped_and_seeded_with_freedoms_answer_alike_but_for_handles_that_came_back) {
  limits const may{.stale_streams = false};
  compare("seeded_freely", 200, [&](program const& p, std::uint64_t) { return on_simulated(p, running::stepped, 0, simulated::freedoms::usual, may); },
          [&](program const& p, std::uint64_t seed) { return on_simulated(p, running::seeded, seed, simulated::freedoms::usual, may); });
}

struct no_waits final : weir::driver::faulty {  // a machine with a defect: streams wait for nothing
  using faulty::faulty;
  weir::driver::status wait(int, weir::driver::stream_handle, weir::driver::event_handle) override { return {}; }
};

TEST(differential, a_machine_whose_waits_do_nothing_is_found_out_by_a_short_program) {
  limits const may{.stale_streams = false, .others_streams = false};
  auto const play = [&](program const& p, std::uint64_t seed, bool defect) {
    auto made = driver::sim::make({.devices = may.devices, .memory = 256_MiB, .how = running::seeded, .seed = seed});
    if (defect) made.machine = std::make_unique<no_waits>(std::move(made.machine));
    return player(*made.machine, may).play(p);
  };
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    auto const differs = [&](program const& p) { return !difference(p, play(p, seed, false), play(p, seed, true)).empty(); };
    program const p = make_program(seed);
    if (!differs(p)) continue;
    program const small = shrink(p, differs);
    EXPECT_LE(small.size(), 12u) << text_of(small);
    return;
  }
  FAIL() << "never found";
}

TEST(differential, simulated_and_cuda_answer_alike) {
  static auto* const found = new driver::opened(driver::open_cuda());
  if (!found->machine) GTEST_SKIP() << found->why;
  limits const may{.devices = std::min(2, found->machine->device_count()), .stale_streams = false, .others_streams = false, .others_segments = false};
  compare("cuda", 300, [&](program const& p, std::uint64_t) { return on_simulated(p, running::threads, 0, simulated::freedoms::usual, may); },
          [&](program const& p, std::uint64_t) { return player(*found->machine, may).play(p); });
}

}  // namespace
}  // namespace weir::fuzz
