// Opens without waiting: an ordinary open() of a FIFO without a writer does not return.
// Threads: any.
#include "runtime/base/os_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace weir::os {
namespace {

struct descriptor {
  int number;
  ~descriptor() {
    if (number >= 0) ::close(number);
  }
};

char const* kind_of(mode_t mode) noexcept {
  if (S_ISDIR(mode)) return "is a folder";
  if (S_ISFIFO(mode)) return "is a FIFO";
  return S_ISSOCK(mode) ? "is a socket" : "is a device";
}

}  // namespace

file_text read_text(char const* path, std::size_t most_bytes) {
  auto const refused = [] { return file_text{{}, std::string("cannot be read: ") + std::strerror(errno)}; };
  descriptor const file{::open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)};
  struct ::stat about {};
  if ((file.number >= 0 ? ::fstat(file.number, &about) : ::stat(path, &about)) != 0) return refused();
  if (!S_ISREG(about.st_mode)) return {{}, kind_of(about.st_mode)};
  if (file.number < 0) return {{}, "cannot be read: permission denied"};
  std::string text;
  std::array<char, 4096> part;
  for (;;) {
    auto const got = ::read(file.number, part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return refused();
    if (got == 0) return {std::move(text), {}};
    text.append(part.data(), static_cast<std::size_t>(got));
    if (text.size() > most_bytes) return {{}, "has more than " + std::to_string(most_bytes) + " B"};
  }
}

}  // namespace weir::os
