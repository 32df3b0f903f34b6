// Child processes begin before the first use of weir. Their sockets end with their own process alone.
// Threads: one.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <stdexcept>

#include "tests/support/refused.h"
#include "weir/device.h"
#include "weir/share.h"

namespace weir::child_process_tests {
namespace {

using namespace weir::test;

// Returns: how many bytes came before the end; -1: an error.
long bytes_until_end(int socket) {
  long all = 0;
  for (char part[16];;) {
    ssize_t const n = ::read(socket, part, sizeof part);
    if (n <= 0)
      return n < 0 ? -1 : all;
    all += n;
  }
}

TEST(child_process, ends_with_the_status_of_its_body) {
  EXPECT_EQ(child_process([](int) { return 7; }).wait(), 7);
  EXPECT_EQ(child_process([](int) -> int { throw std::runtime_error("it fails, as the test wants"); }).wait(), 1);
  EXPECT_EQ(child_process([](int) { return ::raise(SIGKILL); }).wait(), -SIGKILL);
}

TEST(child_process, without_a_status_tells_so) {
  ::signal(SIGCHLD, SIG_IGN);
  EXPECT_EQ(child_process([](int) { return 7; }).wait(), child_process::no_status);
  ::signal(SIGCHLD, SIG_DFL);
  EXPECT_EQ(child_process([](int) { return 7; }).wait(), 7);
}

TEST(child_process, in_a_child_has_its_own_socket) {
  child_process const first([](int) { return 0; });
  child_process second([](int) {
    child_process nested([](int socket) { return ::fcntl(socket, F_GETFD) < 0 ? 1 : 5; });
    return nested.wait();
  });
  EXPECT_EQ(second.wait(), 5);
}

// The second child lives on and has neither end of the first one's socket.
TEST(child_process, sees_the_end_of_its_own_socket) {
  child_process first([](int socket) { return static_cast<int>(bytes_until_end(socket)); });
  child_process second([](int socket) { return static_cast<int>(bytes_until_end(socket)); });
  int const to_first = first.socket();
  EXPECT_EQ(::write(to_first, "123", 3), 3);
  ::close(to_first);
  EXPECT_EQ(first.wait(), 3);
  EXPECT_EQ(first.wait(), 3);
  EXPECT_NE(refused([&] { (void)first.socket(); }).find("a second call"), std::string::npos);
  child_process moved = std::move(second);
  EXPECT_NE(refused([&] { (void)second.socket(); }), "");
  // Its destructor closes the socket, which the child waits for.
}

TEST(child_process, is_refused_once_weir_was_used) {
  (void)device_count();
  EXPECT_NE(refused([] { child_process([](int) { return 0; }); }).find("has used weir"), std::string::npos);
}

}  // namespace
}  // namespace weir::child_process_tests
