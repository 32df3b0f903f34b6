// The habits that switch host threads, with the same mix as streams; their names and counts.
// Threads: as host_threads.h says.
#include "simulator/machine/host_threads.h"

#include <algorithm>

namespace weir::driver::sim {
namespace {
// afterwards another thread runs, whatever the habit: a thread in a polling loop must not block the others
constexpr int most_in_a_row = 500;
constexpr std::int64_t point_ns = 50;   // time that passes at each switch point
constexpr int enumerated_switches = 2;  // switches away from threads that could continue

constinit base::guarded<policies_met> met;
}  // namespace

std::string_view name_of(schedule_policy h) noexcept {
  static constexpr std::array<std::string_view, policy_count> names{"lazy",    "chance", "starved",    "ranked",
                                                                    "uniform", "eager",  "enumerated", "undecided"};
  return names[static_cast<std::size_t>(h)];
}

void count_policies(schedule_policy streams, schedule_policy threads) {
  auto all = met.lock();
  ++all->streams[static_cast<std::size_t>(streams)];
  ++all->threads[static_cast<std::size_t>(threads)];
}

policies_met all_policies_met() {
  return *met.lock();
}

host_order::host_order(tape& t, machine m) : tape_(t), machine_(std::move(m)), threads_(*this) {}

void host_order::decide() {
  if (tape_.enumerating()) {
    policy_ = schedule_policy::enumerated;
    switches_left_ = enumerated_switches;
    return;
  }
  policy_ = mixed_policies[tape_.weighted(mix_of_policies)];
  if (policy_ == schedule_policy::chance || policy_ == schedule_policy::starved) {
    static constexpr std::uint32_t percents[] = {5, 15, 40};
    percent_ = percents[tape_.draw(3)];
  }
  if (policy_ == schedule_policy::starved)
    starved_ = static_cast<int>(tape_.draw(4));
  if (policy_ == schedule_policy::ranked) {
    std::uint32_t const reach = 16u << tape_.draw(7);  // the length of the run is unknown
    for (std::uint32_t n = 1 + tape_.draw(3); n > 0; --n)
      changes_.push_back(1 + tape_.draw(reach));
    std::sort(changes_.rbegin(), changes_.rend());
  }
}

std::int64_t host_order::now_ns() noexcept {
  return machine_.now_ns() + jumped_ns_ + static_cast<std::int64_t>(threads_.points()) * point_ns;
}

int host_order::after(int now, std::span<int const> can) noexcept {
  auto const next = std::upper_bound(can.begin(), can.end(), now);
  return next == can.end() ? can.front() : *next;
}

// Returns one of `can`: one other than `now` in `percent` of cases.
int host_order::other(int now, std::span<int const> can, std::uint32_t percent) {
  auto const n = static_cast<std::uint32_t>(can.size());
  std::uint32_t const k = percent >= 100 ? tape_.draw(n) : tape_.rarely(n, percent);
  auto const self = std::find(can.begin(), can.end(), now);
  std::size_t const first = self == can.end() ? 0 : static_cast<std::size_t>(self - can.begin());
  return can[(first + k) % n];
}

std::uint32_t& host_order::rank(int number) {
  auto const i = static_cast<std::size_t>(number);
  if (ranks_.size() <= i)
    ranks_.resize(i + 1);
  if (ranks_[i] == 0)
    ranks_[i] = 1000 + tape_.draw(1000);
  return ranks_[i];
}

int host_order::highest(std::span<int const> can) {
  int best = can.front();
  for (int t : can)
    if (rank(t) > rank(best))
      best = t;
  return best;
}

int host_order::next(int now, std::span<int const> can) noexcept {
  if (policy_ == schedule_policy::undecided)
    decide();
  if (policy_ == schedule_policy::ranked && !changes_.empty() && threads_.points() >= changes_.back()) {
    changes_.pop_back();
    yields(now);
  }
  int chosen = now;
  if (++in_a_row_ > most_in_a_row) {
    yields(now);
    chosen = after(now, can);
  } else {
    switch (policy_) {
      case schedule_policy::undecided:
      case schedule_policy::lazy: break;
      case schedule_policy::chance: chosen = other(now, can, percent_); break;
      case schedule_policy::starved:
        chosen = other(now, can, percent_);
        if (chosen == starved_)
          chosen = now;
        break;
      case schedule_policy::ranked: chosen = highest(can); break;
      case schedule_policy::uniform: chosen = other(now, can, 100); break;
      case schedule_policy::eager: chosen = after(now, can); break;
      case schedule_policy::enumerated:
        if (switches_left_ > 0)
          chosen = other(now, can, 100);
        if (chosen != now)
          --switches_left_;
        break;
    }
  }
  if (chosen != now)
    in_a_row_ = 0;
  return chosen;
}

int host_order::instead(int now, std::span<int const> can) noexcept {
  if (policy_ == schedule_policy::undecided)
    decide();
  in_a_row_ = 0;
  switch (policy_) {
    case schedule_policy::undecided:
    case schedule_policy::lazy:
    case schedule_policy::eager: return after(now, can);
    case schedule_policy::ranked: return highest(can);
    case schedule_policy::starved: {
      int const chosen = other(now, can, 100);
      return chosen == starved_ && can.size() > 1 ? after(chosen, can) : chosen;
    }
    case schedule_policy::chance:
    case schedule_policy::uniform:
    case schedule_policy::enumerated: break;
  }
  return other(now, can, 100);
}

void host_order::yields(int now) noexcept {
  if (policy_ == schedule_policy::ranked)
    rank(now) = lowest_ > 1 ? lowest_-- : 1;
}

}  // namespace weir::driver::sim
