// The habits that switch host threads, with the same mix as streams.
// Threads: as host_threads.h says.
#include "simulator/machine/host_threads.h"

#include <algorithm>

namespace weir::driver::sim {
namespace {
// afterwards another thread runs, whatever the habit: a thread in a polling loop must not block the others
constexpr int most_in_a_row = 500;
constexpr std::int64_t point_ns = 50;            // time that passes at each switch point
constexpr int enumerated_switches = 2;           // switches away from threads that could continue
}  // namespace

hosts::hosts(tape& t, machine m) : tape_(t), machine_(std::move(m)), threads_(*this) {}

void hosts::decide() {
  if (tape_.enumerating()) {
    habit_ = habit::enumerated;
    switches_left_ = enumerated_switches;
    return;
  }
  habit_ = mixed_habits[tape_.weighted(mix_of_habits)];
  if (habit_ == habit::chance || habit_ == habit::starved) {
    static constexpr std::uint32_t percents[] = {5, 15, 40};
    percent_ = percents[tape_.draw(3)];
  }
  if (habit_ == habit::starved) starved_ = static_cast<int>(tape_.draw(4));
  if (habit_ == habit::ranked) {
    std::uint32_t const reach = 16u << tape_.draw(7);  // the length of the run is unknown
    for (std::uint32_t n = 1 + tape_.draw(3); n > 0; --n) changes_.push_back(1 + tape_.draw(reach));
    std::sort(changes_.rbegin(), changes_.rend());
  }
}

std::int64_t hosts::now_ns() noexcept {
  return machine_.now_ns() + jumped_ns_ + static_cast<std::int64_t>(threads_.points()) * point_ns;
}

int hosts::after(int now, std::span<int const> can) noexcept {
  auto const next = std::upper_bound(can.begin(), can.end(), now);
  return next == can.end() ? can.front() : *next;
}

// Returns one of `can`: one other than `now` in `percent` of cases.
int hosts::other(int now, std::span<int const> can, std::uint32_t percent) {
  auto const n = static_cast<std::uint32_t>(can.size());
  std::uint32_t const k = percent >= 100 ? tape_.draw(n) : tape_.rarely(n, percent);
  auto const self = std::find(can.begin(), can.end(), now);
  std::size_t const first = self == can.end() ? 0 : static_cast<std::size_t>(self - can.begin());
  return can[(first + k) % n];
}

std::uint32_t& hosts::rank(int number) {
  auto const i = static_cast<std::size_t>(number);
  if (ranks_.size() <= i) ranks_.resize(i + 1);
  if (ranks_[i] == 0) ranks_[i] = 1000 + tape_.draw(1000);
  return ranks_[i];
}

int hosts::highest(std::span<int const> can) {
  int best = can.front();
  for (int t : can) {
    if (rank(t) > rank(best)) best = t;
  }
  return best;
}

int hosts::next(int now, std::span<int const> can) noexcept {
  if (habit_ == habit::undecided) decide();
  if (habit_ == habit::ranked && !changes_.empty() && threads_.points() >= changes_.back()) {
    changes_.pop_back();
    yields(now);
  }
  int chosen = now;
  if (++in_a_row_ > most_in_a_row) {
    yields(now);
    chosen = after(now, can);
  } else {
    switch (habit_) {
      case habit::undecided: case habit::lazy: break;
      case habit::chance: chosen = other(now, can, percent_); break;
      case habit::starved:
        chosen = other(now, can, percent_);
        if (chosen == starved_) chosen = now;
        break;
      case habit::ranked: chosen = highest(can); break;
      case habit::uniform: chosen = other(now, can, 100); break;
      case habit::eager: chosen = after(now, can); break;
      case habit::enumerated:
        if (switches_left_ > 0) chosen = other(now, can, 100);
        if (chosen != now) --switches_left_;
        break;
    }
  }
  if (chosen != now) in_a_row_ = 0;
  return chosen;
}

int hosts::instead(int now, std::span<int const> can) noexcept {
  if (habit_ == habit::undecided) decide();
  in_a_row_ = 0;
  switch (habit_) {
    case habit::undecided: case habit::lazy: case habit::eager: return after(now, can);
    case habit::ranked: return highest(can);
    case habit::starved: {
      int const chosen = other(now, can, 100);
      return chosen == starved_ && can.size() > 1 ? after(chosen, can) : chosen;
    }
    case habit::chance: case habit::uniform: case habit::enumerated: break;
  }
  return other(now, can, 100);
}

void hosts::yields(int now) noexcept {
  if (habit_ == habit::ranked) rank(now) = lowest_ > 1 ? lowest_-- : 1;
}

}  // namespace weir::driver::sim
