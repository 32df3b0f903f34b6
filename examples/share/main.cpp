// Two processes, on two GPUs if available, share a ring of buffers in the first one's memory, and check it.
//   share [--bytes N] [--buffers N] [--rounds N] [--timeout MS] [--kill writer|reader | --stop writer|reader]
// --kill and --stop kill or suspend one process after half of the rounds. The other process must detect that
// within the timeout.
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include "examples/options.h"
#include "examples/share/ends.h"
#include "weir/device.h"
#include "weir/runtime.h"
#include "weir/share.h"

namespace {

constexpr int line_of_child = 50;
using mishap = share::settings::mishap;

// Runs one process. Returns: exit status 0, 3 if the other process is gone, or 4 after a timeout.
int play(std::string const& role, share::settings const& s) try {
  bool const writes = role == "writer";
  auto const [sum, seconds] = writes ? share::write(line_of_child, s) : share::read(line_of_child, s);
  double const gb = static_cast<double>(s.bytes) * static_cast<double>(s.rounds) * 1e-9;
  std::printf("%s: process %d on gpu:%d of %s: %.2f GB in %.2f s, %.1f GB/s; checksum %016llx%s\n", role.c_str(),
              static_cast<int>(::getpid()), writes || weir::device_count() < 2 ? 0 : 1,
              weir::runtime::current().description().c_str(), gb, seconds, gb / seconds,
              static_cast<unsigned long long>(sum.sum), writes ? "" : ", as the writer's: every byte is right");
  return 0;
} catch (weir::peer_disconnected const& e) {
  std::printf("%s: %s\n", role.c_str(), e.what());
  return 3;
} catch (weir::timed_out const& e) {
  std::printf("%s: %s\n", role.c_str(), e.what());
  return 4;
}

pid_t start(std::vector<std::string> words, int socket) {
  std::vector<char*> arguments;
  for (auto& w : words)
    arguments.push_back(w.data());
  arguments.push_back(nullptr);
  pid_t const child = ::fork();
  if (child < 0)
    throw std::runtime_error("no process can be started");
  if (child > 0)
    return child;
  ::dup2(socket, line_of_child);
  ::execv("/proc/self/exe", arguments.data());
  ::_exit(127);
}

std::string ending(int status) {
  if (WIFSIGNALED(status))
    return "signal " + std::to_string(WTERMSIG(status));
  return "exit " + std::to_string(WEXITSTATUS(status));
}

// Starts both processes and waits for both. Kills a suspended one after the other has ended.
int run(std::vector<std::string> const& options, std::string const& victim, mishap meets) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    throw std::runtime_error("no socket can be made");
  pid_t processes[2];
  char const* const roles[2] = {"writer", "reader"};
  for (int i = 0; i < 2; ++i) {
    std::vector<std::string> words{"share", "--as", roles[i]};
    words.insert(words.end(), options.begin(), options.end());
    processes[i] = start(words, ends[i]);
  }
  for (int end : ends)
    ::close(end);
  int status[2];
  int const bad = victim == roles[0] ? 0 : 1;
  for (int i : {1 - bad, bad}) {
    if (i == bad && meets == mishap::stopped)
      ::kill(processes[i], SIGKILL);
    ::waitpid(processes[i], &status[i], 0);
  }
  if (meets == mishap::none)
    return WIFEXITED(status[0]) && WIFEXITED(status[1]) ? WEXITSTATUS(status[0]) | WEXITSTATUS(status[1]) : 1;
  int const wanted = meets == mishap::killed ? 3 : 4;
  bool const noticed = WIFEXITED(status[1 - bad]) && WEXITSTATUS(status[1 - bad]) == wanted && WIFSIGNALED(status[bad]);
  std::printf("the %s was %s half way; the %s %s (%s)\n", roles[bad], meets == mishap::killed ? "killed" : "stopped",
              roles[1 - bad], noticed ? "noticed, and ended" : "DID NOT NOTICE", ending(status[1 - bad]).c_str());
  return noticed ? 0 : 1;
}

int command(int argc, char** argv) {
  share::settings s;
  std::string role, killed, stopped;
  int timeout_ms = static_cast<int>(s.timeout.count());
  std::vector<std::pair<std::string, std::string>> const roles{{"writer", "writer"}, {"reader", "reader"}};
  examples::options all("share", "", "Two processes share a ring of buffers in device memory. Every word is checked.");
  all.number("--bytes", s.bytes, "of a buffer", 8);
  all.number("--buffers", s.buffers, "of the ring", 1);
  all.number("--rounds", s.rounds, "buffers sent in all", 1);
  all.number("--timeout", timeout_ms, "ms that one process may say nothing before the other gives up", 1);
  all.choice("--kill", killed, roles, "this one is killed half way, and the other must notice");
  all.choice("--stop", stopped, roles, "this one is stopped half way, likewise");
  all.choice("--as", role, roles, "be this one, at socket 50: for the two processes");
  if (!all.understood(
          argc, argv,
          "examples:\n"
          "  ./run share\n"
          "  ./run share --kill reader\n"
          "\n"
          "exit status: 0 ok, 1 wrong bytes or an error, 2 usage, 3 the other process is gone, 4 it said nothing\n"))
    return 0;
  s.bytes = s.bytes / 8 * 8;
  s.timeout = std::chrono::milliseconds(timeout_ms);
  std::string const victim = killed.empty() ? stopped : killed;
  mishap const meets = !killed.empty() ? mishap::killed : !stopped.empty() ? mishap::stopped : mishap::none;
  if (role.empty())
    return run({argv + 1, argv + argc}, victim, meets);
  if (victim == role)
    s.meets = meets;
  return play(role, s);
}

}  // namespace

int main(int argc, char** argv) {
  return examples::program("share", argc, argv, command);
}
