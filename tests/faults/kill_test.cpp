// Kills a process (SIGKILL) at its k-th driver call of each scenario. It ends at once and leaves no file,
// named memory or process. For sharing processes see tests/peer/share_kill_test.cpp.
// Threads: one; the process that is killed has its own.
// WEIR_TEST_SEEDS=n kills n/48 of each scenario; WEIR_TEST_SEED=s repeats one.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "runtime/core/parts.h"
#include "tests/faults/trial.h"
#include "tests/support/child.h"
#include "tests/support/seeds.h"

namespace weir::faults {
namespace {

class killer final : public driver::fault_injector::watcher {
 public:
  explicit killer(std::uint64_t k) : left_(k) {}
  void enters(call) noexcept override {  // inside the driver: work that the call began stays as it is
    if (--left_ == 0)
      ::kill(::getpid(), SIGKILL);
  }

 private:
  std::uint64_t left_;
};

// Runs this case alone in its own process; the environment names the scenario.
TEST(killed, in_a_process_of_its_own) {
  char const* const what = std::getenv("WEIR_KILL_SCENARIO");
  if (!what)
    GTEST_SKIP() << "the other cases start it";
  killer at_k(tests::number_from_environment("WEIR_KILL_CALL", 1));
  for (scenario const& s : scenarios()) {
    if (std::string_view(s.name) != what)
      continue;
    simulated like = s.machine;
    like.seed = tests::number_from_environment("WEIR_KILL_MACHINE", 1);
    runtime own(like, s.with);
    runtime_guard const in(own);
    driver::fault_injector_of(own.get().machine())->watch(&at_k);
    (void)s.run();
  }
}

// Working and temporary folder of one process.
class own_folder {
 public:
  own_folder() {
    char name[] = "/tmp/weir-killed-XXXXXX";
    path_ = ::mkdtemp(name);
  }
  ~own_folder() { std::filesystem::remove_all(path_); }
  std::string const& path() const { return path_; }
  bool empty() const { return std::filesystem::is_empty(path_); }

 private:
  std::string path_;
};

std::string named_memory_of(pid_t process) {
  std::error_code none;
  for (auto const& one : std::filesystem::directory_iterator("/dev/shm", none)) {
    std::string const name = one.path().filename().string();
    if (name.find("weir") != std::string::npos || name.find(std::to_string(process)) != std::string::npos)
      return name;
  }
  return {};
}

// Returns: how the process ended, in words.
std::string ended(scenario const& s, std::uint64_t k, std::uint64_t machine) {
  std::vector<std::string> words = tests::environment_of_a_child();
  own_folder const in;
  words.push_back("TMPDIR=" + in.path());
  words.push_back("WEIR_KILL_SCENARIO=" + std::string(s.name));
  words.push_back("WEIR_KILL_CALL=" + std::to_string(k));
  words.push_back("WEIR_KILL_MACHINE=" + std::to_string(machine));
  std::vector<char*> environment;
  for (auto& w : words)
    environment.push_back(w.data());
  environment.push_back(nullptr);
  char self[] = "/proc/self/exe", filter[] = "--gtest_filter=killed.in_a_process_of_its_own",
       brief[] = "--gtest_brief=1";
  char* const arguments[] = {self, filter, brief, nullptr};
  posix_spawnattr_t group;
  ::posix_spawnattr_init(&group);
  ::posix_spawnattr_setflags(&group, POSIX_SPAWN_SETPGROUP);  // its own group, to find processes that it leaves behind
  posix_spawn_file_actions_t silent;
  ::posix_spawn_file_actions_init(&silent);
  ::posix_spawn_file_actions_addopen(&silent, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  ::posix_spawn_file_actions_addchdir_np(&silent, in.path().c_str());
  pid_t child = 0;
  int const error = ::posix_spawn(&child, self, &silent, &group, arguments, environment.data());
  ::posix_spawn_file_actions_destroy(&silent);
  ::posix_spawnattr_destroy(&group);
  if (error)
    return "it was not started: " + std::to_string(error);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (::kill(-child, 0) == 0)
    return "a process of its group goes on";
  if (!in.empty())
    return "it left a file";
  if (auto const left = named_memory_of(child); !left.empty())
    return "it left /dev/shm/" + left;
  if (WIFSIGNALED(status))
    return WTERMSIG(status) == SIGKILL ? "killed" : "signal " + std::to_string(WTERMSIG(status));
  return "exit " + std::to_string(WEXITSTATUS(status));
}

struct killed_at : ::testing::TestWithParam<scenario> {};

TEST_P(killed_at, any_call_a_process_leaves_nothing_behind) {
  scenario const& s = GetParam();
  std::size_t const calls = undisturbed_once_warm(s, 1).calls.size();
  drawn_failures chosen(calls, 36, 6);  // mostly the start of a process
  while (chosen.next()) {
    std::uint64_t const k = 1 + chosen.index();
    ASSERT_EQ(ended(s, k, 1), "killed") << "call " << k << " of " << calls << "; WEIR_TEST_SEED=" << chosen.seed();
  }
}

INSTANTIATE_TEST_SUITE_P(of, killed_at, ::testing::ValuesIn(scenarios().begin(), scenarios().end()),
                         [](auto const& info) { return info.param.name; });

}  // namespace
}  // namespace weir::faults
