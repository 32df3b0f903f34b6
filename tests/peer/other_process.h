// Another process of this test at the other end of a channel: the same program, started again, which plays
// one role and ends.
// Threads: one.
//
// A test file that includes this defines its roles with WEIR_ROLE(name) { … line … } and starts them with
// other_process("name").
#pragma once
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "tests/support/child.h"
#include "tests/support/seeds.h"
#include "weir/share.h"

namespace weir::test {

inline constexpr int its_socket = 77;
inline constexpr int its_ring_socket = 78;  // with_ring: an end for a ring

using role = void (*)(share_channel&);
inline std::map<std::string, role>& roles() {
  static std::map<std::string, role> all;
  return all;
}
inline bool add_role(char const* name, role r) {
  EXPECT_TRUE(roles().emplace(name, r).second) << name << " is the role of two files";
  return true;
}
#define WEIR_ROLE(name)                                                                            \
  static void role_##name([[maybe_unused]] ::weir::share_channel& line);                           \
  [[maybe_unused]] static bool const has_role_##name = ::weir::test::add_role(#name, role_##name); \
  static void role_##name([[maybe_unused]] ::weir::share_channel& line)

// Calls play(k) for some k of 1 to `all`, evenly apart, until one fails: six, or WEIR_TEST_SEEDS / 25, at least two.
// WEIR_TEST_SEED=k: for that one alone.
template <class Play>
void at_some_calls(std::uint64_t all, Play const& play) {
  using tests::number_from_environment;
  std::uint64_t const only = number_from_environment("WEIR_TEST_SEED", 0),
                      base = number_from_environment("WEIR_TEST_BASE_SEED", 0),
                      wanted = std::max<std::uint64_t>(2, number_from_environment("WEIR_TEST_SEEDS", 150) / 25);
  std::uint64_t const count = only ? 1 : std::min(all, wanted);
  for (std::uint64_t i = 0; i < count && !::testing::Test::HasFailure(); ++i) {
    std::uint64_t const k = only ? only : 1 + (base + i * all / count) % all;
    SCOPED_TRACE("call " + std::to_string(k) + " of " + std::to_string(all) + "; WEIR_TEST_SEED=" + std::to_string(k));
    play(k);
  }
}

class other_process {
 public:
  explicit other_process(char const* role, std::vector<std::string> const& more = {},
                         std::chrono::milliseconds timeout = std::chrono::seconds(20), bool with_ring = false) {
    int both[2], for_ring[2] = {-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, both), 0);
    EXPECT_TRUE(!with_ring || ::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, for_ring) == 0);
    std::vector<std::string> words(more);
    for (auto& w : tests::environment_of_a_child())
      words.push_back(std::move(w));
    words.push_back("WEIR_TEST_ROLE=" + std::string(role));
    std::vector<char*> environment;
    for (auto& w : words)
      environment.push_back(w.data());
    environment.push_back(nullptr);
    char self[] = "/proc/self/exe", filter[] = "--gtest_filter=in_another_process.*", brief[] = "--gtest_brief=1";
    char* const arguments[] = {self, filter, brief, nullptr};
    posix_spawn_file_actions_t files;
    ::posix_spawn_file_actions_init(&files);
    ::posix_spawn_file_actions_adddup2(&files, both[1], its_socket);
    if (with_ring)
      ::posix_spawn_file_actions_adddup2(&files, for_ring[1], its_ring_socket);
    EXPECT_EQ(::posix_spawn(&id_, self, &files, nullptr, arguments, environment.data()), 0);
    ::posix_spawn_file_actions_destroy(&files);
    ::close(both[1]);
    if (with_ring)
      ::close(for_ring[1]);
    ring_ = for_ring[0];
    line_ = std::make_unique<share_channel>(both[0], timeout);
  }
  ~other_process() {
    if (!over_)
      kill();
  }
  other_process(other_process const&) = delete;
  other_process& operator=(other_process const&) = delete;

  share_channel& line() { return *line_; }
  int ring() const { return ring_; }  // this process's end; the caller closes it
  void tell(int signal) const { EXPECT_EQ(::kill(id_, signal), 0); }
  void await_stop() const {  // Requires: it stops itself
    int status = 0;
    EXPECT_EQ(::waitpid(id_, &status, WUNTRACED), id_);
    EXPECT_TRUE(WIFSTOPPED(status));
  }
  std::string end() {  // waits for its end; how it ended, in words
    int status = 0;
    EXPECT_EQ(::waitpid(id_, &status, 0), id_);
    over_ = true;
    if (WIFSIGNALED(status))
      return "signal " + std::to_string(WTERMSIG(status));
    return "exit " + std::to_string(WEXITSTATUS(status));
  }
  void kill() {
    tell(SIGKILL);
    EXPECT_EQ(end(), "signal 9");
  }

 private:
  pid_t id_ = 0;
  int ring_ = -1;
  bool over_ = false;
  std::unique_ptr<share_channel> line_;
};

}  // namespace weir::test
