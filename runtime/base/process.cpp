// The flags behind process.h. Exit handlers run before the destructors of statics made earlier.
// Threads: any.
#include "runtime/base/process.h"

#include <pthread.h>

#include <cstdlib>

#include "runtime/base/os.h"
#include "runtime/base/process_end.h"

namespace weir {
namespace {
constinit base::atomic<bool> ending{false};
constinit base::atomic<bool> watching{false};
constinit base::atomic<void (*)()> run_at_end[2]{};  // null: free

void begin_to_end() {
  ending.store(true);
  if (process_was_forked())
    return;
  for (auto& each : run_at_end)
    if (auto const runs = each.exchange(nullptr))
      runs();
}
}  // namespace

constinit base::atomic<bool> detail::forked{false};
constinit detail::versioned detail::world;

void watch_process() noexcept {
  if (watching.load())
    return;
  os::keep_this_code_loaded();
  std::atexit(begin_to_end);
  std::at_quick_exit([] { ending.store(true); });
  pthread_atfork(nullptr, nullptr, [] {
    detail::forked.store(true);
    invalidate_fast_paths();
  });
  // Set last: who finds it set may make a driver and fork. Two threads may both come here, and a handler that is
  // registered twice does nothing the second time. A lock could stay held in a child that is forked meanwhile.
  watching.store(true);
  // The question registers the process, so it comes early: beside a driver's threads it takes milliseconds.
  (void)base::has_process_wide_fence();
}

bool driver_was_made() noexcept {
  return watching.load();
}

void run_at_process_end(void (*runs)()) noexcept {
  for (auto& each : run_at_end) {
    void (*found)() = nullptr;
    bool const is_entered = each.compare_exchange(found, runs);
    if (is_entered) {
      // Registered again: exit handlers run in reverse order, so that it precedes all that are registered now.
      std::atexit(begin_to_end);
      return;
    }
    if (found == runs)
      return;
  }
}

bool process_is_ending() noexcept {
  return ending.load();
}

}  // namespace weir
