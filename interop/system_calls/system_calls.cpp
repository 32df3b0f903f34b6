// libweir_system_calls.so: tells weir's race checker which bytes a system call may use, before it is made. A page that
// the checker has closed makes the system refuse the call without a signal. The call then counts as a use of the bytes
// that it returns.
// Threads: any, in signal handlers too. A call is made even if its thread is cancelled in it: no function here is
// noexcept, and none holds a lock.
// Invariant: errno is the call's.
#include <dlfcn.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>

#include "runtime/base/os_call_watch.h"

#define WEIR_EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

using weir::os::call_watcher;
constinit std::atomic<call_watcher*> watchers{nullptr};

// A bad address is refused, and is no fault. Keeps errno.
bool copy(void const* from, size_t bytes, void* to) {
  int const before = errno;
  iovec const here{to, bytes}, there{const_cast<void*>(from), bytes};
  bool const all = ::process_vm_readv(::getpid(), &here, 1, &there, 1, 0) == static_cast<ssize_t>(bytes);
  errno = before;
  return all;
}

constexpr bool fills = true, takes = false;  // the bytes
class call {
 public:
  explicit call(void const* returns_to) : code_(static_cast<char const*>(returns_to) - 1) {}
  void has_returned(ssize_t n) { is_over_ = true, left_ = n < 0 ? 0 : static_cast<size_t>(n); }
  void uses(bool writes, void const* at, size_t bytes) {
    bytes = std::min(bytes, left_), left_ -= bytes;
    tell(writes, at, bytes);
  }
  void uses(bool writes, void const* at, size_t size, size_t count) {
    left_ = product(left_, size);
    uses(writes, at, product(size, count));
  }
  void uses(bool writes, iovec const* parts, size_t count) {
    constexpr size_t most = 1024, at_once = 16;  // a signal handler has a small stack
    // The system refuses more, and a negative number.
    if (count > most)
      return;
    for (size_t done = 0, n = 0; done < count; done += n) {
      iovec some[at_once];
      n = std::min(count - done, at_once);
      if (!copied(parts + done, n, some))
        return;
      for (size_t i = 0; i < n; ++i)
        uses(writes, some[i].iov_base, some[i].iov_len);
    }
  }
  void uses(bool writes, msghdr const* message) {
    msghdr is;
    if (copied(message, 1, &is))
      uses(writes, is.msg_iov, is.msg_iovlen);
  }
  void uses(bool writes, mmsghdr const* messages, unsigned count) {
    size_t const n = std::min<size_t>(count, left_);
    for (size_t i = 0; i < n; ++i) {
      mmsghdr is;
      left_ = unknown;
      if (!copied(messages + i, 1, &is))
        return;
      // The call returned a number of messages, and each message has its bytes.
      if (is_over_)
        left_ = is.msg_len;
      uses(writes, is.msg_hdr.msg_iov, is.msg_hdr.msg_iovlen);
    }
  }

 private:
  void tell(bool writes, void const* at, size_t bytes) const {
    int const before = errno;
    for (call_watcher* w = watchers.load(std::memory_order_acquire); w && at && bytes; w = w->next)
      is_over_ ? w->has_used(at, bytes, writes, code_) : w->may_use(at, bytes, writes);
    errno = before;
  }
  // False: the system refuses the address to the call too.
  template <class T>
  bool copied(T const* from, size_t n, T* to) const {
    // A call that returned nothing has perhaps not looked there.
    if (left_ == 0)
      return false;
    tell(takes, from, n * sizeof(T));
    return copy(from, n * sizeof(T), to);
  }
  static size_t product(size_t a, size_t b) {
    size_t bytes = 0;
    return __builtin_mul_overflow(a, b, &bytes) ? unknown : bytes;
  }
  static constexpr size_t unknown = ~size_t{0};  // no call can use more
  void const* const code_;
  bool is_over_ = false;
  size_t left_ = unknown;  // of what it returned
};

// The function that the program would call without this library.
template <class F>
class next_one {
 public:
  constexpr explicit next_one(char const* name) : name_(name) {}
  F* find() {
    F* found = found_.load(std::memory_order_relaxed);
    // A constructor of another library may call before the one below has run.
    if (!found)
      found_.store(found = reinterpret_cast<F*>(::dlsym(RTLD_NEXT, name_)), std::memory_order_relaxed);
    return found;
  }

 private:
  char const* const name_;
  std::atomic<F*> found_{nullptr};
};

// Whether the program's calls come here. If a plugin brought this library, they go to the system's own functions.
bool comes_first() {
  void* const program = ::dlopen(nullptr, RTLD_LAZY);
  Dl_info of_program{}, mine{};
  return program && ::dladdr(::dlsym(program, "read"), &of_program) && ::dladdr(&watchers, &mine) &&
         of_program.dli_fbase == mine.dli_fbase;
}

}  // namespace

WEIR_EXPORTED bool weir_watch_system_calls(call_watcher* w) {
  w->next = watchers.load();
  while (!watchers.compare_exchange_weak(w->next, w)) {}
  char const probe = 0;
  char copied = 0;
  return comes_first() && copy(&probe, 1, &copied);  // a sandbox may refuse to look at vectors
}

// X(result, name, parameters, arguments, bytes)
#define WEIR_CALLS(X)                                                                                                  \
  X(ssize_t, read, (int f, void* p, size_t n), (f, p, n), (fills, p, n))                                               \
  X(ssize_t, write, (int f, void const* p, size_t n), (f, p, n), (takes, p, n))                                        \
  X(ssize_t, pread, (int f, void* p, size_t n, off_t at), (f, p, n, at), (fills, p, n))                                \
  X(ssize_t, pread64, (int f, void* p, size_t n, off64_t at), (f, p, n, at), (fills, p, n))                            \
  X(ssize_t, pwrite, (int f, void const* p, size_t n, off_t at), (f, p, n, at), (takes, p, n))                         \
  X(ssize_t, pwrite64, (int f, void const* p, size_t n, off64_t at), (f, p, n, at), (takes, p, n))                     \
  X(ssize_t, readv, (int f, iovec const* v, int n), (f, v, n), (fills, v, n))                                          \
  X(ssize_t, writev, (int f, iovec const* v, int n), (f, v, n), (takes, v, n))                                         \
  X(ssize_t, preadv, (int f, iovec const* v, int n, off_t at), (f, v, n, at), (fills, v, n))                           \
  X(ssize_t, preadv64, (int f, iovec const* v, int n, off64_t at), (f, v, n, at), (fills, v, n))                       \
  X(ssize_t, pwritev, (int f, iovec const* v, int n, off_t at), (f, v, n, at), (takes, v, n))                          \
  X(ssize_t, pwritev64, (int f, iovec const* v, int n, off64_t at), (f, v, n, at), (takes, v, n))                      \
  X(ssize_t, preadv2, (int f, iovec const* v, int n, off_t at, int how), (f, v, n, at, how), (fills, v, n))            \
  X(ssize_t, preadv64v2, (int f, iovec const* v, int n, off64_t at, int how), (f, v, n, at, how), (fills, v, n))       \
  X(ssize_t, pwritev2, (int f, iovec const* v, int n, off_t at, int how), (f, v, n, at, how), (takes, v, n))           \
  X(ssize_t, pwritev64v2, (int f, iovec const* v, int n, off64_t at, int how), (f, v, n, at, how), (takes, v, n))      \
  X(ssize_t, recv, (int f, void* p, size_t n, int how), (f, p, n, how), (fills, p, n))                                 \
  X(ssize_t, recvfrom, (int f, void* p, size_t n, int how, sockaddr* from, socklen_t* m), (f, p, n, how, from, m),     \
    (fills, p, n))                                                                                                     \
  X(ssize_t, recvmsg, (int f, msghdr* m, int how), (f, m, how), (fills, m))                                            \
  X(ssize_t, send, (int f, void const* p, size_t n, int how), (f, p, n, how), (takes, p, n))                           \
  X(ssize_t, sendto, (int f, void const* p, size_t n, int how, sockaddr const* to, socklen_t m),                       \
    (f, p, n, how, to, m), (takes, p, n))                                                                              \
  X(ssize_t, sendmsg, (int f, msghdr const* m, int how), (f, m, how), (takes, m))                                      \
  X(int, recvmmsg, (int f, mmsghdr* m, unsigned n, int how, timespec* most), (f, m, n, how, most), (fills, m, n))      \
  X(int, sendmmsg, (int f, mmsghdr* m, unsigned n, int how), (f, m, n, how), (takes, m, n))                            \
  X(size_t, fread, (void* p, size_t n, size_t count, FILE* f), (p, n, count, f), (fills, p, n, count))                 \
  X(size_t, fwrite, (void const* p, size_t n, size_t count, FILE* f), (p, n, count, f), (takes, p, n, count))          \
  X(size_t, fread_unlocked, (void* p, size_t n, size_t count, FILE* f), (p, n, count, f), (fills, p, n, count))        \
  X(size_t, fwrite_unlocked, (void const* p, size_t n, size_t count, FILE* f), (p, n, count, f), (takes, p, n, count)) \
  /* what -D_FORTIFY_SOURCE makes of some; whole: all bytes behind p */                                                \
  X(ssize_t, __read_chk, (int f, void* p, size_t n, size_t whole), (f, p, n, whole), (fills, p, n))                    \
  X(ssize_t, __pread_chk, (int f, void* p, size_t n, off_t at, size_t whole), (f, p, n, at, whole), (fills, p, n))     \
  X(ssize_t, __pread64_chk, (int f, void* p, size_t n, off64_t at, size_t whole), (f, p, n, at, whole), (fills, p, n)) \
  X(ssize_t, __recv_chk, (int f, void* p, size_t n, size_t whole, int how), (f, p, n, whole, how), (fills, p, n))      \
  X(ssize_t, __recvfrom_chk, (int f, void* p, size_t n, size_t whole, int how, sockaddr* from, socklen_t* m),          \
    (f, p, n, whole, how, from, m), (fills, p, n))                                                                     \
  X(size_t, __fread_chk, (void* p, size_t whole, size_t n, size_t count, FILE* f), (p, whole, n, count, f),            \
    (fills, p, n, count))                                                                                              \
  X(size_t, __fread_unlocked_chk, (void* p, size_t whole, size_t n, size_t count, FILE* f), (p, whole, n, count, f),   \
    (fills, p, n, count))

#define WEIR_CALL(result, name, parameters, arguments, bytes)             \
  static constinit next_one<result parameters> next_##name{#name};        \
  WEIR_EXPORTED result name parameters {                                  \
    if (!watchers.load(std::memory_order_relaxed)) [[likely]]             \
      return next_##name.find() arguments;                                \
    call its(__builtin_extract_return_addr(__builtin_return_address(0))); \
    its.uses bytes;                                                       \
    result const returned = next_##name.find() arguments;                 \
    its.has_returned(static_cast<ssize_t>(returned));                     \
    its.uses bytes;                                                       \
    return returned;                                                      \
  }
WEIR_CALLS(WEIR_CALL)

// Early: later the search may take a lock of the loader, which a signal handler must not.
__attribute__((constructor(101))) static void find_all() {
#define WEIR_FIND(result, name, parameters, arguments, bytes) next_##name.find();
  WEIR_CALLS(WEIR_FIND)
}
