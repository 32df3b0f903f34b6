// A tape is where a machine's choices come from, and the hash of all that was chosen and done.
// Threads: under the machine's lock.
#pragma once
#include <cstdint>

namespace weir::driver::sim {

class tape {
 public:
  explicit tape(std::uint64_t seed) noexcept : seed_(seed), state_(seed) {}
  std::uint64_t seed() const noexcept { return seed_; }

  // One of 0 … n - 1; 0 is the simplest choice. Requires: n > 0.
  std::uint32_t draw(std::uint32_t n) noexcept {
    state_ += 0x9e3779b97f4a7c15u;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    auto const chosen = static_cast<std::uint32_t>((z >> 32) * n >> 32);
    note(chosen);
    return chosen;
  }
  bool coin(std::uint32_t percent) noexcept { return draw(100) >= 100 - percent; }

  template <class... Numbers>
  void note(Numbers... numbers) noexcept {
    ((hash_ = (hash_ ^ static_cast<std::uint64_t>(numbers)) * 0x100000001b3u, hash_ ^= hash_ >> 29), ...);
  }
  std::uint64_t hash() const noexcept { return hash_; }

 private:
  std::uint64_t seed_, state_, hash_ = 0xcbf29ce484222325u;
};

}  // namespace weir::driver::sim
