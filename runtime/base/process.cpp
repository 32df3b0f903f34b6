// The flags behind process.h. The exit handler runs before the destructors of statics made earlier.
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
constinit base::atomic<void (*)()> runs_first{nullptr};

void begin_to_end() {
  ending.store(true);
  if (auto const first = runs_first.load(); first && !process_was_forked())
    first();
}
}  // namespace

constinit base::atomic<bool> detail::forked{false};
constinit detail::versioned detail::world;

void watch_process() noexcept {
  if (watching.exchange(true))
    return;
  os::keep_this_code_loaded();
  std::atexit(begin_to_end);
  std::at_quick_exit([] { ending.store(true); });
  pthread_atfork(nullptr, nullptr, [] {
    detail::forked.store(true);
    invalidate_fast_paths();
  });
  // Registers early: in a process with threads, such as a driver's, the system takes milliseconds to answer.
  (void)base::has_process_wide_fence();
}

void run_at_process_end(void (*first)()) noexcept {
  runs_first.store(first);
}

bool process_is_ending() noexcept {
  return ending.load(base::memory_order_relaxed);
}

}  // namespace weir
