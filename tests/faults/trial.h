// A trial: one scenario, one failure, and everything that must hold afterwards.
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

// How often each status was answered to each call in place of the driver's.
using pair_counts =
    std::array<std::array<std::uint64_t, static_cast<std::size_t>(driver::code_count)>, driver::call_count>;

struct expectation {  // of an undisturbed run
  std::string bytes;
  std::vector<call> calls;         // in order
  std::uint64_t allocations = 0;   // of the host's heap
  std::vector<os::call> system;    // the system's calls, in order
  // a device: how many blocks of a page a fresh machine gives; devices that were not used have none
  std::vector<std::size_t> pages;
};
expectation undisturbed(scenario const&, std::uint64_t seed);
expectation undisturbed_once_warm(scenario const&, std::uint64_t seed);  // what a process makes at first use is made

struct failure {
  std::uint64_t seed = 1;  // of the machine
  driver::fault_injector::order call{.k = 0};
  std::uint64_t allocation = 0, more_allocations = 0;  // of the host's heap, see heap.h
  std::uint64_t system_call = 0, more_system_calls = 0;  // see system.h
  std::string text() const;
};

// Returns: what did not hold, one line each. Empty: all did.
std::string try_out(scenario const&, failure const&, expectation const&, pair_counts&);
// The same up to three times: what the heap keeps for the process and the thread (a table that grows, a seat
// that differs from the one before) is not there again.
std::string try_again(scenario const&, failure const&, expectation const&, pair_counts&);

// With a checker before every machine: it reports whoever is stuck behind a lost device,
// so it judges undisturbed runs alone.
inline bool undisturbed_only() { return std::getenv("WEIR_CHECK_RACES") != nullptr; }

// Which of `all` failures are tried: as many as WEIR_TEST_SEEDS says (fewer under sanitizers when it does
// not), each once, from WEIR_TEST_BASE_SEED on, every one when that is enough; WEIR_TEST_SEED alone. A seed
// names the same failure whatever the number.
class drawn_failures {
 public:
  // fewer: a trial takes as long as that many
  drawn_failures(std::uint64_t all, std::uint64_t otherwise, std::uint64_t fewer = 1);
  bool next();  // false: no more
  std::uint64_t seed() const noexcept { return seed_; }
  std::uint64_t index() const noexcept { return index_; }  // < all

 private:
  std::uint64_t all_, seed_, last_, stride_, index_ = 0;
};

}  // namespace weir::faults
