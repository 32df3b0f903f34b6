// Two processes, on two GPUs if available, share a ring of buffers in the first one's memory, and check it.
//   share [--bytes N] [--buffers N] [--rounds N] [--timeout MS] [--kill writer|reader | --stop writer|reader]
// --kill and --stop kill or suspend one process after half of the rounds. The other process must detect that
// within the timeout.
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "examples/ending.h"
#include "examples/share/ends.h"
#include "weir/device.h"
#include "weir/runtime.h"
#include "weir/share.h"

namespace {

constexpr int line_of_child = 50;
constexpr std::uint64_t most_int = std::numeric_limits<int>::max();
using mishap = share::settings::mishap;

std::uint64_t number(std::string const& option, char const* text,
                     std::uint64_t most = std::numeric_limits<std::uint64_t>::max()) {
  std::uint64_t value = 0;
  auto const [end, failed] = std::from_chars(text, text + std::strlen(text), value);
  if (failed != std::errc() || *end || value == 0)
    throw examples::usage_error(option + " " + text + " is not a number above 0");
  if (value > most)
    throw examples::usage_error(option + " " + text + " is more than " + std::to_string(most));
  return value;
}

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

char const* const usage =
    "usage: share [OPTIONS]\n"
    "Two processes share a ring of buffers in device memory. Every word is checked.\n"
    "\n"
    "options:\n"
    "  --bytes N             of a buffer\n"
    "  --buffers N           of the ring\n"
    "  --rounds N            buffers sent in all\n"
    "  --timeout MS          how long one process may say nothing before the other gives up\n"
    "  --kill writer|reader  this one is killed half way, and the other must notice\n"
    "  --stop writer|reader  this one is stopped half way, likewise\n"
    "  -h, --help            this text\n"
    "\n"
    "examples:\n"
    "  ./run share\n"
    "  ./run share --kill reader\n"
    "\n"
    "exit status: 0 ok, 1 wrong bytes or an error, 2 usage, 3 the other process is gone, 4 it said nothing\n";

int command(int argc, char** argv) {
  share::settings s;
  std::string role, victim;
  mishap meets = mishap::none;
  for (int i = 1; i < argc; ++i) {
    std::string const option = argv[i];
    if (option == "--help" || option == "-h")
      return std::fputs(usage, stdout), 0;
    if (examples::says_version("share", option))
      return 0;
    if (i + 1 == argc)
      throw examples::usage_error(option + " is not an option, or lacks its value");
    char const* const value = argv[++i];
    if (option == "--bytes")
      s.bytes = number(option, value) / 8 * 8;
    else if (option == "--buffers")
      s.buffers = static_cast<int>(number(option, value, most_int));
    else if (option == "--rounds")
      s.rounds = number(option, value);
    else if (option == "--timeout")
      s.timeout = std::chrono::milliseconds(number(option, value, most_int));
    else if (option == "--as")
      role = value;
    else if (option == "--kill" || option == "--stop")
      victim = value, meets = option == "--kill" ? mishap::killed : mishap::stopped;
    else
      throw examples::usage_error(option +
                                  " is not an option: --bytes, --buffers, --rounds, --timeout, --kill, --stop");
  }
  if (!victim.empty() && victim != "writer" && victim != "reader")
    throw examples::usage_error(victim + " is neither writer nor reader");
  if (s.bytes == 0)
    throw examples::usage_error("a buffer has at least one word of 8 bytes");
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
