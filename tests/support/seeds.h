// The seeds of a test of random programs, and the count of its runs. Each test program prints it at its end.
// Threads: one at a time.
//
// WEIR_TEST_SEEDS=n replaces the test's own number of seeds. WEIR_TEST_BASE_SEED=s sets the first (./run sets
// and prints the commit's). WEIR_TEST_SEED=s runs only that one. If a value is no whole number, the program
// ends with status 2, because a test that ran nothing or something else must not pass.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <string>

namespace weir::tests {

// A whole number, also hexadecimal with 0x. Unset or empty: `otherwise`.
std::uint64_t number_from_environment(char const* name, std::uint64_t otherwise);

// for (auto const seed : seeds("copies", 2000)) …: counts a run as its loop reaches it.
// WEIR_TEST_SEEDS sets another number, WEIR_TEST_MOST_SEEDS an upper limit. Each of several parts has
// its share; the first part runs the seed of WEIR_TEST_SEED.
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
