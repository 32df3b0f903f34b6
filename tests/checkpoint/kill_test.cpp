// A writer is killed at random moments: what stays is one of the whole checkpoints, the one before or the one
// after.
// WEIR_TEST_SEEDS=n kills n writers (150 by default; fewer if that takes longer than a second).
// Threads: one; each writer is a process.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <random>

#include "tests/checkpoint/files.h"
#include "tests/ranks/rank_processes.h"
#include "tests/support/seeds.h"

namespace weir {
namespace {

using namespace weir::test;

constexpr std::size_t floats = 30'000;

// Saves values that are equal to the step, on and on. It tells when its first file is there, as the second
// save waits for the first.
[[noreturn]] void save_for_ever(std::filesystem::path const& file, float first, int told) {
  runtime machine(simulated{.devices = 1, .memory = 64_MiB});
  runtime_guard const in(machine);
  checkpoint_writer w(file);
  tensor x = empty({floats});
  for (float step = first;; ++step) {
    x.fill_(step);
    w.save({{"x", x}}, {{"step", std::to_string(static_cast<int>(step))}});
    if (step == first + 1)
      (void)!::write(told, "x", 1);
  }
}

// Returns: the step of the file, 0 without a file. All values are its own.
int step_of(std::filesystem::path const& file) {
  if (!std::filesystem::exists(file))
    return 0;
  checkpoint_reader const r(file);
  EXPECT_TRUE(r.has_checksums());
  r.check();
  int const step = std::stoi(r.metadata().at("step"));
  std::string const bytes = bytes_of_file(file);
  std::vector<float> values(floats);
  std::memcpy(values.data(), bytes.data() + bytes.size() - floats * sizeof(float), floats * sizeof(float));
  for (float const v : values)
    EXPECT_EQ(v, static_cast<float>(step));
  return step;
}

WEIR_PLAYS_RANK_ROLES()

// A process that has used no device yet: its children may.
WEIR_RANK_ROLE(kills_writers) {
  std::filesystem::path const file = std::getenv("WEIR_TEST_FOLDER");
  auto const begin = std::chrono::steady_clock::now();
  int reached = 0, left_behind = 0, killed = 0;
  for (auto const seed : tests::seeds("killed_writers", 150)) {
    std::mt19937_64 random(seed);
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    pid_t const writer = ::fork();
    if (writer == 0)
      save_for_ever(file, static_cast<float>(reached + 1), ends[1]);
    char began = 0;
    EXPECT_EQ(::read(ends[0], &began, 1), 1);
    ::usleep(static_cast<useconds_t>(random() % 4000));
    ::kill(writer, SIGKILL);
    ::waitpid(writer, nullptr, 0);
    ::close(ends[0]), ::close(ends[1]);
    left_behind += std::filesystem::exists(file.string() + ".part");
    int const step = step_of(file);
    EXPECT_GT(step, reached) << "an old checkpoint came back; WEIR_TEST_SEED=" << seed;
    reached = step;
    bool const is_slow = ++killed >= 20 && std::chrono::steady_clock::now() - begin > std::chrono::seconds(1);
    if (is_slow || ::testing::Test::HasFailure())
      break;
  }
  std::printf("%d writers killed, %d steps, %d parts left behind\n", killed, reached, left_behind);
  return killed < 100 || left_behind > 0 ? 0 : 3;
}

// exit() runs while the first save is written: the destructor of a static writer ends it. Another writer is
// left behind.
WEIR_RANK_ROLE(exits_while_it_saves) {
  std::filesystem::path const file = std::getenv("WEIR_TEST_FOLDER");
  tensor const x = full({floats}, 1);
  auto* const left = new checkpoint_writer(file.string() + ".left");
  static checkpoint_writer w(file);
  left->save({{"x", x}}, {{"step", "1"}});
  w.save({{"x", x}}, {{"step", "1"}});
  std::exit(0);
}

struct a_killed_checkpoint_writer : in_a_folder {};
struct an_exiting_checkpoint_writer : in_a_folder {};

TEST_F(an_exiting_checkpoint_writer, leaves_a_whole_file) {
  rank_processes one("exits_while_it_saves", 1, {"WEIR_TEST_FOLDER=" + file().string()});
  auto const end = one.end_of(0);
  EXPECT_EQ(end.status, 0) << end.said;
  EXPECT_EQ(step_of(file()), 1);
  EXPECT_LE(step_of(file().string() + ".left"), 1);
}

TEST_F(a_killed_checkpoint_writer, leaves_a_whole_file) {
  rank_processes one("kills_writers", 1, {"WEIR_TEST_FOLDER=" + file().string()});
  auto const end = one.end_of(0);
  EXPECT_EQ(end.status, 0) << end.said << "status 3: no writer was killed while it wrote";
  std::cout << end.said;
}

}  // namespace
}  // namespace weir
