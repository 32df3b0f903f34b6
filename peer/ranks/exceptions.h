// The exceptions before each step of a rank. A step is a call with collectives, or a collective of a launched graph.
// Invariant: all ranks take the same steps. So the exceptions of two ranks before one step can be compared.
// Threads: none of its own; the owner's lock.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>

namespace weir::peer {

class exceptions_before_steps {
 public:
  // So many steps are taken now. exceptions: that ended owners of the rank since the step before
  void take(std::uint64_t exceptions, std::uint64_t count = 1) noexcept {
    std::uint64_t const first = steps_;
    steps_ += count;
    if (exceptions == 0 || count == 0)
      return;
    run& place = kept_[added_ % kept_.size()];
    // The place of older steps, of which nothing is known from now on.
    if (place.count > 0)
      forgotten_ = std::max(forgotten_, place.first + place.count);
    place = {first, count, exceptions};
    ++added_;
  }
  // The last ones were refused: the next ones take their places.
  void take_back(std::uint64_t count = 1) noexcept {
    steps_ -= count;
    forgotten_ = std::min(forgotten_, steps_);
    while (added_ > 0 && kept_[(added_ - 1) % kept_.size()].count > 0) {
      run& last = kept_[(added_ - 1) % kept_.size()];
      // An older run, or the older part of this one, stays.
      if (last.first < steps_) {
        last.count = std::min(last.count, steps_ - last.first);
        return;
      }
      last = {};
      --added_;
    }
  }
  std::uint64_t steps() const noexcept { return steps_; }
  // Requires: step < steps(). Returns: the greatest number for a forgotten step, so that no rank is blamed
  std::uint64_t before(std::uint64_t step) const noexcept {
    if (step < forgotten_)
      return ~std::uint64_t{0};
    for (run const& r : kept_)
      if (step >= r.first && step - r.first < r.count)
        return r.exceptions;
    return 0;
  }

 private:
  struct run {  // of steps behind the same exceptions, which are rare
    std::uint64_t first = 0, count = 0, exceptions = 0;
  };
  std::array<run, 64> kept_{};
  std::uint64_t added_ = 0, steps_ = 0;
  std::uint64_t forgotten_ = 0;  // steps before this one
};

}  // namespace weir::peer
