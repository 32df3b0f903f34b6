// The system calls behind os_socket.h.
// Threads: any.
#include "runtime/base/os_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/base/os.h"
#include "runtime/base/sync.h"

namespace weir::os {
namespace {

struct control {  // room for the descriptors of one message
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * most_files)> bytes{};
};

constexpr int most_ms = 1'000'000'000;
constexpr std::int64_t at_once = INT64_MIN;  // the call itself has just looked

// Until the socket may be read (or written), or something is wrong with it, which the call itself will tell. false: the limit came first.
// A process that was stopped looks once more before it says so.
bool wait_for(int socket, short what, std::int64_t end) noexcept {
  if (end == at_once) return false;
  while (true) {
    std::int64_t const left = end - base::now_ns();
    pollfd one{socket, what, 0};
    int const ms = static_cast<int>(std::clamp<std::int64_t>(left / 1'000'000 + (left % 1'000'000 > 0), 0, most_ms));
    int const n = ::poll(&one, 1, ms);
    if (n > 0 || (n < 0 && errno != EINTR)) return true;
    if (n == 0 && ms < most_ms) return false;
  }
}

std::int64_t end_of(std::chrono::nanoseconds limit) noexcept {
  if (limit.count() <= 0) return at_once;
  std::int64_t const now = base::now_ns();
  return limit.count() > INT64_MAX - now ? INT64_MAX : now + limit.count();
}

void take_files(msghdr& m, received& into) noexcept {
  for (cmsghdr* c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    std::size_t const n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < n; ++i) {
      int file = -1;
      std::memcpy(&file, CMSG_DATA(c) + i * sizeof(int), sizeof file);
      if (into.file_count < most_files) into.files[into.file_count++] = file;
      else ::close(file), into.cut = true;
    }
  }
}

}  // namespace

int duplicate_file(int file) noexcept { return refused(call::duplicate_file) ? -1 : ::fcntl(file, F_DUPFD_CLOEXEC, 3); }

std::uint64_t bytes_of_memory_file(int file) noexcept {
  struct stat about {};
  if (::fcntl(file, F_GET_SEALS) < 0 || ::fstat(file, &about) != 0 || !S_ISREG(about.st_mode)) return 0;
  return static_cast<std::uint64_t>(about.st_size);
}

std::pair<int, int> make_sockets() noexcept {
  int both[2] = {-1, -1};
  if (refused(call::make_sockets) || ::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, both) != 0) return {-1, -1};
  return {both[0], both[1]};
}

bool is_message_socket(int file) noexcept {
  int domain = 0, type = 0;
  socklen_t length = sizeof domain;
  if (::getsockopt(file, SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0 || domain != AF_UNIX) return false;
  length = sizeof type;
  return ::getsockopt(file, SOL_SOCKET, SO_TYPE, &type, &length) == 0 && type == SOCK_SEQPACKET;
}

heard send_message(int socket, std::span<std::byte const> bytes, std::span<int const> files, std::chrono::nanoseconds limit) noexcept {
  if (refused(call::send_message) || files.size() > most_files) return heard::refused;
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
    if (n == static_cast<ssize_t>(bytes.size())) return heard::message;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN || errno == ECONNREFUSED)) return heard::closed;
    if (n >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) return heard::refused;
    if (!wait_for(socket, POLLOUT, end)) return heard::too_late;
  }
}

received receive_message(int socket, std::span<std::byte> into, std::chrono::nanoseconds limit) noexcept {
  received got;
  if (refused(call::receive_message)) return got;
  std::int64_t const end = end_of(limit);
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
      got.cut |= (m.msg_flags & MSG_CTRUNC) != 0;
      got.bytes = static_cast<std::size_t>(n);
      got.is = n == 0 && got.file_count == 0 ? heard::closed : heard::message;
      return got;
    }
    if (errno == EINTR) continue;
    if (errno == ECONNRESET || errno == ENOTCONN || errno == EPIPE) got.is = heard::closed;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return got;
    if (!wait_for(socket, POLLIN, end)) {
      got.is = heard::too_late;
      return got;
    }
  }
}

}  // namespace weir::os
