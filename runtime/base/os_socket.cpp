// The system calls behind os_socket.h.
// Threads: any.
#include "runtime/base/os_socket.h"

#include <fcntl.h>
#include <linux/kcmp.h>
#include <linux/magic.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace weir::os {
namespace {

// Room for the descriptors of one message, and for what SO_PASSCRED, SO_PASSSEC and SO_TIMESTAMP add.
struct control {
  alignas(cmsghdr) std::array<char, 512> bytes;
};

// Newer than the headers of some systems.
constexpr int query_same_file = 1027;  // F_DUPFD_QUERY, since Linux 6.10
constexpr int pidfd_of_sender = 4;     // SCM_PIDFD, since Linux 6.5

constexpr std::int64_t at_once = INT64_MIN;  // no wait: the call itself has just tried

// Waits until the socket is readable (or writable) or has an error, which the next call reports. False: timed
// out. A process that was stopped polls once more before it times out.
bool wait_for(int socket, short what, std::int64_t end) noexcept {
  if (end == at_once)
    return false;
  while (true) {
    pollfd one{socket, what, 0};
    int const ms = poll_ms(end - base::now_ns());
    int const n = ::poll(&one, 1, ms);
    if (n > 0 || (n < 0 && errno != EINTR))
      return true;
    // A wait longer than one poll takes several.
    if (n == 0 && ms < longest_poll_ms)
      return false;
  }
}

std::int64_t end_of(base::time_limit limit) noexcept {
  return limit.ns() == 0 ? at_once : limit.after(base::now_ns());
}

void take_files(msghdr& m, received& into) noexcept {
  for (cmsghdr* c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
    if (c->cmsg_level != SOL_SOCKET || (c->cmsg_type != SCM_RIGHTS && c->cmsg_type != pidfd_of_sender))
      continue;
    std::size_t const n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < n; ++i) {
      int file = -1;
      std::memcpy(&file, CMSG_DATA(c) + i * sizeof(int), sizeof file);
      owned_file own(file);
      // The sender's own descriptor was not asked for: it is closed here.
      if (c->cmsg_type != SCM_RIGHTS)
        continue;
      if (into.file_count < most_files)
        into.files[into.file_count] = std::move(own);
      ++into.file_count;
    }
  }
}

// An empty message looks like the end of the connection, but at the end there is nothing more to read.
bool has_ended(int socket) noexcept {
  std::byte next{};
  return has_hung_up(socket) && ::recv(socket, &next, 1, MSG_PEEK | MSG_DONTWAIT) <= 0;
}

}  // namespace

int poll_ms(std::int64_t ns) noexcept {
  constexpr std::int64_t ns_a_ms = 1'000'000;
  std::int64_t const ms = ns / ns_a_ms + (ns % ns_a_ms > 0);
  return static_cast<int>(std::clamp<std::int64_t>(ms, 0, longest_poll_ms));
}

int duplicate_file(int file) noexcept {
  return refused(call::duplicate_file) ? -1 : ::fcntl(file, F_DUPFD_CLOEXEC, 3);
}

bool seal_size(int file) noexcept {
  return !refused(call::seal_size) && ::fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0;
}

// Reads the seals first: after F_SEAL_SEAL no seal changes, so the later answers stay valid.
char const* unfit_to_map(int file, std::uint64_t bytes) noexcept {
  struct statfs in {};
  struct stat about {};
  int const seals = ::fcntl(file, F_GET_SEALS), mode = ::fcntl(file, F_GETFL);
  if (seals < 0 || mode < 0 || ::fstatfs(file, &in) != 0 || ::fstat(file, &about) != 0)
    return "no shared memory";
  if (!S_ISREG(about.st_mode) || in.f_type != TMPFS_MAGIC)
    return "no shared memory";
  if ((seals & F_SEAL_SHRINK) == 0 || (seals & F_SEAL_SEAL) == 0)
    return "a file without the seals F_SEAL_SHRINK and F_SEAL_SEAL";
  if ((seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) != 0 || (mode & O_ACCMODE) != O_RDWR)
    return "a file that is not writable";
  if (static_cast<std::uint64_t>(about.st_size) != bytes)
    return "a file of another size";
  return nullptr;
}

sameness same_open_file(int a, int b) noexcept {
  if (refused(call::compare_files))
    return sameness::unknown;
  if (int const is_same = ::fcntl(a, query_same_file, b); is_same >= 0)
    return is_same ? sameness::same : sameness::different;
  auto const self = ::getpid();
  if (long const order = ::syscall(SYS_kcmp, self, self, KCMP_FILE, a, b); order >= 0)
    return order == 0 ? sameness::same : sameness::different;
  // Neither call is available here: compare the inode, which identifies a memory file.
  struct stat one {
  }, other{};
  if (::fstat(a, &one) != 0 || ::fstat(b, &other) != 0)
    return sameness::unknown;
  if (one.st_dev != other.st_dev || one.st_ino != other.st_ino)
    return sameness::different;
  return S_ISREG(one.st_mode) ? sameness::same : sameness::unknown;
}

std::pair<int, int> make_sockets() noexcept {
  int both[2] = {-1, -1};
  if (refused(call::make_sockets) || ::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, both) != 0)
    return {-1, -1};
  return {both[0], both[1]};
}

bool is_message_socket(int file) noexcept {
  int domain = 0, type = 0;
  socklen_t length = sizeof domain;
  if (::getsockopt(file, SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0 || domain != AF_UNIX)
    return false;
  length = sizeof type;
  return ::getsockopt(file, SOL_SOCKET, SO_TYPE, &type, &length) == 0 && type == SOCK_SEQPACKET;
}

bool has_hung_up(int socket) noexcept {
  pollfd one{socket, POLLRDHUP, 0};
  return ::poll(&one, 1, 0) > 0 && (one.revents & (POLLRDHUP | POLLHUP)) != 0;
}

heard send_message(int socket, std::span<std::byte const> bytes, std::span<int const> files,
                   base::time_limit limit) noexcept {
  if (refused(call::send_message) || files.size() > most_files)
    return heard::refused;
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  control room;
  msghdr m{};
  m.msg_iov = &part;
  m.msg_iovlen = 1;
  if (!files.empty()) {
    m.msg_control = room.bytes.data();
    m.msg_controllen = CMSG_SPACE(files.size_bytes());
    cmsghdr* const c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(files.size_bytes());
    std::memcpy(CMSG_DATA(c), files.data(), files.size_bytes());
  }
  std::int64_t const end = end_of(limit);
  while (true) {
    ssize_t const n = ::sendmsg(socket, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n == static_cast<ssize_t>(bytes.size()))
      return heard::message;
    // A part was sent: the socket keeps no message boundaries.
    if (n >= 0)
      return heard::refused;
    if (errno == EINTR)
      continue;
    if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN || errno == ECONNREFUSED)
      return heard::closed;
    if (errno != EAGAIN && errno != EWOULDBLOCK)
      return heard::refused;
    // The receiver's queue is full.
    if (!wait_for(socket, POLLOUT, end))
      return heard::too_late;
  }
}

received receive_message(int socket, std::span<std::byte> into, base::time_limit limit) noexcept {
  received got;
  if (refused(call::receive_message))
    return got;
  std::int64_t const end = end_of(limit);
  bool was_reset = false;
  while (true) {
    iovec part{into.data(), into.size()};
    control room;
    msghdr m{};
    m.msg_iov = &part;
    m.msg_iovlen = 1;
    m.msg_control = room.bytes.data();
    m.msg_controllen = room.bytes.size();
    ssize_t const n = ::recvmsg(socket, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC | MSG_TRUNC);
    if (n >= 0) {
      take_files(m, got);
      got.cut = (m.msg_flags & MSG_CTRUNC) != 0;
      got.bytes = static_cast<std::size_t>(n);
      bool const is_empty = n == 0 && got.file_count == 0;
      got.is = is_empty && has_ended(socket) ? heard::closed : heard::message;
      return got;
    }
    if (errno == EINTR)
      continue;
    // The other end was closed with messages of this one unread. The system says so once, before those that it sent.
    if (errno == ECONNRESET && !std::exchange(was_reset, true))
      continue;
    if (errno == ECONNRESET || errno == ENOTCONN || errno == EPIPE)
      got.is = heard::closed;
    if (errno != EAGAIN && errno != EWOULDBLOCK)
      return got;
    if (!wait_for(socket, POLLIN, end)) {
      got.is = heard::too_late;
      return got;
    }
  }
}

}  // namespace weir::os
