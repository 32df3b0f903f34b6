// Random work on blocking and non-blocking streams and on the legacy stream, with only those waits that the
// legacy order does not make unnecessary, against values in program order.
// Threads: one; the machine's seed chooses when work completes.
#pragma once
#include <array>
#include <bitset>
#include <memory>
#include <vector>

#include "tests/model/api_program.h"
#include "weir/launch.h"

namespace weir::tests {

class legacy_program {
 public:
  explicit legacy_program(std::uint64_t seed) : random_(seed * 0x9e3779b97f4a7c15u + 29), m_(seeded_machine(seed, 1)) {}

  verdict run() {
    {
      simulated_stream const blocking(0, stream_flags::blocking), apart(0, stream_flags::non_blocking);
      external_stream const with(0, blocking.handle()), without(0, apart.handle());
      memory_ = buffer(default_stream(), count * sizeof(unsigned));
      fill(default_stream(), memory_.data(), std::byte{0}, memory_.size());
      synchronize();
      legacy_ = add(borrow_stream(0, nullptr), stream_flags::blocking);
      add(default_stream(), stream_flags::blocking);
      add(with, stream_flags::blocking);
      add(without, stream_flags::non_blocking);
      for (std::size_t i = 0; i < most; ++i)
        step();
      leased_.clear();
      synchronize();
    }
    judge(m_, wrong_);
    std::array<unsigned, count> got{};
    copy(default_stream(), got.data(), memory_.data(), sizeof got);
    for (std::size_t i = 0; i < count; ++i)
      if (got[i] != model_[i])
        wrong_.note(check::bytes, "slot " + std::to_string(i) + " has another value");
    return wrong_;
  }
  // Pairs of uses that the legacy order alone keeps apart.
  std::uint64_t by_legacy_order() const noexcept { return by_legacy_order_; }

 private:
  static constexpr std::size_t count = 6, most = 60;  // slots, operations
  using operations = std::bitset<most>;
  struct line {
    stream_ref on;
    stream_flags flags;
    operations before{}, without_legacy{};  // its next work; and by its own order and waits alone
  };
  struct use {
    std::size_t op, by;
    bool writes;
  };
  struct lease {
    stream own;
    std::size_t line;
  };

  std::size_t below(std::size_t n) { return random_() % n; }
  std::size_t add(stream_ref s, stream_flags f) {
    lines_.push_back({s, f});
    return lines_.size() - 1;
  }
  // The legacy stream comes after the blocking streams, those that were given back included, and before them.
  void follow_legacy_order(std::size_t l) {
    if (lines_[l].flags != stream_flags::blocking)
      return;
    if (l != legacy_) {
      lines_[l].before |= lines_[legacy_].before;
      return;
    }
    for (line const& other : lines_)
      if (other.flags == stream_flags::blocking)
        lines_[l].before |= other.before;
  }
  std::size_t some_line() {
    if (below(3) == 0)
      return legacy_;
    if (below(3) == 0)
      return 1 + below(3);
    // Leases end and come back, as one of either kind.
    if (leased_.size() == 3 || (!leased_.empty() && below(4) == 0))
      leased_.erase(leased_.begin() + static_cast<std::ptrdiff_t>(below(leased_.size())));
    if (leased_.empty() || below(2) == 0) {
      auto const f = below(2) ? stream_flags::blocking : stream_flags::non_blocking;
      stream own{f};
      std::size_t const l = add(own, f);
      leased_.push_back({std::move(own), l});
    }
    return leased_[below(leased_.size())].line;
  }
  void wait_for_conflicts(std::size_t l, std::size_t slot, bool writes) {
    for (use const& u : uses_[slot]) {
      if (!u.writes && !writes)
        continue;
      if (lines_[l].before[u.op]) {
        by_legacy_order_ += u.by != l && !lines_[l].without_legacy[u.op];
        continue;
      }
      lines_[l].on.wait(after_[u.op]);
      follow_legacy_order(l);
      for (auto* const set : {&lines_[l].before, &lines_[l].without_legacy})
        *set |= reach_[u.op];
    }
  }
  void step() {
    std::size_t const l = some_line(), from = below(count), to = below(count);
    follow_legacy_order(l);
    wait_for_conflicts(l, from, false);
    wait_for_conflicts(l, to, true);
    unsigned const k = static_cast<unsigned>(1 + below(100));
    unsigned *const x = memory_.data<unsigned>() + from, *const y = memory_.data<unsigned>() + to;
    launch(
        lines_[l].on, {reads(x, sizeof *x), writes(y, sizeof *y)}, [](CUstream_st*) {}, [=] { *y = *x * 3 + k; });
    model_[to] = model_[from] * 3 + k;
    std::size_t const op = after_.size();
    after_.push_back(lines_[l].on.stamp());
    for (auto* const set : {&lines_[l].before, &lines_[l].without_legacy})
      set->set(op);
    reach_.push_back(lines_[l].before);
    uses_[from].push_back({op, l, false});
    uses_[to].push_back({op, l, true});
  }

  std::mt19937_64 random_;
  test::machine m_;
  buffer memory_{};
  std::vector<line> lines_;
  std::vector<lease> leased_;
  std::size_t legacy_ = 0;
  std::array<unsigned, count> model_{};
  std::array<std::vector<use>, count> uses_{};
  std::vector<stamp> after_;       // each operation
  std::vector<operations> reach_;  // each operation and all before it
  std::uint64_t by_legacy_order_ = 0;
  verdict wrong_;
};

}  // namespace weir::tests
