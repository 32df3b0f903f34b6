// The system calls behind os_file.h.
// Threads: see os_file.h.
#include "runtime/base/os_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace weir::os {
namespace {

constexpr std::size_t most_at_once = std::size_t{1} << 30;  // Linux moves less than 2 GiB a call

// Long: one line for each reason.
char const* remedy_of(int why) noexcept {
  switch (why) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG: return "Free space on the disk, or raise the limit";
    case ENOENT:
    case ENOTDIR: return "Create the folder, or correct the path";
    case ENAMETOOLONG: return "Use a shorter name: .part is added to it";
    case EMFILE:
    case ENFILE: return "Close files, or raise the limit of open files";
    case EACCES:
    case EPERM:
    case EROFS: return "Allow this process to write in the folder";
    case ELOOP: return "Remove the link";
    case EAGAIN: return "Let one process at a time write this path";
    default: return "Check the disk and the path";
  }
}

file_refusal refusal(std::string const& path, char const* cannot, int why) {
  char const* const text = why == EAGAIN ? "another process writes it" : std::strerror(why);
  return {path + " cannot be " + cannot + ": " + text, remedy_of(why)};
}

// Where the system cannot do a call for this file, nothing is lost by going on without it.
bool is_not_offered(int why) noexcept {
  return why == EINVAL || why == ENOSYS || why == EOPNOTSUPP || why == ENOLCK || why == EBADF;
}

// A lock of this process on the whole file.
bool lock(int file) noexcept {
  struct ::flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  return ::fcntl(file, F_SETLK, &whole) == 0;
}

bool has_name(int file, std::string const& path) noexcept {
  struct ::stat own {
  }, named{};
  return ::fstat(file, &own) == 0 && ::stat(path.c_str(), &named) == 0 && own.st_dev == named.st_dev &&
         own.st_ino == named.st_ino;
}

}  // namespace

void refuse_writes_beyond_the_limit() noexcept {
  sigset_t beyond;
  ::sigemptyset(&beyond);
  ::sigaddset(&beyond, SIGXFSZ);
  (void)::pthread_sigmask(SIG_BLOCK, &beyond, nullptr);
}

file_in_place::~file_in_place() {
  if (file_.is_open())
    (void)::unlink(part_.c_str());
}

file_refusal file_in_place::begin() {
  while (true) {
    owned_file file(refused(call::write_file)
                        ? (errno = EACCES, -1)
                        : ::open(part_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666));
    if (!file.is_open())
      return refusal(part_, "written", errno);
    struct ::stat about {};
    if (::fstat(file.get(), &about) == 0 && !S_ISREG(about.st_mode))
      return refusal(part_, "written", EINVAL);
    if (!lock(file.get()) && !is_not_offered(errno))
      return refusal(part_, "written", errno == EACCES ? EAGAIN : errno);
    // The process that held the lock may have renamed the file since it was opened here.
    if (!has_name(file.get(), part_))
      continue;
    // Another name of the file is another file of a person, who would lose its contents.
    if (about.st_nlink > 1) {
      if (::unlink(part_.c_str()) != 0)
        return refusal(part_, "written", errno);
      continue;
    }
    file_ = std::move(file);
    return ::ftruncate(file_.get(), 0) == 0 ? file_refusal{} : refusal(part_, "written", errno);
  }
}

file_refusal file_in_place::write(std::span<std::byte const> bytes) {
  while (!bytes.empty()) {
    ssize_t const n = refused(call::write_file)
                          ? (errno = ENOSPC, -1)
                          : ::write(file_.get(), bytes.data(), std::min(bytes.size(), most_at_once));
    if (n < 0 && errno != EINTR)
      return refusal(part_, "written", errno);
    bytes = bytes.subspan(n < 0 ? 0 : static_cast<std::size_t>(n));
  }
  return {};
}

file_refusal file_in_place::put_in_place() {
  std::string const folder = path_.substr(0, path_.rfind('/') + 1);  // the last thing that needs host memory
  if (refused(call::sync_file) ? (errno = EIO, true) : ::fsync(file_.get()) != 0)
    return refusal(part_, "brought to the disk", errno);
  if (refused(call::rename_file) ? (errno = EACCES, true) : ::rename(part_.c_str(), path_.c_str()) != 0)
    return refusal(path_, "replaced", errno);
  file_.close();
  owned_file const in(::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // A folder that may be written and not read: the system brings the new name to the disk by itself, later.
  bool const may_be_left =
      in.is_open() ? ::fsync(in.get()) == 0 || is_not_offered(errno) : errno == EACCES || errno == EPERM;
  if (may_be_left)
    return {};
  return refusal(folder, "brought to the disk", errno);
}

file_refusal file_to_read::open(std::string path) {
  path_ = std::move(path);
  file_ = owned_file(::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  struct ::stat about {};
  if (!file_.is_open() || ::fstat(file_.get(), &about) != 0)
    return {path_ + " cannot be read: " + std::strerror(errno), "Check the path, and allow this process to read it"};
  if (!S_ISREG(about.st_mode))
    return {path_ + " is no regular file", "Check the path"};
  bytes_ = static_cast<std::uint64_t>(about.st_size);
  return {};
}

file_refusal file_to_read::read(std::uint64_t offset, std::span<std::byte> to) const {
  while (!to.empty()) {
    ssize_t const n = ::pread(file_.get(), to.data(), std::min(to.size(), most_at_once), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0)
      return {path_ + " cannot be read: " + std::strerror(errno), "Check the disk"};
    if (n == 0)
      return {path_ + " has become shorter while it is read", "Write the file anew, beside it, and rename it"};
    offset += static_cast<std::uint64_t>(n);
    to = to.subspan(static_cast<std::size_t>(n));
  }
  return {};
}

}  // namespace weir::os
