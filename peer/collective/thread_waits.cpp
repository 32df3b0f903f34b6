// Which rank of a thread_group waits for which: what all have called and launched, and what exceptions came before.
// Threads: any, under the group's lock.
#include <algorithm>

#include "peer/collective/group.h"

namespace weir::peer {

bool thread_group::shared::has_open(int rank) const noexcept {
  return !open.empty() || std::any_of(pairs.begin(), pairs.end(), [&](auto const& p) {
    return (p.first[0] == rank || p.first[1] == rank) && !p.second.open.empty();
  });
}

std::uint64_t thread_group::shared::exceptions_of(int rank) const noexcept {
  auto const r = static_cast<std::size_t>(rank);
  return unwound[r].step == before[r].steps() ? unwound[r].count : 0;
}

void thread_group::shared::speaks(int rank) noexcept {
  bool& is_silent = unwound[static_cast<std::size_t>(rank)].silent;
  if (is_silent)
    --silent;
  is_silent = false;
}

int thread_group::shared::awaited() const noexcept {
  if (silent == 0)
    return -1;
  for (std::size_t r = 0; r < unwound.size(); ++r) {
    if (unwound[r].silent && !gone[r] && is_awaited(static_cast<int>(r)))
      return static_cast<int>(r);
  }
  return -1;
}

// Whether another rank waits for a step of this one that never comes: more exceptions have ended owners of
// this rank's communicator than had ended the other's when it took that step.
bool thread_group::shared::is_awaited(int rank) const noexcept {
  auto const r = static_cast<std::size_t>(rank);
  std::uint64_t const its = exceptions_of(rank), step = before[r].steps();
  auto const has_taken_it = [&](int other) { return before[static_cast<std::size_t>(other)].steps() > step; };
  // In the step that is its next.
  for (int other = 0; other < static_cast<int>(before.size()); ++other)
    if (has_taken_it(other) && before[static_cast<std::size_t>(other)].before(step) < its)
      return true;
  // `at_its_call`: the exceptions that had ended owners of the other rank when it called.
  auto const waits_in_vain = [&](int other, std::uint64_t at_its_call) {
    // A rank that has taken this rank's next step is judged by it above: both come to their other calls behind it.
    return other != rank && !has_taken_it(other) && at_its_call < its;
  };
  // In a transfer with it.
  for (auto const& [of, p] : pairs) {
    bool const is_its = of[0] == rank || of[1] == rank;
    if (is_its && !p.open.empty() && waits_in_vain(p.open.front().first_rank, p.open.front().exceptions))
      return true;
    // In one that the other has launched.
    bool const by_sender = of[1] == rank;
    if (is_its && p.is_ahead(by_sender) && waits_in_vain(of[by_sender ? 0 : 1], p.exceptions_of(by_sender)))
      return true;
  }
  // In a round, unless this rank has come to it.
  if (!meets || meets->came[r])
    return false;
  // Those that have come have called nothing since: their counts are those of then.
  for (int other = 0; other < static_cast<int>(unwound.size()); ++other)
    if (meets->came[static_cast<std::size_t>(other)] && waits_in_vain(other, exceptions_of(other)))
      return true;
  return false;
}

bool thread_group::shared::has_launched_more(int rank) const noexcept {
  std::uint64_t const its = launched[static_cast<std::size_t>(rank)];
  return std::any_of(launched.begin(), launched.end(), [&](std::uint64_t other) { return other < its; }) ||
         transfers_are_ahead(rank, true);
}

bool thread_group::shared::has_launched_less(int rank) const noexcept {
  std::uint64_t const its = launched[static_cast<std::size_t>(rank)];
  return std::any_of(launched.begin(), launched.end(), [&](std::uint64_t other) { return other > its; }) ||
         transfers_are_ahead(rank, false);
}

bool thread_group::shared::transfers_are_ahead(int rank, bool its) const noexcept {
  return std::any_of(pairs.begin(), pairs.end(), [&](auto const& p) {
    auto const [sender, receiver] = p.first;
    return (sender == rank && p.second.is_ahead(its)) || (receiver == rank && p.second.is_ahead(!its));
  });
}

void thread_group::shared::each_pair(int rank, captured_requests const& all, auto f) noexcept {
  // The captured calls made the pairs.
  for (auto const& [other, with] : all.with) {
    if (with.sent > 0)
      f(pairs.find({rank, other})->second, true, with.sent);
    if (with.received > 0)
      f(pairs.find({other, rank})->second, false, with.received);
  }
}

void thread_group::shared::add_launched(int rank, captured_requests const& all) noexcept {
  std::uint64_t const so_far = exceptions_of(rank);
  each_pair(rank, all, [&](pair& p, bool sends, std::uint64_t n) { p.launched(sends).take(so_far, n); });
  launched[static_cast<std::size_t>(rank)] += all.collectives;
  before[static_cast<std::size_t>(rank)].take(so_far, all.collectives);
}

void thread_group::shared::take_back_launched(int rank, captured_requests const& all) noexcept {
  each_pair(rank, all, [&](pair& p, bool sends, std::uint64_t n) { p.launched(sends).take_back(n); });
  launched[static_cast<std::size_t>(rank)] -= all.collectives;
  before[static_cast<std::size_t>(rank)].take_back(all.collectives);
}

}  // namespace weir::peer
