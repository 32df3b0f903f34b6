// For tests of process ends and forks: one owner of every kind, and processes that end with exit status 7.
// Threads: as each test says.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <optional>
#include <thread>
#include <vector>

#include "weir/launch.h"
#include "weir/tensor.h"

#if defined(__SANITIZE_THREAD__)
// By default ThreadSanitizer delays a process end by a second: forty children outlast any alarm.
extern "C" inline __attribute__((used, visibility("default"))) char const* __tsan_default_options() {
  // a process that ends while simulated work hangs, or from inside it, leaves the engines' threads to the system
  return "atexit_sleep_ms=0:report_thread_leaks=0";
}
#endif

namespace weir {

struct belongings {  // one owner of every kind
  std::optional<buffer> block, page, plain;
  tensor t, view;
  std::optional<stream> s;
  std::optional<event> e;
  std::vector<float, pinned_allocator<float>> list;
  std::optional<callback_registration> callback;
  void fill() {
    block.emplace(100'000);
    page = pinned(1000);
    plain.emplace(10, buffer_options{.on = cpu});
    t = ones({100});
    view = t.slice(0, 1, 5);
    s.emplace(device(device_count() - 1));
    e.emplace();
    e->record(*s);
    list.resize(100);
    callback.emplace(on_out_of_memory([](memory_report const&) { return false; }));
  }
  void drop() {
    block.reset(), page.reset(), plain.reset(), s.reset(), e.reset(), callback.reset();
    t = view = {};
    list = {};
  }
};
inline belongings of_program;  // constructed before any runtime, destroyed after weir has seen the process end

inline void sleep_ms(int n) {
  std::this_thread::sleep_for(std::chrono::milliseconds(n));
}

inline void begin() {
  ::alarm(40);
  if (!std::getenv("WEIR_DEVICES"))
    ::setenv("WEIR_DEVICES", "sim:2:1", 1);
}

inline void keep_busy(stream_ref s, int pieces) {
  for (int i = 0; i < pieces; ++i)
    launch_host(s, [] { sleep_ms(5); });
}

struct own_process : testing::Test {
  own_process() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

#define EXPECT_CLEAN_END(statement) \
  EXPECT_EXIT(                      \
      {                             \
        begin();                    \
        statement                   \
      },                            \
      testing::ExitedWithCode(7), "")

}  // namespace weir
