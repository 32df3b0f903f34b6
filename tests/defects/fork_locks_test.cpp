// A fork while another thread holds a lock that the child would take. The child never waits for it.
// Threads: as each test says. A child that hangs is killed by its alarm.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "runtime/base/process.h"
#include "runtime/core/log.h"
#include "tests/defects/belongings.h"
#include "weir/copy.h"
#include "weir/observe.h"
#include "weir/timeline.h"

namespace weir {
namespace {

struct fork_locks : own_process {};

// Forks `n` times and plays `child` in each. Returns: how many did not end with 0
template <class F>
int forks_that_fail(int n, F child) {
  int failed = 0;
  for (int i = 0; i < n; ++i) {
    pid_t const id = ::fork();
    if (id == 0) {
      ::alarm(4);
      child();
      std::_Exit(0);
    }
    int status = -1;
    bool const has_ended = ::waitpid(id, &status, 0) == id && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    failed += !has_ended;
  }
  return failed;
}

// The child frees more blocks than its log has room for, while a thread of the parent reads the history.
TEST_F(fork_locks, of_the_history_hold_no_child_up) {
  EXPECT_CLEAN_END({
    constexpr std::size_t events = 50'000;
    record_memory_history({.events = events});
    for (std::size_t i = 0; i < events / 2; ++i)
      buffer const b(500);
    std::vector<void*> blocks;
    for (int i = 0; i < 600; ++i)
      blocks.push_back(buffer(500).release());
    std::thread([] {
      for (;;)
        (void)memory_history(0);
    }).detach();
    int const failed = forks_that_fail(10, [&] {
      for (void* const b : blocks)
        deallocate(b);
      stop_memory_history();
      for (auto const starts : {+[] { record_memory_history(); }, +[] { record_timeline(); }}) {
        try {
          starts();
          std::_Exit(1);
        } catch (not_supported const&) {}
      }
    });
    std::_Exit(failed == 0 ? 7 : 1);
  });
}

// Of two threads that begin to watch, one may come while the other's handlers are not registered yet.
TEST_F(fork_locks, a_fork_is_seen_once_the_process_is_watched) {
  EXPECT_CLEAN_END({
    int const failed = forks_that_fail(30, [] {
      std::atomic<int> ready{0};
      auto const watches_and_forks = [&] {
        ready.fetch_add(1);
        while (ready.load() < 2) {}
        watch_process();
        return forks_that_fail(1, [] {
          if (!process_was_forked())
            std::_Exit(1);
        });
      };
      std::atomic<int> unseen{0};
      std::thread another([&] { unseen += watches_and_forks(); });
      unseen += watches_and_forks();
      another.join();
      if (unseen)
        std::_Exit(1);
    });
    std::_Exit(failed == 0 ? 7 : 1);
  });
}

TEST_F(fork_locks, of_log_lines_hold_no_child_up) {
  EXPECT_CLEAN_END({
    of_program.fill();
    std::thread([] {
      for (;;)
        on_log([](log_line const&) {});
    }).detach();
    int const failed = forks_that_fail(300, [] {
      log(log_level::warning, {}, "from a child");
      try {
        on_log({});
      } catch (not_supported const&) {
        return;
      }
      std::_Exit(1);
    });
    std::_Exit(failed == 0 ? 7 : 1);
  });
}

// A page under a copy is closed to the host, and the child that meets it opens it.
TEST_F(fork_locks, of_guarded_pages_hold_no_child_up) {
  EXPECT_CLEAN_END({
    auto* const own = new runtime(simulated{.protect_memory = true}, {.check_races = true});
    runtime_guard const in(*own);
    buffer const host = pinned(4096);
    std::memset(host.data(), 1, host.size());
    for (int i = 0; i < 3; ++i) {
      std::thread([&] {
        runtime_guard const here(*own);
        stream const s;
        buffer const block(s, host.size());
        fill(s, block.data(), std::byte{1}, block.size());
        for (;;)
          copy(s, host.data(), block.data(), host.size(), non_blocking);
      }).detach();
    }
    int const failed = forks_that_fail(300, [&] {
      auto volatile const* const byte = host.data<unsigned char>();
      if (*byte != 1)
        std::_Exit(1);
    });
    std::_Exit(failed == 0 ? 7 : 1);
  });
}

// The child's exit handlers are those of the CBLAS, too.
TEST_F(fork_locks, of_products_hold_no_exit_of_a_child_up) {
  EXPECT_CLEAN_END({
    for (int i = 0; i < 4; ++i) {
      std::thread([] {
        tensor const a = ones({2, 2}, {.on = cpu});
        tensor product = empty({2, 2}, {.on = cpu});
        for (;;)
          matmul_out(product, a, a);
      }).detach();
    }
    sleep_ms(20);
    int const failed = forks_that_fail(100, [] {
      ::alarm(1);
      std::exit(0);
    });
    std::_Exit(failed == 0 ? 7 : 1);
  });
}

}  // namespace
}  // namespace weir
