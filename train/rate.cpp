// Learning rates over a training.
// Threads: any.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "weir/optimizer.h"

namespace weir {

double warm_cosine(std::int64_t step, std::int64_t steps, std::int64_t warm, double last) noexcept {
  if (step < warm)
    return static_cast<double>(step + 1) / static_cast<double>(warm);
  double const all = static_cast<double>(std::max<std::int64_t>(steps - warm, 1));
  double const done = std::min(static_cast<double>(step - warm) / all, 1.0);
  return last + (1 - last) * (0.5 + 0.5 * std::cos(std::numbers::pi * done));
}

}  // namespace weir
