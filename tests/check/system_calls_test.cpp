// System calls with pinned bytes while the checker guards pages. The system gives no signal before it refuses a page.
// Threads: one, and in one test a second one; the machine's besides.
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/check/programs.h"

namespace weir::check_tests {
namespace {

constexpr size_t page = 4096;

class files {  // that take bytes, and give some
 public:
  bool take(void const* from, size_t bytes) const { return ::write(file_, from, bytes) == static_cast<ssize_t>(bytes); }
  bool give(void* to, size_t bytes) const { return ::read(zero_, to, bytes) == static_cast<ssize_t>(bytes); }
  ~files() { ::close(file_), ::close(zero_); }

 private:
  // not /dev/null, which looks at no bytes
  int const file_ = ::open("/tmp", O_TMPFILE | O_RDWR, 0600), zero_ = ::open("/dev/zero", O_RDONLY);
};

void copied_to(stream const& s, buffer const& pinned, size_t at, size_t bytes) {
  buffer const x(bytes);
  fill(s, x.data(), std::byte{7}, bytes);
  copy(s, pinned.data<char>() + at, x.data(), bytes, non_blocking);
}
void copied_from(stream const& s, buffer const& pinned, size_t at, size_t bytes) {
  buffer const x(bytes);
  copy(s, x.data(), pinned.data<char>() + at, bytes, non_blocking);
}

// The copy uses a part of the page, or of the first and the last one; the call the bytes beside it.
TEST(system_calls, use_other_bytes_of_a_page_in_use) {
  files const f;
  for (auto const in_use : {copied_to, copied_from}) {
    for (auto const& [at, bytes] : {std::pair<size_t, size_t>{0, 1000}, {3000, 1096}, {100, 3 * page}, {page, 10}}) {
      expect_none(found([&, at = at, bytes = bytes] {
        stream const s;
        stream_guard const home(s);
        buffer const whole = pinned(5 * page);
        char* const first = whole.data<char>();
        in_use(s, whole, at, bytes);
        EXPECT_TRUE(f.take(first, at) && f.give(first, at)) << at << ", " << bytes;
        size_t const after = at + bytes, left = 5 * page - after;
        EXPECT_TRUE(f.take(first + after, left) && f.give(first + after, left)) << at << ", " << bytes;
        s.synchronize();
      }));
    }
  }
}

// Small blocks share a page: some were there before the copy, one comes after it.
TEST(system_calls, use_blocks_beside_one_in_use) {
  files const f;
  for (auto const in_use : {copied_to, copied_from}) {
    expect_none(found([&] {
      stream const s;
      stream_guard const home(s);
      buffer const before = pinned(64), one = pinned(64), beside = pinned(64);
      in_use(s, one, 0, 64);
      buffer const after = pinned(64);
      for (buffer const* b : {&before, &beside, &after})
        EXPECT_TRUE(f.take(b->data(), 64) && f.give(b->data(), 64));
      s.synchronize();
    }));
    expect_none(found([&] {
      stream const s;
      stream_guard const home(s);
      buffer const one = pinned(64);
      in_use(s, one, 0, 64);
      buffer const after = pinned(64);
      EXPECT_TRUE(f.take(after.data(), 64) && f.give(after.data(), 64));
      s.synchronize();
    }));
  }
}

// The program's mistake: it has not waited. On a GPU the call would take any bytes. Without the library that knows
// system calls, "no error found" says that they are not seen, once a page was closed.
TEST(system_calls, with_the_bytes_in_use_are_refused) {
  files const f;
  (void)found_without_threads([&] {
    stream const s;
    stream_guard const home(s);
    buffer const whole = pinned(page);
    EXPECT_EQ(races_not_judged(), "");
    copied_to(s, whole, 0, page);
    EXPECT_EQ(races_not_judged(),
              "Not judged: system calls with pinned bytes in use, which fail with EFAULT (remedy: link "
              "weir::system_calls, or set LD_PRELOAD=libweir_system_calls.so)");
    EXPECT_FALSE(f.take(whole.data(), page));
    EXPECT_EQ(errno, EFAULT);
    s.synchronize();
    EXPECT_TRUE(f.take(whole.data(), page));
  });
}

#ifdef WEIR_SYSTEM_CALLS
// A plugin brings the library: its functions come after the system's, which the program calls.
[[noreturn]] void copy_with_the_library_too_late() {
  if (!::dlopen(WEIR_SYSTEM_CALLS, RTLD_NOW | RTLD_GLOBAL))
    std::_Exit(1);
  std::string not_judged;
  (void)found_without_threads([&] {
    stream const s;
    stream_guard const home(s);
    copied_to(s, pinned(page), 0, page);
    not_judged = races_not_judged();
    s.synchronize();
  });
  std::_Exit(not_judged.find("system calls") == std::string::npos ? 2 : 7);
}
TEST(system_calls, that_the_library_does_not_get_are_not_judged) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(copy_with_the_library_too_late(), ::testing::ExitedWithCode(7), "");
}
#endif

// Work of one thread runs, and another thread reads into pinned bytes of its own. No page is closed to it.
TEST(system_calls, use_pinned_bytes_beside_work_of_another_thread) {
  simulated const like{.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::seeded, .seed = 3};
  expect_none(found_in(like, [] {
    stream const s;
    buffer const x(s, page), mine = pinned(page);
    std::atomic<bool> comes = false, over = false;
    int refused = 0;
    std::thread other([&, &machine = runtime::current()] {
      runtime_guard const in(machine);
      files const f;
      s.synchronize();
      comes = true;
      while (!over)
        refused += !f.give(mine.data(), page);
    });
    while (!comes)
      std::this_thread::yield();
    for (int i = 0; i < 2000; ++i) {
      write(s, x.data(), page);
      s.synchronize();
    }
    over = true;
    other.join();
    EXPECT_EQ(refused, 0);
  }));
}

}  // namespace
}  // namespace weir::check_tests
