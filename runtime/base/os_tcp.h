// Streams of bytes between processes, also of other machines: TCP.
// Threads: any; one thread at a time reads from a socket, and one writes to it.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/os_socket.h"

namespace weir::os {

inline constexpr base::time_limit no_limit{std::chrono::nanoseconds::max()};

struct tcp_socket {
  owned_file file{};
  std::uint16_t port = 0;  // of this end
  std::string why_not{};   // why it is not open, to print after the address
};
// Listens on all addresses of this machine; closed on exec. port 0: a free one.
tcp_socket listen_tcp(std::uint16_t port);
owned_file accept_tcp(int listener) noexcept;  // Blocks: no. Not open: no connection waits, or refused
// Blocks: while the name is looked up, and up to the limit.
tcp_socket connect_tcp(std::string const& host, std::uint16_t port, base::time_limit);
std::string address_of(int socket);  // of this end of a connection. Empty: it has none
std::string own_address();           // one that other machines can reach, if there is one; else that of this machine

// Sends all bytes, without SIGPIPE. Blocks: while the receiver's queue is full.
heard send_bytes(int socket, std::span<std::byte const>, base::time_limit) noexcept;
// Fills all of `into`. Blocks: until that many bytes have come.
heard receive_bytes(int socket, std::span<std::byte> into, base::time_limit) noexcept;
std::size_t send_some(int socket, std::span<std::byte const>) noexcept;  // the number of bytes sent; never blocks
// Takes what is there. Returns: the number of bytes; 0: none yet; -1: the other end is closed.
int receive_some(int socket, std::span<std::byte> into) noexcept;
void shut_down(int socket) noexcept;  // both ends see the end; a thread that waits on it continues

// Waits until a socket is readable or ended. ready[i] tells of sockets[i]; a socket of -1 is never ready.
void wait_readable(std::span<int const> sockets, std::vector<bool>& ready, base::time_limit);
owned_file make_wake_up() noexcept;  // a file that wait_readable() finds ready after wake_up()
void wake_up(int file) noexcept;
void take_wake_ups(int file) noexcept;

}  // namespace weir::os
