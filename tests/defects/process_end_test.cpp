// Ends of processes and forks with everything still in use: nothing hangs, nothing crashes, errors are typed.
// Threads: as each test says. Each end is a process of its own; one that hangs is killed by its alarm.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <thread>
#include <vector>

#include "weir/copy.h"
#include "weir/launch.h"
#include "weir/observe.h"
#include "weir/tensor.h"

namespace weir {
namespace {

struct belongings {  // one of everything that can be held
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
    s.emplace(device(1));
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
belongings of_program;  // made before any runtime, destroyed after its end is known

void sleep_ms(int n) { std::this_thread::sleep_for(std::chrono::milliseconds(n)); }

void begin() {
  ::alarm(20);
  ::setenv("WEIR_DEVICES", "sim:2:1", 1);
}

void keep_busy(stream_ref s, int pieces) {
  for (int i = 0; i < pieces; ++i) launch(s, {}, [](CUstream_st*) {}, [] { sleep_ms(5); });
}

struct at_the_end {  // a destructor that still uses weir
  void (*run)();
  ~at_the_end() { run(); }
};

// Any of weir's calls may be refused at the end; none may crash or hang.
void use_everything() {
  auto const tried = [](auto f) {
    try {
      f();
    } catch (error const&) {
    }
  };
  tried([] { buffer b(1000); });
  tried([] { buffer b = pinned(1000); });
  tried([] { stream s; s.ref().synchronize(); });
  tried([] { (void)zeros({3}).cpu(); });
  tried([] { event e; e.record(); e.synchronize(); });
  tried([] { device_guard g{1}; });
  tried([] { (void)memory_summary(); });
  tried([] { synchronize(); });
  tried([] { (void)empty_cache(); });
  tried([] { of_program.t.fill_(2); });
  tried([] { of_program.drop(); });
}

struct process_end : testing::Test {
  process_end() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

#define EXPECT_CLEAN_END(statement) EXPECT_EXIT({ begin(); statement }, testing::ExitedWithCode(7), "")

TEST_F(process_end, by_exit_with_everything_held_by_statics) {
  EXPECT_CLEAN_END({
    of_program.fill();
    static belongings later;
    later.fill();
    keep_busy(*later.s, 20);
    std::exit(7);
  });
}

TEST_F(process_end, by_quick_exit_with_work_in_flight) {
  EXPECT_CLEAN_END({
    of_program.fill();
    keep_busy(*of_program.s, 20);
    std::quick_exit(7);
  });
}

TEST_F(process_end, by_exit_of_another_thread_while_the_first_waits) {
  EXPECT_CLEAN_END({
    of_program.fill();
    keep_busy(*of_program.s, 100);
    std::thread([] {
      sleep_ms(20);
      std::exit(7);
    }).detach();
    of_program.s->ref().synchronize();
    for (;;) sleep_ms(100);
  });
}

TEST_F(process_end, by_exit_while_other_threads_use_everything) {
  EXPECT_CLEAN_END({
    for (int i = 0; i < 4; ++i) {
      std::thread([] {
        for (;;) {
          try {
            buffer b(5000);
            stream s;
            launch(s, {writes(b)}, [](CUstream_st*) {}, [] {});
            buffer page = pinned(100);
            copy(b.data(), page.data(), 100);
          } catch (error const&) {
            sleep_ms(1);
          }
        }
      }).detach();
    }
    sleep_ms(100);
    std::exit(7);
  });
}

TEST_F(process_end, static_destructors_may_use_the_default_runtime) {
  EXPECT_CLEAN_END({
    static at_the_end before{use_everything};  // destroyed after the end is known
    of_program.fill();
    static at_the_end after{use_everything};
    std::exit(7);
  });
}

TEST_F(process_end, the_first_use_may_be_in_a_static_destructor) {
  EXPECT_CLEAN_END({
    static at_the_end first{use_everything};
    std::exit(7);
  });
}

TEST_F(process_end, static_runtimes_end_before_and_after_what_they_lent) {
  EXPECT_CLEAN_END({
    static belongings before;
    static runtime mine(simulated{.devices = 2, .memory = 64_MiB});
    static belongings after;
    static runtime_guard in(mine);
    before.fill();
    after.fill();
    keep_busy(*after.s, 5);
    std::exit(7);
  });
}

TEST_F(process_end, threads_that_end_late_take_their_own_along) {
  EXPECT_CLEAN_END({
    std::thread([] {
      thread_local belongings mine;
      thread_local std::optional<device_guard> on;
      mine.fill();
      on.emplace(1);
    }).join();
    static thread_local belongings of_main;
    of_main.fill();
    std::exit(7);
  });
}

TEST_F(process_end, an_exception_out_of_a_hosts_function_ends_the_process) {
  for (auto const how : {simulated::running::threads, simulated::running::stepped, simulated::running::seeded}) {
    EXPECT_EXIT({
      ::alarm(20);
      runtime r(simulated{.devices = 1, .memory = 64_MiB, .how = how, .seed = 1});
      runtime_guard in(r);
      try {
        launch(default_stream(), {}, [](CUstream_st*) {}, [] { throw std::runtime_error("mine"); });
        default_stream().synchronize();
      } catch (...) {
        std::_Exit(3);
      }
      std::_Exit(4);
    }, testing::KilledBySignal(SIGABRT), "");
  }
}

int forked_child_uses_everything() {
  int untyped = 0;
  auto const refused = [&](auto f) {
    try {
      f();
      ++untyped;
    } catch (error const& e) {
      if (e.operation().empty() || e.remedy().empty()) ++untyped;
    }
  };
  refused([] { buffer b(1000); });
  refused([] { buffer b = pinned(1000); });
  refused([] { (void)zeros({3}); });
  refused([] { of_program.t.fill_(1); });
  refused([] { (void)of_program.t.cpu(); });
  refused([] { of_program.s->ref().synchronize(); });
  refused([] { synchronize(); });
  refused([] { char c = 0; copy(of_program.block->data(), &c, 1); });
  refused([] { launch(*of_program.s, {}, [](CUstream_st*) {}, [] {}); });
  refused([] { launch_host(*of_program.s, [] {}); });
  refused([] { event e; e.record(*of_program.s); });
  refused([] { stream a, b, c, d; });
  try {
    device_guard g{0};
    (void)memory_allocated();
    of_program.block.reset();
    of_program.drop();
  } catch (error const&) {
  }
  return untyped;
}

TEST_F(process_end, a_fork_after_use_refuses_the_child_everything_and_it_ends_cleanly) {
  EXPECT_CLEAN_END({
    of_program.fill();
    keep_busy(*of_program.s, 10);
    pid_t const child = ::fork();
    if (child == 0) {
      ::alarm(10);
      std::exit(forked_child_uses_everything() == 0 ? 0 : 1);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    if (!WIFEXITED(status)) std::_Exit(1);
    if (WEXITSTATUS(status) != 0) std::_Exit(2);
    of_program.s->ref().synchronize();  // the parent works on
    buffer b(1000);
    if (of_program.t.cpu().data<float>()[0] != 1) std::_Exit(3);
    std::exit(7);
  });
}

TEST_F(process_end, a_fork_in_the_middle_of_other_threads_calls_does_not_hang_the_child) {
  EXPECT_CLEAN_END({
    of_program.fill();
    for (int i = 0; i < 3; ++i) {
      std::thread([] {
        for (;;) {
          buffer b(5000);
          buffer page = pinned(100);
          copy(b.data(), page.data(), 100);
          of_program.t.record_stream(*of_program.s);
          (void)memory_stats();
        }
      }).detach();
    }
    for (int i = 0; i < 40; ++i) {
      sleep_ms(3);
      pid_t const child = ::fork();
      if (child == 0) {
        ::alarm(4);
        std::exit(forked_child_uses_everything() == 0 ? 0 : 1);
      }
      int status = -1;
      ::waitpid(child, &status, 0);
      if (WIFSIGNALED(status)) std::_Exit(WTERMSIG(status) == SIGALRM ? 1 : 2);
      if (WEXITSTATUS(status) != 0) std::_Exit(3);
    }
    std::_Exit(7);
  });
}

}  // namespace
}  // namespace weir
