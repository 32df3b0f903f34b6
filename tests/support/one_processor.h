// The processor of a test program whose threads run one at a time.
// Threads: the one that makes it.
#pragma once
#include <sched.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>

namespace weir::tests {

// Keeps this thread and its new threads on one processor, because a baton between two
// processors takes ten times as long. Each running test program chooses a free processor
// if there is one, and claims it with a system-wide name.
class one_processor {
 public:
  one_processor() {
    ::sched_getaffinity(0, sizeof found_, &found_);
    int chosen = ::sched_getcpu();
    for (int p = 0; p < CPU_SETSIZE && name_ < 0; ++p) {
      if (CPU_ISSET(p, &found_) && take(p))
        chosen = p;
    }
    if (chosen < 0)
      return;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(chosen, &one);
    ::sched_setaffinity(0, sizeof one, &one);
  }
  ~one_processor() {
    ::sched_setaffinity(0, sizeof found_, &found_);
    if (name_ >= 0)
      ::close(name_);
  }
  one_processor(one_processor const&) = delete;

 private:
  bool take(int processor) {
    sockaddr_un at{};  // begins with a zero: an abstract name, which ends with its owner
    at.sun_family = AF_UNIX;
    int const length = std::snprintf(at.sun_path + 1, sizeof at.sun_path - 1, "weir-test-on-processor-%d", processor);
    name_ = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (name_ >= 0 &&
        ::bind(name_, reinterpret_cast<sockaddr const*>(&at),
               static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<std::size_t>(length))) == 0)
      return true;
    if (name_ >= 0)
      ::close(name_);
    name_ = -1;
    return false;
  }
  cpu_set_t found_;
  int name_ = -1;
};

}  // namespace weir::tests
