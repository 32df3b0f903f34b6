#include "runtime/base/os_fork.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace weir::os {

int fork_child() noexcept {
  (void)std::fflush(nullptr);
  return ::fork();
}

std::optional<int> status_of_child(int child) noexcept {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR)
      return {};  // SIGCHLD is ignored, or other code has waited for the child
  }
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

void exit_process(int status) {
  std::exit(status);
}

}  // namespace weir::os
