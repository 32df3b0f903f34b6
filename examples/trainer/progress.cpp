// Draws the bar.
// Threads: one.
#include "progress.h"

#include <unistd.h>

#include <cstdio>
#include <string>

namespace trainer {

progress::progress(std::int64_t steps)
    : steps_(steps), terminal_(isatty(STDOUT_FILENO) != 0), start_(std::chrono::steady_clock::now()) {}

void progress::show(std::int64_t step, double characters) {
  auto const now = std::chrono::steady_clock::now();
  double const seconds = std::chrono::duration<double>(now - start_).count();
  double const speed = seconds > 0 ? characters / seconds : 0;
  if (!terminal_) {
    if (step < next_line_)
      return;
    next_line_ = step + (steps_ + 9) / 10;
    std::printf("step %6lld of %lld   %.0f characters/s\n", static_cast<long long>(step),
                static_cast<long long>(steps_), speed);
    std::fflush(stdout);
    return;
  }
  if (step < steps_ && now - drawn_ < std::chrono::milliseconds(100))
    return;
  drawn_ = now;
  constexpr int width = 30;
  int const full = steps_ ? static_cast<int>(step * width / steps_) : width;
  std::string bar;
  for (int i = 0; i < width; ++i)
    bar += i < full ? "█" : "░";
  double const left = step > 0 ? seconds * static_cast<double>(steps_ - step) / static_cast<double>(step) : 0;
  std::printf("\r%s %3lld%%  %.0f characters/s  %.0f s left \033[K", bar.c_str(),
              static_cast<long long>(steps_ ? step * 100 / steps_ : 100), speed, left);
  std::fflush(stdout);
}

void progress::end() {
  if (terminal_)
    std::printf("\n");
}

}  // namespace trainer
