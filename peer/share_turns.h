// Which sendings of one handle were opened here. Each has a number, its turn, and is opened at most once; they may come out of order,
// over several lines, and others go to other processes and never come.
// Threads: none; its owner's lock.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

namespace weir::peer {

class opened_turns {
 public:
  // Invariant: as many runs as there are gaps between what was opened, by number, and never more than these. Beyond, the older half of
  // the gaps is closed: a turn that comes so late is taken for one that was opened before, and refused.
  static constexpr std::size_t most_runs = 4096;

  bool has(std::uint64_t turn) const noexcept {
    auto const above = first_above(turn);
    return above != runs_.begin() && turn <= std::prev(above)->last;
  }
  void make_room() {  // for one more. Throws: std::bad_alloc
    if (runs_.size() == runs_.capacity()) runs_.reserve(std::min(2 * runs_.size() + 4, most_runs));
  }
  void add(std::uint64_t turn) noexcept {  // Requires: room
    if (runs_.size() == most_runs) close_old_gaps();
    if (has(turn)) return;
    auto const above = runs_.begin() + (first_above(turn) - runs_.begin());
    bool const follows = above != runs_.begin() && std::prev(above)->last == turn - 1;
    bool const leads = above != runs_.end() && above->first == turn + 1;
    if (follows) std::prev(above)->last = leads ? above->last : turn;
    else if (leads) above->first = turn;
    else runs_.insert(above, {turn, turn});
    if (follows && leads) runs_.erase(above);
  }
  std::size_t runs() const noexcept { return runs_.size(); }

 private:
  struct run {
    std::uint64_t first, last;
  };
  std::vector<run>::const_iterator first_above(std::uint64_t turn) const noexcept {
    return std::upper_bound(runs_.begin(), runs_.end(), turn, [](std::uint64_t t, run const& r) { return t < r.first; });
  }
  void close_old_gaps() noexcept {
    runs_[most_runs / 2].first = runs_.front().first;
    runs_.erase(runs_.begin(), runs_.begin() + most_runs / 2);
  }

  std::vector<run> runs_;  // by number, none touching another
};

}  // namespace weir::peer
