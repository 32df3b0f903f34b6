// System calls with pinned bytes in use, in a program with weir::system_calls. Each works and is reported.
// Threads: one, the machine's, and in one test a second one.
#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "tests/check/programs.h"

extern "C" ssize_t __read_chk(int, void*, size_t, size_t);
extern "C" size_t __fread_unlocked_chk(void*, size_t, size_t, size_t, FILE*);

static constexpr int enough_memory = 1 << 30;
static thread_local int memory_left = enough_memory;  // allocations
void* operator new(std::size_t n) {
  void* const p = memory_left == 0 ? nullptr : std::malloc(n);
  if (!p)
    throw std::bad_alloc();
  memory_left -= memory_left < enough_memory;
  return p;
}
void operator delete(void* p) noexcept {
  std::free(p);
}
void operator delete(void* p, std::size_t) noexcept {
  std::free(p);
}

namespace weir::check_tests {
namespace {

constexpr size_t page = 4096, bytes = 2 * page;

class ends {  // of a pair of datagram sockets
 public:
  ends() { (void)!::socketpair(AF_UNIX, SOCK_DGRAM, 0, of); }
  ~ends() { ::close(of[0]), ::close(of[1]); }
  ends(ends const&) = delete;
  int of[2] = {-1, -1};
};
class full_file {  // of the byte 5
 public:
  full_file() {
    std::string const fives(bytes, 5);
    (void)!::pwrite(is, fives.data(), bytes, 0);
  }
  ~full_file() { ::close(is); }
  full_file(full_file const&) = delete;
  int const is = ::open("/tmp", O_TMPFILE | O_RDWR, 0600);
};

template <class F>
ssize_t on_stream(int file, char const* mode, F call) {
  ::FILE* const f = ::fdopen(::dup(file), mode);
  std::setvbuf(f, nullptr, _IONBF, 0);
  auto const n = static_cast<ssize_t>(call(f));
  std::fclose(f);
  return n;
}
// Two parts: the call meets the second page only in its second part.
struct parts {
  explicit parts(void* p) : of{{p, page}, {static_cast<char*>(p) + page, page}} {
    message.msg_iov = of, message.msg_iovlen = 2;
  }
  msghdr* whole() { return &message; }
  iovec of[2];
  msghdr message{};
};
template <class Call>
ssize_t one_message(void* p, Call call) {
  parts of(p);
  mmsghdr one{*of.whole(), 0};
  return call(&one) == 1 ? static_cast<ssize_t>(one.msg_len) : -1;
}

struct one_call {
  char const* name;
  ssize_t (*make)(int file, int socket, void* p);
};
constexpr one_call filling[] = {
    {"read", [](int f, int, void* p) { return ::read(f, p, bytes); }},
    {"a checked read", [](int f, int, void* p) { return ::__read_chk(f, p, bytes, bytes); }},
    {"pread", [](int f, int, void* p) { return ::pread(f, p, bytes, 0); }},
    {"pread64", [](int f, int, void* p) { return ::pread64(f, p, bytes, 0); }},
    {"readv", [](int f, int, void* p) { return ::readv(f, parts(p).of, 2); }},
    {"preadv", [](int f, int, void* p) { return ::preadv(f, parts(p).of, 2, 0); }},
    {"preadv64", [](int f, int, void* p) { return ::preadv64(f, parts(p).of, 2, 0); }},
    {"preadv2", [](int f, int, void* p) { return ::preadv2(f, parts(p).of, 2, 0, 0); }},
    {"preadv64v2", [](int f, int, void* p) { return ::preadv64v2(f, parts(p).of, 2, 0, 0); }},
    {"recv", [](int, int s, void* p) { return ::recv(s, p, bytes, 0); }},
    {"recvfrom", [](int, int s, void* p) { return ::recvfrom(s, p, bytes, 0, nullptr, nullptr); }},
    {"recvmsg", [](int, int s, void* p) { return ::recvmsg(s, parts(p).whole(), 0); }},
    {"recvmmsg",
     [](int, int s, void* p) { return one_message(p, [s](mmsghdr* m) { return ::recvmmsg(s, m, 1, 0, nullptr); }); }},
    {"fread_unlocked",
     [](int f, int, void* p) { return on_stream(f, "r", [p](FILE* s) { return ::fread_unlocked(p, 1, bytes, s); }); }},
    {"a checked fread_unlocked",
     [](int f, int, void* p) {
       return on_stream(f, "r", [p](FILE* s) { return ::__fread_unlocked_chk(p, bytes, 1, bytes, s); });
     }},
    {"fread",
     [](int f, int, void* p) { return on_stream(f, "r", [p](FILE* s) { return std::fread(p, 1, bytes, s); }); }},
};
constexpr one_call taking[] = {
    {"write", [](int f, int, void* p) { return ::write(f, p, bytes); }},
    {"pwrite", [](int f, int, void* p) { return ::pwrite(f, p, bytes, 0); }},
    {"pwrite64", [](int f, int, void* p) { return ::pwrite64(f, p, bytes, 0); }},
    {"writev", [](int f, int, void* p) { return ::writev(f, parts(p).of, 2); }},
    {"pwritev", [](int f, int, void* p) { return ::pwritev(f, parts(p).of, 2, 0); }},
    {"pwritev64", [](int f, int, void* p) { return ::pwritev64(f, parts(p).of, 2, 0); }},
    {"pwritev2", [](int f, int, void* p) { return ::pwritev2(f, parts(p).of, 2, 0, 0); }},
    {"pwritev64v2", [](int f, int, void* p) { return ::pwritev64v2(f, parts(p).of, 2, 0, 0); }},
    {"send", [](int, int s, void* p) { return ::send(s, p, bytes, 0); }},
    {"sendto", [](int, int s, void* p) { return ::sendto(s, p, bytes, 0, nullptr, 0); }},
    {"sendmsg", [](int, int s, void* p) { return ::sendmsg(s, parts(p).whole(), 0); }},
    {"sendmmsg",
     [](int, int s, void* p) { return one_message(p, [s](mmsghdr* m) { return ::sendmmsg(s, m, 1, 0); }); }},
    {"fwrite_unlocked",
     [](int f, int, void* p) { return on_stream(f, "w", [p](FILE* s) { return ::fwrite_unlocked(p, 1, bytes, s); }); }},
    {"fwrite",
     [](int f, int, void* p) { return on_stream(f, "w", [p](FILE* s) { return std::fwrite(p, 1, bytes, s); }); }},
};

constexpr simulated by_hand_only{.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::stepped};

// A copy uses the second page when the call is made.
void expect_report(one_call const& c, bool copy_writes, char const* words) {
  SCOPED_TRACE(c.name);
  full_file const file;
  ends const pair;
  std::string const fives(bytes, 5);
  ASSERT_EQ(::send(pair.of[1], fives.data(), bytes, 0), ssize_t{bytes});
  auto const all = found_in(by_hand_only, [&] {
    stream const s;
    stream_guard const home(s);
    buffer const host = pinned(bytes), x(page);
    std::memset(host.data(), 3, bytes);
    char* const in_use = host.data<char>() + page;
    fill(s, x.data(), std::byte{7}, page);
    copy(s, copy_writes ? in_use : x.data(), copy_writes ? x.data() : in_use, page, non_blocking);
    EXPECT_EQ(c.make(file.is, pair.of[0], host.data()), ssize_t{bytes}) << std::strerror(errno);
    EXPECT_EQ(races_not_judged(), "");
    s.synchronize();
  });
  expect_one(all, "host too early", {words, "check_system_calls_seen_test+0x"});
}

TEST(system_calls_seen, into_the_source_of_a_copy_are_reported) {
  for (one_call const& c : filling)
    expect_report(c, false, "writes them. The host has not waited");
}
TEST(system_calls_seen, into_the_target_of_a_copy_are_reported) {
  for (one_call const& c : filling)
    expect_report(c, true, "writes them. The host has not waited");
}
TEST(system_calls_seen, from_the_target_of_a_copy_are_reported) {
  for (one_call const& c : taking)
    expect_report(c, true, "reads them. The host has not waited");
}

// Two reads do not clash.
TEST(system_calls_seen, from_the_source_of_a_copy_are_right) {
  full_file const file;
  expect_none(found([&] {
    stream const s;
    stream_guard const home(s);
    buffer const host = pinned(page), x(page);
    std::memset(host.data(), 3, page);
    copy(s, x.data(), host.data(), page, non_blocking);
    EXPECT_EQ(::write(file.is, host.data(), page), ssize_t{page});
    s.synchronize();
    EXPECT_EQ(::pread(file.is, host.data(), page, 0), ssize_t{page});
  }));
}

// Pinned memory whose second page is the target of a copy.
struct half_in_use {
  half_in_use() {
    fill(s, x.data(), std::byte{7}, page);
    copy(s, second, x.data(), page, non_blocking);
  }
  ~half_in_use() { s.synchronize(); }
  half_in_use(half_in_use const&) = delete;
  stream const s;
  stream_guard const home{s};
  buffer const host = pinned(bytes), x{page};
  char* const second = host.data<char>() + page;
};

// Each call is given the second page too, and its message of three bytes ends before it.
TEST(system_calls_seen, use_only_the_bytes_that_they_return) {
  for (one_call const& c : filling) {
    SCOPED_TRACE(c.name);
    expect_none(found_in(by_hand_only, [&] {
      full_file const file;
      ends const pair;
      ASSERT_EQ(::ftruncate(file.is, 3), 0);
      ASSERT_EQ(::send(pair.of[1], "abc", 3, 0), 3);
      half_in_use const its;
      EXPECT_EQ(c.make(file.is, pair.of[0], its.host.data()), 3) << std::strerror(errno);
    }));
  }
}

TEST(system_calls_seen, that_get_nothing_use_nothing) {
  expect_none(found_in(by_hand_only, [] {
    full_file const file;
    ends const pair;
    half_in_use const its;
    EXPECT_EQ(::recv(pair.of[0], its.second, page, MSG_DONTWAIT), -1);
    EXPECT_EQ(errno, EAGAIN);
    EXPECT_EQ(::write(-1, its.second, page), -1);
    EXPECT_EQ(::pread(file.is, its.second, page, bytes), 0);
  }));
}

// The message's last byte is the first one in use.
TEST(system_calls_seen, with_one_byte_in_use_are_reported) {
  for (one_call const& c : filling) {
    SCOPED_TRACE(c.name);
    auto const all = found_in(by_hand_only, [&] {
      full_file const file;
      ends const pair;
      std::string const fives(page + 1, 5);
      ASSERT_EQ(::ftruncate(file.is, page + 1), 0);
      ASSERT_EQ(::send(pair.of[1], fives.data(), page + 1, 0), ssize_t{page + 1});
      half_in_use const its;
      EXPECT_EQ(c.make(file.is, pair.of[0], its.host.data()), ssize_t{page + 1}) << std::strerror(errno);
    });
    expect_one(all, "host too early", {"writes them"});
  }
}

// A message counts with the bytes that it got, not with those of another one.
TEST(system_calls_seen, for_many_messages_use_bytes_of_each) {
  auto const found_after = [](size_t first, size_t second) {
    return found_in(by_hand_only, [=] {
      ends const pair;
      std::string const fives(page, 5);
      ASSERT_EQ(::send(pair.of[1], fives.data(), first, 0), static_cast<ssize_t>(first));
      ASSERT_EQ(::send(pair.of[1], fives.data(), second, 0), static_cast<ssize_t>(second));
      half_in_use const its;
      iovec of[2] = {{its.host.data(), page}, {its.second - 8, page}};
      mmsghdr both[2] = {};
      for (int i : {0, 1})
        both[i].msg_hdr.msg_iov = &of[i], both[i].msg_hdr.msg_iovlen = 1;
      EXPECT_EQ(::recvmmsg(pair.of[0], both, 2, 0, nullptr), 2) << std::strerror(errno);
    });
  };
  expect_none(found_after(page, 8));
  expect_one(found_after(1, 9), "host too early", {"writes them"});
}

// The system gives EFAULT, where a look at the vector would crash.
TEST(system_calls_seen, with_a_bad_vector_fail) {
  (void)found_in(by_hand_only, [] {
    full_file const file;
    ends const pair;
    std::string text(1, 5);
    iovec* const volatile nowhere = reinterpret_cast<iovec*>(16);  // the compiler must not see it
    int const volatile negative = -1, too_many = 1025;
    auto const fails = [](int error, ssize_t n) {
      EXPECT_EQ(n, -1);
      EXPECT_EQ(errno, error);
    };
    fails(EFAULT, ::readv(file.is, nowhere, 1));
    fails(EFAULT, ::writev(file.is, nowhere, 1));
    fails(EFAULT, ::recvmsg(pair.of[0], reinterpret_cast<msghdr*>(nowhere), 0));
    fails(EFAULT, ::sendmmsg(pair.of[0], reinterpret_cast<mmsghdr*>(nowhere), 1, 0));
    msghdr message{};
    message.msg_iov = nowhere, message.msg_iovlen = 1;
    fails(EFAULT, ::sendmsg(pair.of[0], &message, 0));
    iovec one{text.data(), 1};
    fails(EINVAL, ::readv(file.is, &one, negative));
    fails(EINVAL, ::readv(file.is, &one, too_many));
    EXPECT_EQ(::pwritev(file.is, &one, 1, 0), 1);
  });
}

TEST(system_calls_seen, with_a_vector_in_use_are_reported) {
  auto const all = found_in(by_hand_only, [] {
    full_file const file;
    stream const s;
    stream_guard const home(s);
    buffer const host = pinned(page), x(page);
    char five = 5;
    *host.data<iovec>() = {&five, 1};
    copy(s, host.data(), x.data(), page, non_blocking);
    EXPECT_EQ(::writev(file.is, host.data<iovec>(), 1), 1) << std::strerror(errno);
    s.synchronize();
  });
  expect_one(all, "host too early", {"reads them"});
}

// A C function throws nothing. The call fails if its pages stay closed.
TEST(system_calls_seen, throw_nothing_without_memory) {
  full_file const file;
  for (int left = 0; left < 64; ++left) {
    SCOPED_TRACE(left);
    (void)found_in(by_hand_only, [&] {
      half_in_use const its;
      ssize_t n = 0;
      memory_left = left;
      try {
        n = ::pread(file.is, its.second, page, 0);
      } catch (...) {
        n = -2;
      }
      memory_left = enough_memory;
      EXPECT_EQ(n, left == 0 ? -1 : ssize_t{page});
      EXPECT_EQ(::pread(file.is, its.second, page, 0), ssize_t{page});
    });
  }
}

// A callback can neither keep a page closed nor change what the call takes.
TEST(system_calls_seen, are_made_before_their_report) {
  (void)found_in(by_hand_only, [] {
    full_file const file;
    half_in_use const its;
    char at_report = 0;
    on_race([&](race_report const&) { at_report = *its.second; });
    EXPECT_EQ(::pread(file.is, its.second, page, 0), ssize_t{page});
    EXPECT_EQ(at_report, 5);
    on_race({});
  });
}

// Each copy is a use of its own, and all its pages open.
TEST(system_calls_seen, with_bytes_of_two_copies_have_two_reports) {
  full_file const file;
  auto const all = found_without_threads([&] {
    stream const s;
    stream_guard const home(s);
    buffer const host = pinned(bytes), x(bytes);
    fill(s, x.data(), std::byte{7}, bytes);
    copy(s, host.data(), x.data(), bytes, non_blocking);
    copy(s, host.data(), x.data(), bytes, non_blocking);
    EXPECT_EQ(::pread(file.is, host.data(), bytes, 0), ssize_t{bytes});
    s.synchronize();
  });
  EXPECT_EQ(all.size(), 2u) << texts(all);
}

// A stream's own work uses what it declares, and a host function any pinned memory.
TEST(system_calls_seen, of_work_on_a_stream_are_no_use_of_the_host) {
  full_file const file;
  expect_none(found([&] {
    stream const s;
    stream_guard const home(s);
    buffer const host = pinned(bytes), x(bytes);
    fill(s, x.data(), std::byte{7}, bytes);
    copy(s, host.data(), x.data(), bytes, non_blocking);
    launch(s, {updates(host)}, on_gpu, [&] { EXPECT_EQ(::write(file.is, host.data(), bytes), ssize_t{bytes}); });
    launch_host(s, [&] { EXPECT_EQ(::pread(file.is, host.data(), bytes, 0), ssize_t{bytes}); });
    s.synchronize();
  }));
}

// Confined work: the call would meet a page that nothing else uses.
TEST(system_calls_seen, of_work_with_undeclared_bytes_are_reported) {
  full_file const file;
  simulated like = by_hand_only;
  like.schedule = simulated::scheduling::seeded;
  expect_one(found_in(like,
                      [&] {
                        stream const s;
                        buffer const host = pinned(bytes), x(s, page);
                        launch(s, {writes(x)}, on_gpu,
                               [&] { EXPECT_EQ(::read(file.is, host.data(), bytes), ssize_t{bytes}); });
                        s.synchronize();
                      }),
             "undeclared use", {"writes"});
}

// A callback of the report changes it, as a failed call inside could.
TEST(system_calls_seen, keep_errno) {
  (void)found_in(by_hand_only, [] {
    full_file const file;
    int reports = 0;
    on_race([&](race_report const&) { errno = ENOTTY, ++reports; });
    stream const s;
    buffer const host = pinned(page), x(s, page);
    copy(s, host.data(), x.data(), page, non_blocking);
    errno = 0;
    EXPECT_EQ(::write(file.is, host.data(), page), ssize_t{page});
    EXPECT_EQ(errno, 0);
    EXPECT_EQ(reports, 1);
    copy(s, host.data(), x.data(), page, non_blocking);
    EXPECT_EQ(::write(-1, host.data(), page), -1);
    EXPECT_EQ(errno, EBADF);
    EXPECT_EQ(::write(file.is, reinterpret_cast<void*>(page), page), -1);
    EXPECT_EQ(errno, EFAULT);
    s.synchronize();
    on_race({});
  });
}

[[noreturn]] void copy_beside_a_timer() {
  ::alarm(4);  // a thread that waits for its own lock
  std::signal(SIGPROF, [](int) { (void)!::write(-1, "a", 1); });
  itimerval const often{{0, 100}, {0, 100}};
  ::setitimer(ITIMER_PROF, &often, nullptr);
  (void)found_in(by_hand_only, [] {
    stream const s;
    buffer const host = pinned(page), x(s, page);
    for (int i = 0; i < 3000; ++i) {
      copy(s, host.data(), x.data(), page, non_blocking);
      s.synchronize();
    }
  });
  std::_Exit(7);
}
// The handler comes while its thread holds any lock of the checker.
TEST(system_calls_seen, of_a_signal_handler_take_no_lock) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(copy_beside_a_timer(), ::testing::ExitedWithCode(7), "");
}

TEST(system_calls_seen, end_a_thread_that_is_cancelled) {
  expect_none(found_in(by_hand_only, [] {
    struct {
      buffer host = pinned(page);
      int pipe[2] = {-1, -1};
    } its;
    ASSERT_EQ(::pipe(its.pipe), 0);
    pthread_t reader{};
    auto const reads = [](void* p) -> void* {
      auto const& of = *static_cast<decltype(its)*>(p);
      return ::read(of.pipe[0], of.host.data(), page) == 0 ? p : nullptr;
    };
    ASSERT_EQ(::pthread_create(&reader, nullptr, reads, &its), 0);
    void* ended = nullptr;
    ::pthread_cancel(reader);
    EXPECT_EQ(::pthread_join(reader, &ended), 0);
    EXPECT_EQ(ended, PTHREAD_CANCELED);
    ::close(its.pipe[0]), ::close(its.pipe[1]);
  }));
}

// The child has its parent's closed pages, and opens them.
TEST(system_calls_seen, work_in_a_forked_child) {
  full_file const file;
  expect_none(found_in(by_hand_only, [&] {
    stream const s;
    buffer const host = pinned(page), x(s, page);
    copy(s, host.data(), x.data(), page, non_blocking);
    pid_t const child = ::fork();
    if (child == 0)
      std::_Exit(::read(file.is, host.data(), page) == ssize_t{page} ? 0 : 1);
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    s.synchronize();
  }));
}

}  // namespace
}  // namespace weir::check_tests
