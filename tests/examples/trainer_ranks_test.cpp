// Training in several processes: the bits of threads in one, and what remains after a rank is killed or stopped.
// WEIR_TEST_SEEDS=n tries n/10 calls of each kind (4 by default); WEIR_TEST_SEED=k that one call.
// Threads: one; each rank is a process.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <thread>

#include "examples/trainer/trainer.h"
#include "runtime/core/parts.h"
#include "simulator/faults/fault_injector.h"
#include "tests/examples/some_text.h"
#include "tests/ranks/rank_processes.h"
#include "tests/support/seeds.h"

namespace trainer {
namespace {

using namespace weir::test;
using weir::tests::number_from_environment;

constexpr int gives_up = 3;  // an exit status
constexpr std::int64_t saves_every = 3;

settings small(std::filesystem::path const& folder) {
  settings s;
  s.shape = {.context = 8, .width = 16, .layers = 2, .heads = 2};
  s.batch = 48, s.steps = 12, s.sample = 0, s.how.rate = 0.01;
  s.text_file = folder / "text", s.save_file = folder / "model";
  s.save_every = saves_every;
  return s;
}

std::atomic<std::uint64_t> calls{0};
std::uint64_t fatal_call = 0;
int fatal_signal = 0;
class counter final : public weir::driver::fault_injector::watcher {
 public:
  void comes(weir::driver::call) noexcept override {
    if (++calls == fatal_call)
      ::kill(::getpid(), fatal_signal);
  }
};

WEIR_PLAYS_RANK_ROLES()

std::int64_t step_of(std::filesystem::path const& checkpoint) {
  return std::filesystem::exists(checkpoint) ? std::stoll(weir::checkpoint_reader(checkpoint).metadata().at("step"))
                                             : 0;
}
void print_outcome(outcome const& out, std::vector<float> const& losses, std::uint64_t calls_until_last) {
  bool const agree = std::ranges::count(out.fingerprints, out.fingerprints[0]) == std::ssize(out.fingerprints);
  std::printf("print %lld\nagree %d\ncalls %llu\nvalidation %.9g\n", static_cast<long long>(out.fingerprints[0]), agree,
              static_cast<unsigned long long>(calls_until_last), out.validation_loss);
  for (float const loss : losses)
    std::printf("loss %.9g\n", static_cast<double>(loss));
}

// Trains from the checkpoint, if there is one, and prints its losses and a hash of the result.
WEIR_RANK_ROLE(trains) {
  settings s = small(std::getenv("WEIR_TEST_FOLDER"));
  text const t(s.text_file, s.shape);
  auto const silence = std::chrono::milliseconds(number_from_environment("WEIR_TEST_SILENCE_MS", 20'000));
  std::vector<weir::communicator> ranks;
  ranks.push_back(weir::communicator::from_environment({.silence = silence}));
  s.resume = true;
  counter watcher;
  if (ranks[0].rank() == static_cast<int>(number_from_environment("WEIR_TEST_VICTIM", 0))) {
    fatal_call = number_from_environment("WEIR_TEST_FATAL", 0);
    fatal_signal = static_cast<int>(number_from_environment("WEIR_TEST_SIGNAL", SIGKILL));
    weir::driver::fault_injector_of(weir::runtime::current().get().machine())->watch(&watcher);
  }
  try {
    std::vector<float> losses;
    std::uint64_t calls_until_last = 0;
    outcome const out = train(s, t, ranks, [&](std::int64_t, float loss) {
      losses.push_back(loss);
      calls_until_last = calls.load();
    });
    print_outcome(out, losses, calls_until_last);
    return 0;
  } catch (std::exception const& e) {
    std::printf("%s\n", e.what());
    return gives_up;
  }
}

struct told {
  long long print = 0;
  std::uint64_t calls = 0;
  int agree = 0;
  double validation = 0;
  std::vector<float> losses;
};
told read_told(std::string const& said) {
  told t;
  std::istringstream lines(said);
  for (std::string word; lines >> word;) {
    float loss = 0;
    if (word == "print")
      lines >> t.print;
    else if (word == "agree")
      lines >> t.agree;
    else if (word == "calls")
      lines >> t.calls;
    else if (word == "validation")
      lines >> t.validation;
    else if (word == "loss" && lines >> loss)
      t.losses.push_back(loss);
    lines.clear();
  }
  return t;
}

class trained_by_ranks : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(folder_);
    std::ofstream(folder_ / "text") << some_text(30'000);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::vector<std::string> with(std::vector<std::string> more = {}) const {
    more.push_back("WEIR_TEST_FOLDER=" + folder_.string());
    return more;
  }
  // All ranks end well and say the same. Returns: what rank 0 said
  told train_on(int ranks) {
    rank_processes all("trains", ranks, with());
    told of_0;
    for (int r = 0; r < ranks; ++r) {
      auto const e = all.end_of(r);
      EXPECT_EQ(e.status, 0) << e.said;
      told const t = read_told(e.said);
      if (r == 0)
        of_0 = t;
      EXPECT_EQ(t.print, of_0.print);
      EXPECT_EQ(t.losses, of_0.losses);
      EXPECT_EQ(t.agree, 1);
    }
    return of_0;
  }
  // The same by threads of this process.
  told train_threads(int ranks) {
    weir::runtime machine(weir::simulated{.devices = ranks, .memory = 1 << 30});
    weir::runtime_guard const in(machine);
    settings s = small(folder_);
    s.save_file.clear(), s.save_every = 0;
    text const t(s.text_file, s.shape);
    told is;
    auto all = weir::communicator::create_launched(ranks);
    outcome const out = train(s, t, all, [&](std::int64_t, float loss) { is.losses.push_back(loss); });
    is.print = out.fingerprints[0], is.validation = out.validation_loss;
    return is;
  }
  void forget() { std::filesystem::remove(folder_ / "model"); }

  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("weir_ranks_" + std::to_string(::getpid()) + "_" +
                                                testing::UnitTest::GetInstance()->current_test_info()->name());
};

void expect_near(std::vector<float> const& a, std::vector<float> const& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    EXPECT_NEAR(a[i], b[i], 1e-4 * b[i]) << "step " << i;
}

TEST_F(trained_by_ranks, losses_are_those_of_one_process) {
  told const one = train_on(1);
  ASSERT_EQ(one.losses.size(), 12u);
  EXPECT_LT(one.losses.back(), one.losses[0]);
  for (int const n : {2, 4}) {
    forget();
    told const several = train_on(n), threads = train_threads(n);
    expect_near(several.losses, one.losses);
    EXPECT_NEAR(several.validation, one.validation, 1e-4 * one.validation);
    EXPECT_EQ(several.print, threads.print) << "not the bits of " << n << " threads";
    EXPECT_EQ(several.losses, threads.losses);
  }
}

// A rank is killed or stopped at a call of its driver. The others end with a message that names it, and any
// number of ranks goes on from the last checkpoint, which is whole.
class a_rank_lost : public trained_by_ranks, public testing::WithParamInterface<int> {};

TEST_P(a_rank_lost, at_any_call_is_named_and_training_resumes) {
  told const whole = train_on(2);
  std::uint64_t const most = whole.calls * 3 / 4;  // of rank 0; others make fewer
  ASSERT_GT(most, 0u);
  std::uint64_t const only = number_from_environment("WEIR_TEST_SEED", 0),
                      count =
                          only ? 1 : std::max<std::uint64_t>(2, number_from_environment("WEIR_TEST_SEEDS", 40) / 10);
  bool const killed = GetParam() == SIGKILL;
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint64_t const k = only ? only : 1 + (2 * i + 1) * most / (2 * count);
    int const victim = static_cast<int>(i % 3), resumed_by[] = {1, 4, 2};
    SCOPED_TRACE("call " + std::to_string(k) + " of " + std::to_string(whole.calls) + " of rank " +
                 std::to_string(victim) + "; WEIR_TEST_SEED=" + std::to_string(k));
    forget();
    bool ended_first = false;
    {
      rank_processes all("trains", 3,
                         with({"WEIR_TEST_VICTIM=" + std::to_string(victim), "WEIR_TEST_FATAL=" + std::to_string(k),
                               "WEIR_TEST_SIGNAL=" + std::to_string(GetParam()), "WEIR_TEST_SILENCE_MS=1500"}));
      for (int r = 0; r < 3; ++r) {
        if (r == victim)
          continue;
        auto const e = all.end_of(r);
        ended_first = ended_first || e.status == 0;
        if (e.status == 0)
          continue;
        EXPECT_EQ(e.status, gives_up) << e.said;
        EXPECT_NE(e.said.find("rank " + std::to_string(victim) + (killed ? " has ended" : " has sent nothing for ")),
                  std::string::npos)
            << "rank " << r << ": " << e.said;
      }
      if (!killed)
        all.tell(victim, SIGCONT);
      auto const e = all.end_of(victim);
      if (killed)
        EXPECT_EQ(e.signal, ended_first ? e.signal : SIGKILL) << e.said;
      else
        EXPECT_NE(e.status, 0) << e.said;
    }
    EXPECT_FALSE(ended_first) << "no rank was lost before the end";
    std::int64_t const step = step_of(folder_ / "model");
    EXPECT_EQ(step % saves_every, 0);
    told const rest = train_on(resumed_by[i % 3]);
    expect_near(rest.losses, {whole.losses.begin() + step, whole.losses.end()});
    if (HasFailure())
      return;
  }
}

INSTANTIATE_TEST_SUITE_P(by, a_rank_lost, testing::Values(SIGKILL, SIGSTOP),
                         [](auto const& i) { return i.param == SIGKILL ? "sigkill" : "sigstop"; });

}  // namespace
}  // namespace trainer
