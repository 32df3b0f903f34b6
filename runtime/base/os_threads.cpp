// Linux tells the threads of a process in /proc/self/task.
// Threads: any.
#include "runtime/base/os_threads.h"

#include <dirent.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "runtime/base/os.h"

namespace weir::os {

int this_thread() noexcept {
  return ::gettid();
}

std::vector<thread_seen> threads_here() {
  constexpr std::size_t most_bytes = 1 << 16;
  constexpr std::string_view label = "\nvoluntary_ctxt_switches:";
  std::vector<thread_seen> all;
  std::unique_ptr<DIR, int (*)(DIR*)> const folder(::opendir("/proc/self/task"), ::closedir);
  if (!folder)
    return all;
  while (dirent const* const one = ::readdir(folder.get())) {
    int const number = std::atoi(one->d_name);
    if (number == 0)
      continue;  // "." or ".."
    auto const about = read_text(("/proc/self/task/" + std::to_string(number) + "/status").c_str(), most_bytes);
    auto const at = about.text ? about.text->find(label) : std::string::npos;
    if (at == std::string::npos)
      continue;  // it has ended
    all.push_back({number, std::strtoull(about.text->c_str() + at + label.size(), nullptr, 10)});
  }
  return all;
}

}  // namespace weir::os
