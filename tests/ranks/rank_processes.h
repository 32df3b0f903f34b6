// The ranks of one program as processes: this test's own program, started again with a launcher's variables.
// Threads: one.
//
// A test file defines what a rank does with WEIR_RANK_ROLE(name) { … } and starts it with rank_processes. One file
// of the program has WEIR_PLAYS_RANK_ROLES().
#pragma once
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/os_tcp.h"
#include "tests/support/child.h"
#include "weir/device.h"
#include "weir/runtime.h"

namespace weir::test {

using rank_role = int (*)();  // returns the exit status
inline std::map<std::string, rank_role>& rank_roles() {
  static std::map<std::string, rank_role> all;
  return all;
}
#define WEIR_RANK_ROLE(name)                                              \
  static int rank_role_##name();                                          \
  [[maybe_unused]] static bool const has_rank_role_##name =               \
      ::weir::test::rank_roles().emplace(#name, rank_role_##name).second; \
  static int rank_role_##name()

// On GPUs, as a program does that a launcher starts: a rank's streams and memory are of its own device.
inline void choose_own_device() {
  char const *const devices = std::getenv("WEIR_DEVICES"), *const local = std::getenv("LOCAL_RANK");
  if (devices && local && std::string_view(devices) == "cuda")
    set_device(std::atoi(local) % device_count());
}

// Plays the role that the environment of this process names.
inline void play_rank_role() {
  char const* const name = std::getenv("WEIR_TEST_RANK_ROLE");
  if (!name)
    GTEST_SKIP() << "the other cases start it";
  ASSERT_EQ(rank_roles().count(name), 1u) << name;
  int status = 1;
  try {
    choose_own_device();
    status = rank_roles()[name]();
  } catch (std::exception const& e) {
    std::fprintf(stderr, "%s\n", e.what());
  }
  std::fflush(nullptr);
  std::_Exit(::testing::Test::HasFailure() ? 9 : status);
}
#define WEIR_PLAYS_RANK_ROLES()     \
  TEST(as_a_rank, plays_its_role) { \
    ::weir::test::play_rank_role(); \
  }

inline std::uint16_t free_port() {
  return os::listen_tcp(0).port;
}

class rank_processes {
 public:
  // Where ranks run. On one GPU, NCCL takes each rank for a machine of its own and connects them by sockets.
  enum class machine : char { simulated, this_one };
  struct end {
    int status = -1, signal = 0;
    std::string said;  // stdout and stderr
  };

  // `more`: variables of all ranks, "NAME=value".
  rank_processes(char const* role, int size, std::vector<std::string> more = {}, machine on = machine::simulated) {
    bool const on_gpus = on == machine::this_one && !runtime::current().is_simulated();
    bool const on_one_gpu = on_gpus && device_count() == 1;
    if (on_gpus)
      more.push_back("WEIR_DEVICES=cuda");
    if (on_one_gpu)
      for (char const* const v : {"NCCL_NET=Socket", "NCCL_SOCKET_IFNAME=lo", "NCCL_P2P_DISABLE=1",
                                  "NCCL_SHM_DISABLE=1", "NCCL_NVLS_ENABLE=0", "NCCL_MNNVL_ENABLE=0"})
        more.push_back(v);
    std::string const port = std::to_string(free_port());
    for (int rank = 0; rank < size; ++rank) {
      std::vector<std::string> own(more);
      if (on_one_gpu)
        own.push_back("NCCL_HOSTID=machine" + std::to_string(rank));
      for (auto const& v :
           {"RANK=" + std::to_string(rank), "LOCAL_RANK=" + std::to_string(rank), "WORLD_SIZE=" + std::to_string(size),
            std::string("MASTER_ADDR=127.0.0.1"), "MASTER_PORT=" + port, "WEIR_TEST_RANK_ROLE=" + std::string(role),
            std::string("WEIR_DEVICES=sim:1:1")})
        own.push_back(v);
      start(own, on_gpus);
    }
  }
  ~rank_processes() {
    for (auto& p : all_) {
      if (p.id > 0)
        ::kill(p.id, SIGKILL), ::waitpid(p.id, nullptr, 0);
      ::close(p.out);
    }
  }
  rank_processes(rank_processes const&) = delete;
  rank_processes& operator=(rank_processes const&) = delete;

  void tell(int rank, int signal) const { EXPECT_EQ(::kill(at(rank).id, signal), 0); }
  void await_stop(int rank) const {  // Requires: it stops itself
    int status = 0;
    EXPECT_EQ(::waitpid(at(rank).id, &status, WUNTRACED), at(rank).id);
    EXPECT_TRUE(WIFSTOPPED(status)) << "rank " << rank << " did not stop";
  }
  // Waits for its end. A rank that has not ended after the limit is killed, and fails the test.
  end end_of(int rank, std::chrono::seconds limit = std::chrono::seconds(60)) {
    one& p = all_[static_cast<std::size_t>(rank)];
    end e;
    auto const until = std::chrono::steady_clock::now() + limit;
    while (true) {
      auto const left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
      pollfd one{p.out, POLLIN, 0};
      if (left.count() <= 0 || ::poll(&one, 1, static_cast<int>(left.count())) == 0) {
        ADD_FAILURE() << "rank " << rank << " did not end; it said " << e.said;
        ::kill(p.id, SIGKILL);
        break;
      }
      char part[4096];
      ssize_t const n = ::read(p.out, part, sizeof part);
      if (n <= 0)
        break;
      e.said.append(part, static_cast<std::size_t>(n));
    }
    int status = 0;
    EXPECT_EQ(::waitpid(p.id, &status, 0), p.id);
    p.id = 0;
    if (WIFSIGNALED(status))
      e.signal = WTERMSIG(status);
    else
      e.status = WEXITSTATUS(status);
    return e;
  }

 private:
  struct one {
    pid_t id = 0;
    int out = -1;
  };
  one const& at(int rank) const { return all_[static_cast<std::size_t>(rank)]; }

  void start(std::vector<std::string> words, bool on_gpus) {
    for (auto& v : tests::environment_of_a_child()) {
      // The GPUs that this process may see say nothing about the one simulated device of a rank.
      bool const hides_devices = !on_gpus && v.starts_with("CUDA_VISIBLE_DEVICES=");
      if (!v.starts_with("WEIR_DEVICES=") && !hides_devices)
        words.push_back(std::move(v));
    }
    std::vector<char*> environment;
    for (auto& w : words)
      environment.push_back(w.data());
    environment.push_back(nullptr);
    char self[] = "/proc/self/exe", filter[] = "--gtest_filter=as_a_rank.*", brief[] = "--gtest_brief=1";
    char* const arguments[] = {self, filter, brief, nullptr};
    int both[2];
    EXPECT_EQ(::pipe2(both, O_CLOEXEC), 0);
    posix_spawn_file_actions_t files;
    ::posix_spawn_file_actions_init(&files);
    ::posix_spawn_file_actions_adddup2(&files, both[1], 1);
    ::posix_spawn_file_actions_adddup2(&files, both[1], 2);
    one p;
    EXPECT_EQ(::posix_spawn(&p.id, self, &files, nullptr, arguments, environment.data()), 0);
    ::posix_spawn_file_actions_destroy(&files);
    ::close(both[1]);
    p.out = both[0];
    all_.push_back(p);
  }

  std::vector<one> all_;
};

}  // namespace weir::test
