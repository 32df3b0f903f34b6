// A tape: the source of all choices of a run (program, schedule, faults), and their hash. A seed or a given
// list decides. 0 is the simplest choice; after the end of a list all are 0.
// Threads: under the machine's lock, or with the baton of its host threads.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/base/sync.h"
#include "runtime/base/sync_thread_value.h"

namespace weir::driver::sim {

class tape {
 public:
  struct choice {
    std::uint32_t taken = 0, of = 0;  // taken < of
    bool operator==(choice const&) const = default;
  };
  using numbers = std::vector<std::uint32_t>;

  explicit tape(std::uint64_t seed) noexcept : seed_(seed), state_(seed) {}
  tape(std::uint64_t seed, numbers given) : seed_(seed), state_(seed), given_(std::move(given)), by_seed_(false) {}
  tape(tape const&) = default;
  tape& operator=(tape const&) = default;
  ~tape() { ended_.add(hash_); }
  std::uint64_t seed() const noexcept { return seed_; }

  // Keeps the choices so far. The given choices come next, then zeros.
  void go_on_with(numbers given) {
    given_ = std::move(given);
    next_ = 0;
    by_seed_ = false;
    began_ = written_.size();
  }
  // The caller enumerates all choices in turn; users of the tape then keep choices few.
  void enumerate() noexcept { enumerating_ = true; }
  bool enumerating() const noexcept { return enumerating_; }

  // One of 0 … n - 1. With n <= 1 nothing is drawn.
  std::uint32_t draw(std::uint32_t n) {
    if (n <= 1)
      return 0;
    return take(n, by_seed_ ? random(n) : 0);
  }
  bool coin(std::uint32_t percent) { return take(2, by_seed_ && random(100) >= 100 - percent) != 0; }
  // 0, except in `percent` of cases one of 1 … n - 1.
  std::uint32_t rarely(std::uint32_t n, std::uint32_t percent) {
    if (n <= 1)
      return 0;
    return take(n, by_seed_ && random(100) >= 100 - percent ? 1 + random(n - 1) : 0);
  }
  // An index, with probability by weight. Index 0 is the simplest.
  template <std::size_t N>
  std::uint32_t weighted(std::uint32_t const (&weights)[N]) {
    std::uint32_t chosen = 0;
    if (by_seed_) {
      std::uint32_t all = 0;
      for (auto w : weights)
        all += w;
      for (std::uint32_t at = random(all); at >= weights[chosen]; ++chosen)
        at -= weights[chosen];
    }
    return take(N, chosen);
  }

  template <class... Numbers>
  void note(Numbers... what) noexcept {
    ((hash_ = (hash_ ^ static_cast<std::uint64_t>(what)) * 0x100000001b3u, hash_ ^= hash_ >> 29), ...);
  }
  std::uint64_t hash() const noexcept { return hash_; }
  // the sum over all ended tapes of the process. Threads: the one that ends tapes
  static std::uint64_t hash_of_ended() noexcept { return ended_.get(); }

  void write_down() { writing_ = true; }  // from here on
  // Requires: write_down() before the first draw
  std::vector<choice> const& written() const noexcept { return written_; }
  std::size_t began() const noexcept { return began_; }  // number of choices written before go_on_with()

 private:
  std::uint32_t random(std::uint32_t n) noexcept {
    state_ += 0x9e3779b97f4a7c15u;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return static_cast<std::uint32_t>((z >> 32) * n >> 32);
  }
  std::uint32_t take(std::uint32_t of, std::uint32_t chosen) {
    if (!by_seed_)
      chosen = next_ < given_.size() ? given_[next_++] % of : 0;
    note(chosen);
    if (writing_)
      written_.push_back({chosen, of});
    return chosen;
  }

  static inline constinit base::single_writer<std::uint64_t> ended_{0};
  std::uint64_t seed_, state_, hash_ = 0xcbf29ce484222325u;
  numbers given_;
  std::size_t next_ = 0, began_ = 0;
  bool by_seed_ = true, enumerating_ = false, writing_ = false;
  std::vector<choice> written_;
};

// While it lives, machines that its thread makes draw from the given tape, which must outlive them.
class lent_tape {
 public:
  explicit lent_tape(tape& t) noexcept : found_(std::exchange(lent(), &t)) {}
  ~lent_tape() { lent() = found_; }
  lent_tape(lent_tape const&) = delete;
  static tape* here() noexcept { return lent(); }  // null: none

 private:
  static tape*& lent() noexcept { return base::thread_value<lent_tape, tape*>::value; }
  tape* found_;
};

}  // namespace weir::driver::sim
