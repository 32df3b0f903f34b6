// One end of a TCP connection whose bytes a test writes itself.
// Threads: one.
#pragma once
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "runtime/base/os_tcp.h"

namespace weir::test {

inline constexpr auto long_enough = std::chrono::seconds(20);

class raw_tcp {
 public:
  explicit raw_tcp(os::owned_file s) : socket_(std::move(s)) {}
  explicit raw_tcp(std::uint16_t port) : socket_(os::connect_tcp("127.0.0.1", port, long_enough).file) {
    EXPECT_TRUE(socket_.is_open());
  }
  bool say(std::string const& bytes) {
    return os::send_bytes(socket_.get(), std::as_bytes(std::span(bytes)), long_enough) == os::heard::message;
  }
  std::string hear(std::size_t count) {  // shorter: the other end is closed
    std::string bytes(count, '\0');
    auto const is = os::receive_bytes(socket_.get(), std::as_writable_bytes(std::span(bytes)), long_enough);
    return is == os::heard::message ? bytes : std::string();
  }
  void hang_up() { socket_.close(); }
  os::owned_file take() { return std::move(socket_); }

 private:
  os::owned_file socket_;
};

inline raw_tcp accepted(os::tcp_socket const& listener) {
  std::vector<bool> ready;
  int const one[] = {listener.file.get()};
  os::wait_readable(one, ready, long_enough);
  return raw_tcp(os::accept_tcp(listener.file.get()));
}

// Two connected ends.
inline std::pair<os::owned_file, os::owned_file> connected() {
  os::tcp_socket const listener = os::listen_tcp(0);
  os::owned_file a = os::connect_tcp("127.0.0.1", listener.port, long_enough).file;
  return {std::move(a), accepted(listener).take()};
}

template <class T>
std::string raw(T const& value) {
  return {reinterpret_cast<char const*>(&value), sizeof value};
}
inline std::string raw_text(std::string const& text) {
  return raw(std::uint64_t{text.size()}) + text;
}

}  // namespace weir::test
