// Draws which stages overlapped: a row per stage, a column per time step, the last digit of the active batch.
#include <algorithm>
#include <cstdio>

#include "examples/pipeline/pipeline.h"

namespace pipeline {

// Shows a few batches of the middle: the first ones fill the pipeline, and the last ones drain it.
std::string picture(std::vector<span> const& all, int columns) {
  if (all.empty())
    return "";
  int last = 0;
  for (span const& s : all)
    last = std::max(last, s.batch);
  int const first_shown = last / 3, last_shown = std::min(last, first_shown + std::clamp(last / 3, 3, 9));
  double from = 1e300, to = 0;
  for (span const& s : all) {
    if (s.batch < first_shown || s.batch > last_shown)
      continue;
    from = std::min(from, s.from), to = std::max(to, s.to);
  }
  double const step = std::max(to - from, 1e-6) / columns;
  static constexpr char const* names[] = {"read", "copy in", "work", "copy out", "write"};
  std::string text;
  for (int row = 0; row < 5; ++row) {
    std::string line(static_cast<std::size_t>(columns), '.');
    for (span const& s : all) {
      if (static_cast<int>(s.what) != row || s.to < from || s.from > to)
        continue;
      int const a = std::clamp(static_cast<int>((s.from - from) / step), 0, columns - 1);
      int const b = std::clamp(static_cast<int>((s.to - from) / step), a, columns - 1);
      for (int i = a; i <= b; ++i)
        line[static_cast<std::size_t>(i)] = static_cast<char>('0' + s.batch % 10);
    }
    char name[16];
    std::snprintf(name, sizeof name, "%-9s", names[row]);
    text += name + line + "\n";
  }
  char scale[96];
  std::snprintf(scale, sizeof scale, "%9s%.1f to %.1f ms, batches %d to %d by their last digit\n", "", from, to,
                first_shown, last_shown);
  return text + scale;
}

double at_a_time(std::vector<span> const& all) {
  if (all.empty())
    return 0;
  double sum = 0, from = 1e300, to = 0;
  for (span const& s : all) {
    sum += s.to - s.from;
    from = std::min(from, s.from), to = std::max(to, s.to);
  }
  return sum / std::max(to - from, 1e-6);
}

}  // namespace pipeline
