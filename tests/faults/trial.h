// A trial runs one scenario with one failure, then checks everything that must hold.
// Threads: one; the failure may strike threads that the scenario makes.
#pragma once
#include <array>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "simulator/faults/fault_injector.h"
#include "tests/faults/scenario.h"
#include "tests/faults/system.h"

namespace weir::faults {

using driver::call;
using driver::code;

// How often each status replaced the driver's answer, for each call.
using pair_counts =
    std::array<std::array<std::uint64_t, static_cast<std::size_t>(driver::code_count)>, driver::call_count>;

struct expectation {  // of an undisturbed run
  std::string bytes;
  std::vector<call> calls;
  std::uint64_t allocations = 0;  // of the host's heap
  std::vector<os::call> system;
  // blocks of one page that a fresh machine gives, for each device; 0 for unused devices
  std::vector<std::size_t> pages;
};
expectation undisturbed(scenario const&, std::uint64_t seed);
expectation undisturbed_once_warm(scenario const&, std::uint64_t seed);  // after the process's first use

struct failure {
  std::uint64_t seed = 1;  // of the machine
  driver::fault_injector::order call{.k = 0};
  std::uint64_t allocation = 0, more_allocations = 0;    // of the host's heap, see heap.h
  std::uint64_t system_call = 0, more_system_calls = 0;  // see system.h
  std::string text() const;
};

// Returns: what failed, one line each; empty: nothing.
std::string try_out(scenario const&, failure const&, expectation const&, pair_counts&);
// try_out up to three times, because memory kept by process or thread is allocated only once.
std::string try_again(scenario const&, failure const&, expectation const&, pair_counts&);

// Under a checker no failures are tried: it reports each thread stuck behind a lost device.
inline bool undisturbed_only() {
  return std::getenv("WEIR_CHECK_RACES") != nullptr;
}

// Draws failures out of `all`: WEIR_TEST_SEEDS of them (default: `otherwise`, fewer under
// sanitizers), from WEIR_TEST_BASE_SEED on, each once, or all. WEIR_TEST_SEED draws only
// that one. A seed names the same failure for any number.
class drawn_failures {
 public:
  // fewer: a trial costs this many times the usual
  drawn_failures(std::uint64_t all, std::uint64_t otherwise, std::uint64_t fewer = 1);
  bool next();  // false: none left
  std::uint64_t seed() const noexcept { return seed_; }
  std::uint64_t index() const noexcept { return index_; }  // < all

 private:
  std::uint64_t all_, seed_, last_, stride_, index_ = 0;
};

}  // namespace weir::faults
