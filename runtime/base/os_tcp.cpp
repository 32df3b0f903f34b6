// The system calls behind os_tcp.h.
// Threads: as the header says.
#include "runtime/base/os_tcp.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "runtime/base/os.h"

namespace weir::os {
namespace {

// False: timed out. An error of the socket counts as ready: the next call reports it.
bool until_ready(int socket, short what, std::int64_t end) noexcept {
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

void set_flag(int socket, int level, int name) noexcept {
  int const on = 1;
  (void)::setsockopt(socket, level, name, &on, sizeof on);
}

std::uint16_t port_of(int socket) noexcept {
  sockaddr_storage at{};
  socklen_t length = sizeof at;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&at), &length) != 0)
    return 0;
  return ntohs(at.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6 const&>(at).sin6_port
                                        : reinterpret_cast<sockaddr_in const&>(at).sin_port);
}

std::string said_by_system(int error) {
  return std::strerror(error);
}

// To all addresses of this machine. IPv6 takes IPv4 too. Returns: as bind(2)
int bind_to_any(int socket, int family, std::uint16_t port) noexcept {
  if (family == AF_INET6) {
    int const off = 0;
    (void)::setsockopt(socket, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    sockaddr_in6 any{};
    any.sin6_family = AF_INET6;
    any.sin6_port = htons(port);
    any.sin6_addr = in6addr_any;
    return ::bind(socket, reinterpret_cast<sockaddr const*>(&any), sizeof any);
  }
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_port = htons(port);
  any.sin_addr.s_addr = htonl(INADDR_ANY);
  return ::bind(socket, reinterpret_cast<sockaddr const*>(&any), sizeof any);
}

}  // namespace

tcp_socket listen_tcp(std::uint16_t port) {
  tcp_socket made;
  if (refused(call::listen_tcp))
    return {{}, 0, "the system refuses a socket"};
  int error = 0;
  for (int const family : {AF_INET6, AF_INET}) {  // the second where the system has no IPv6
    owned_file s(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!s.is_open()) {
      error = errno;
      continue;
    }
    set_flag(s.get(), SOL_SOCKET, SO_REUSEADDR);
    if (bind_to_any(s.get(), family, port) == 0 && ::listen(s.get(), SOMAXCONN) == 0) {
      made.port = port_of(s.get());
      made.file = std::move(s);
      return made;
    }
    error = errno;
    // IPv4 alone might be free. Then connections by IPv6 would reach another program.
    if (error == EADDRINUSE)
      break;
  }
  made.why_not = said_by_system(error);
  return made;
}

owned_file accept_tcp(int listener) noexcept {
  if (refused(call::accept_tcp))
    return owned_file();
  owned_file s(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (s.is_open())
    set_flag(s.get(), IPPROTO_TCP, TCP_NODELAY);
  return s;
}

tcp_socket connect_tcp(std::string const& host, std::uint16_t port, base::time_limit limit) {
  if (refused(call::connect_tcp))
    return {{}, 0, "the system refuses a socket"};
  std::int64_t const end = limit.after(base::now_ns());
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (int const error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found); error != 0)
    return {{}, 0, ::gai_strerror(error)};
  std::unique_ptr<addrinfo, void (*)(addrinfo*)> const all(found, &::freeaddrinfo);
  int error = 0;
  for (addrinfo const* at = found; at; at = at->ai_next) {
    owned_file s(::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!s.is_open()) {
      error = errno;
      continue;
    }
    error = ::connect(s.get(), at->ai_addr, at->ai_addrlen) == 0 ? 0 : errno;
    // The socket keeps the result of the attempt.
    if (error == EINPROGRESS) {
      socklen_t length = sizeof error;
      if (!until_ready(s.get(), POLLOUT, end))
        error = ETIMEDOUT;
      else if (::getsockopt(s.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0)
        error = errno;
    }
    if (error != 0)
      continue;
    set_flag(s.get(), IPPROTO_TCP, TCP_NODELAY);
    tcp_socket made;
    made.port = port_of(s.get());
    made.file = std::move(s);
    return made;
  }
  return {{}, 0, said_by_system(error)};
}

std::string address_of(int socket) {
  sockaddr_storage at{};
  socklen_t size = sizeof at;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&at), &size) != 0)
    return {};
  void const* address = &reinterpret_cast<sockaddr_in const&>(at).sin_addr;
  if (at.ss_family == AF_INET6)
    address = &reinterpret_cast<sockaddr_in6 const&>(at).sin6_addr;
  char text[INET6_ADDRSTRLEN];
  return ::inet_ntop(at.ss_family, address, text, sizeof text) ? text : std::string();
}

std::string own_address() {
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) != 0)
    return "127.0.0.1";
  std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> const all(found, &::freeifaddrs);
  for (int const family : {AF_INET, AF_INET6}) {
    for (ifaddrs const* at = found; at; at = at->ifa_next) {
      if (!at->ifa_addr || at->ifa_addr->sa_family != family)
        continue;
      if ((at->ifa_flags & IFF_UP) == 0 || (at->ifa_flags & IFF_LOOPBACK) != 0)
        continue;
      void const* address = &reinterpret_cast<sockaddr_in const*>(at->ifa_addr)->sin_addr;
      if (family == AF_INET6) {
        auto const& six = reinterpret_cast<sockaddr_in6 const*>(at->ifa_addr)->sin6_addr;
        if (IN6_IS_ADDR_LINKLOCAL(&six))
          continue;  // needs the name of an interface, which differs by machine
        address = &six;
      }
      char text[INET6_ADDRSTRLEN];
      if (::inet_ntop(family, address, text, sizeof text))
        return text;
    }
  }
  return "127.0.0.1";
}

heard send_bytes(int socket, std::span<std::byte const> bytes, base::time_limit limit) noexcept {
  if (refused(call::send_bytes))
    return heard::refused;
  std::int64_t const end = limit.after(base::now_ns());
  while (!bytes.empty()) {
    ssize_t const n = ::send(socket, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(n));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!until_ready(socket, POLLOUT, end))
        return heard::too_late;
    } else if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN || errno == ETIMEDOUT) {
      return heard::closed;
    } else if (errno != EINTR) {
      return heard::refused;
    }
  }
  return heard::message;
}

std::size_t send_some(int socket, std::span<std::byte const> bytes) noexcept {
  ssize_t const n = ::send(socket, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  return n > 0 ? static_cast<std::size_t>(n) : 0;
}

int receive_some(int socket, std::span<std::byte> into) noexcept {
  while (true) {
    ssize_t const n = ::recv(socket, into.data(), into.size(), MSG_DONTWAIT);
    if (n > 0)
      return static_cast<int>(n);
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
      return 0;
    return -1;  // its end, or an error, which counts as one
  }
}

heard receive_bytes(int socket, std::span<std::byte> into, base::time_limit limit) noexcept {
  if (refused(call::receive_bytes))
    return heard::refused;
  std::int64_t const end = limit.after(base::now_ns());
  constexpr std::size_t most = std::size_t{1} << 30;  // receive_some() counts in an int
  while (!into.empty()) {
    int const n = receive_some(socket, into.first(std::min(into.size(), most)));
    if (n < 0)
      return heard::closed;
    into = into.subspan(static_cast<std::size_t>(n));
    if (n == 0 && !until_ready(socket, POLLIN, end))
      return heard::too_late;
  }
  return heard::message;
}

void shut_down(int socket) noexcept {
  (void)::shutdown(socket, SHUT_RDWR);
}

void wait_readable(std::span<int const> sockets, std::vector<bool>& ready, base::time_limit limit) {
  std::vector<pollfd> all;
  for (int const s : sockets)
    all.push_back({s, POLLIN, 0});  // poll ignores -1
  (void)::poll(all.data(), all.size(), poll_ms(limit.ns()));
  ready.assign(sockets.size(), false);
  for (std::size_t i = 0; i < all.size(); ++i)
    ready[i] = all[i].revents != 0;
}

owned_file make_wake_up() noexcept {
  return owned_file(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
}
void wake_up(int file) noexcept {
  (void)!::eventfd_write(file, 1);
}
void take_wake_ups(int file) noexcept {
  eventfd_t n = 0;
  (void)!::eventfd_read(file, &n);
}

}  // namespace weir::os
