// Around the code of docs/reference/sharing.md: one process, and another.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "weir/copy.h"
#include "weir/share.h"

using namespace weir::literals;

namespace {

void fill(weir::stream_ref s, float* to) {
  weir::fill(s, to, std::byte{1}, 4096);
}

bool right = false;
void use(weir::stream_ref s, float const* from) {
  unsigned char byte = 0;
  weir::copy(s, &byte, from, 1);
  right = byte == 1;
}

void one(int socket) {
  weir::stream const stream;
#include <sharing.1>
  (void)line.wait();
}

void the_other(int socket) {
  weir::stream const stream;
#include <sharing.2>
  line.signal(1, stream);
}

}  // namespace

int main() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    return 2;
  pid_t const child = fork();  // before the first use of weir
  close(ends[child == 0 ? 0 : 1]);
  if (child == 0) {
    the_other(ends[1]);
    return right ? 0 : 1;
  }
  one(ends[0]);
  int status = 0;
  return waitpid(child, &status, 0) == child && status == 0 ? 0 : 1;
}
