// Other processes of a long life: this program, started again to play a role, or a fork.
// Threads: one.
#pragma once
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace weir::soak {

inline constexpr int its_socket = 77;

class child_process {
 public:
  explicit child_process(pid_t id) noexcept : id_(id) {}
  child_process(char const* role, std::vector<std::string> words, int socket) {
    words.insert(words.begin(), {"soak", "--role", role});
    std::vector<char*> arguments;
    for (auto& w : words)
      arguments.push_back(w.data());
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t files;
    ::posix_spawn_file_actions_init(&files);
    if (socket >= 0)
      ::posix_spawn_file_actions_adddup2(&files, socket, its_socket);
    int const refused = ::posix_spawn(&id_, "/proc/self/exe", &files, nullptr, arguments.data(), environ);
    ::posix_spawn_file_actions_destroy(&files);
    if (refused)
      throw std::runtime_error("a process was refused: " + std::to_string(refused));
  }
  ~child_process() {
    if (id_ > 0)
      kill(), end();
  }
  child_process(child_process const&) = delete;
  void kill() const noexcept { ::kill(id_, SIGKILL); }
  int end() {  // Blocks: until it has ended. Returns: its exit status; 100 + signal if a signal ended it
    int status = -1;
    bool const known = ::waitpid(id_, &status, 0) == id_;
    id_ = 0;
    if (!known)
      return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
  }

 private:
  pid_t id_ = 0;
};

// The roles. Return: the exit status
int rank_role(char** words);
int reader_role(char** words);
int busy_role(char** words);

}  // namespace weir::soak
