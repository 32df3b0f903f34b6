// The seeds a test of random programs runs, and how many runs were made of them:
// each test program says so at its end.
// Threads: one at a time.
//
// WEIR_TEST_SEEDS=n: so many, instead of those the test asks for. WEIR_TEST_BASE_SEED=s: the first (./run
// sets the commit's, and prints it). WEIR_TEST_SEED=s: that one alone. What is no whole number ends the
// program with status 2: a test that ran nothing, or something else than was asked for, must not pass.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <string>

namespace weir::tests {

// A whole number, or 0x and a hexadecimal one. Unset or empty: `otherwise`.
std::uint64_t number_from_environment(char const* name, std::uint64_t otherwise);

// for (auto const seed : seeds("copies", 2000)) …: a run is counted as its loop comes to it.
// WEIR_TEST_SEEDS says how many instead; WEIR_TEST_MOST_SEEDS that there shall be no more than so many.
// Of several parts each has its share; the first has what WEIR_TEST_SEED names.
class seeds {
 public:
  seeds(std::string program, std::uint64_t otherwise, std::uint64_t part = 0, std::uint64_t parts = 1);
  std::uint64_t first() const noexcept { return first_; }
  std::uint64_t count() const noexcept { return count_; }

  class place {
   public:
    std::uint64_t operator*() const;
    place& operator++() noexcept { return ++seed_, *this; }
    bool operator!=(place const& other) const noexcept { return seed_ != other.seed_; }

   private:
    friend class seeds;
    place(seeds const& of, std::uint64_t seed) noexcept : of_(of), seed_(seed) {}
    seeds const& of_;
    std::uint64_t seed_;
  };
  place begin() const noexcept { return {*this, first_}; }
  place end() const noexcept { return {*this, first_ + count_}; }

 private:
  std::string program_;
  std::uint64_t first_, count_;
};

// For runs that no `seeds` counts.
void count_runs(std::string const& program, std::uint64_t runs, std::uint64_t first_seed);

}  // namespace weir::tests
