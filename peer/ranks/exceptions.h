// Which of a rank's steps exceptions came before. A step is a call with collectives, or the launch of a graph with such.
// Invariant: the steps of all ranks are the same. So two ranks that did or did not throw before a step can be compared.
// Threads: none of its own; the owner's lock.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>

namespace weir::peer {

class exceptions_before_steps {
 public:
  // The step is taken now. exceptions: that ended owners of the rank since the step before
  void take(std::uint64_t exceptions) noexcept {
    std::uint64_t const step = steps_;
    ++steps_;
    if (exceptions == 0)
      return;
    entry& place = kept_[added_ % kept_.size()];
    // The place of an older step, of which nothing is known from now on.
    if (added_ >= kept_.size())
      forgotten_ = place.step + 1;
    place = {step, exceptions};
    ++added_;
  }
  // The last step was refused: the next one takes its place.
  void take_back() noexcept {
    --steps_;
    forgotten_ = std::min(forgotten_, steps_);
    if (added_ == 0 || kept_[(added_ - 1) % kept_.size()].step != steps_)
      return;
    --added_;
    kept_[added_ % kept_.size()] = {~std::uint64_t{0}, 0};
  }
  std::uint64_t steps() const noexcept { return steps_; }
  // Requires: step < steps(). As many as there can be, if that step is too long ago: then nobody is to blame
  std::uint64_t before(std::uint64_t step) const noexcept {
    if (step < forgotten_)
      return ~std::uint64_t{0};
    std::uint64_t const first = added_ > kept_.size() ? added_ - kept_.size() : 0;
    for (std::uint64_t i = added_; i > first; --i)
      if (entry const& e = kept_[(i - 1) % kept_.size()]; e.step == step)
        return e.exceptions;
    return 0;
  }

 private:
  struct entry {
    std::uint64_t step = 0, exceptions = 0;
  };
  std::array<entry, 64> kept_{};  // of steps behind an exception, which are rare
  std::uint64_t added_ = 0, steps_ = 0;
  std::uint64_t forgotten_ = 0;  // steps before this one
};

}  // namespace weir::peer
