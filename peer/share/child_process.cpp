// A forked process and the socket to it.
// Threads: as weir/share.h.
#include <algorithm>
#include <exception>
#include <system_error>

#include "runtime/base/lasting.h"
#include "runtime/base/os_fork.h"
#include "runtime/base/os_socket.h"
#include "runtime/base/process.h"
#include "runtime/base/text.h"
#include "weir/share.h"

namespace weir {
namespace {

// This process's ends that socket() has not handed out. A child closes them: otherwise the other children would not
// see that this process has ended.
base::guarded<std::vector<int>>& own_ends() {
  static base::lasting<base::guarded<std::vector<int>>> all;
  return *all;
}

int status_of(std::function<int(int)> const& body, int socket) noexcept {
  try {
    return body(socket);
  } catch (std::exception const& e) {
    os::print_error(e.what());
    os::print_error("\n");
  } catch (...) {
    os::print_error("a child process threw what is no std::exception\n");
  }
  return 1;
}

}  // namespace

child_process::child_process(std::function<int(int)> const& body, source_location at) {
  if (driver_was_made())
    throw invalid_use("child_process", "this process has used weir, and its child could not",
                      "Make all child processes before the first use of weir", at, error_id{608});
  auto const [here, there] = os::make_sockets();
  os::owned_file mine(here), theirs(there);
  if (!mine.is_open())
    throw std::system_error(errno, std::generic_category(), "child_process: a pair of sockets is refused");
  {
    auto ends = own_ends().lock();
    ends->push_back(here);
    child_ = os::fork_child();
    if (child_ == 0) {
      std::ranges::for_each(*ends, os::close_file);
      ends->clear();  // the numbers are free: a child_process in the body gets them again
    }
    if (child_ < 0)
      ends->pop_back();
  }
  if (child_ < 0)
    throw std::system_error(errno, std::generic_category(), "child_process: a process is refused");
  if (child_ == 0) {
    mine.release();  // closed above
    os::exit_process(status_of(body, theirs.release()));
  }
  socket_ = mine.release();
}

child_process::child_process(child_process&& other) noexcept
    : child_(std::exchange(other.child_, -1)), socket_(std::exchange(other.socket_, -1)), status_(other.status_) {}

child_process::~child_process() {
  if (process_was_forked())
    return;
  if (socket_ >= 0)
    os::close_file(take());
  if (child_ > 0)
    (void)os::status_of_child(child_);
}

int child_process::take() noexcept {
  std::erase(*own_ends().lock(), socket_);
  return std::exchange(socket_, -1);
}

int child_process::socket(source_location at) {
  if (socket_ < 0)
    throw invalid_use("child_process::socket", "a second call, or a child that was moved from",
                      "Keep the socket: its new owner closes it", at, error_id{609});
  return take();
}

int child_process::wait() noexcept {
  if (child_ > 0)
    status_ = os::status_of_child(std::exchange(child_, -1)).value_or(no_status);
  return status_;
}

}  // namespace weir
