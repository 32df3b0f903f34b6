// The crowd's time, and its beginning and end.
// Threads: as crowd.h.
#include "tests/stress/crowd.h"

#include <cstdio>
#include <cstdlib>
#include <utility>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace weir::tests {

std::chrono::nanoseconds stress_time() {
  double seconds = 0.5;
  if (char const* const text = std::getenv("WEIR_STRESS_SECONDS"); text && *text) {
    char* end = nullptr;
    seconds = std::strtod(text, &end);
    if (*end || !(seconds > 0 && seconds < 1e6)) {
      std::fprintf(stderr, "WEIR_STRESS_SECONDS %s is no number of seconds\n", text);
      std::exit(2);
    }
  }
  return std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
}

void pause(std::chrono::nanoseconds time) noexcept {
  auto const end = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < end) {}
}

void hold_back_writes() noexcept {
#if defined(__SSE2__)
  alignas(64) thread_local unsigned volatile far[16];
  _mm_clflush(const_cast<unsigned*>(far));
  far[0] = 1;
#endif
}

void crowd::fail(std::string what) {
  std::lock_guard const hold(lock_);
  over_.store(true, std::memory_order_relaxed);
  if (std::exchange(failed_, true))
    return;
  wrong_ = std::move(what);
  changed_.notify_all();
}

std::string crowd::run() {
  std::vector<std::thread> threads;
  for (std::size_t k = 0; k < members_.size(); ++k) {
    threads.emplace_back([this, k] {
      random mine(static_cast<random::result_type>(seed_ * 1000 + k + 1));
      {
        std::unique_lock hold(lock_);
        ++there_;
        changed_.notify_all();
        changed_.wait(hold, [&] { return there_ == members_.size(); });
      }
      try {
        members_[k](mine);
      } catch (std::exception const& e) {
        fail(e.what());
      }
      std::lock_guard const hold(lock_);
      ++gone_;
      changed_.notify_all();
    });
  }
  {
    std::unique_lock hold(lock_);
    changed_.wait_for(hold, time_, [&] { return failed_ || gone_ == members_.size(); });
  }
  over_.store(true, std::memory_order_relaxed);
  for (std::thread& t : threads)
    t.join();
  return wrong_;
}

}  // namespace weir::tests
