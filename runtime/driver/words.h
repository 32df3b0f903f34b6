// Work that waits for other streams' work (driver::work::ready), in words:
// so that a circle through it can be named.
// Threads: what is registered is asked with the machine's lock held: no driver call, no lock inside.
#pragma once
#include <string>

namespace weir::driver::sim {

struct words {
  bool (*of)(void*);                       // the ready() of the work that these speak of
  std::string (*name)(void* work);         // "rank 0's part of all_reduce of 4 float32 (sum) (a.cpp:3)"
  bool (*needs)(void* work, void* other);  // it waits for that other one of them, which is still to run
  std::string (*missing)(void* work);      // what it waits for that nobody has given: "rank 1's part"; empty: nothing
};
// Requires: it lives for ever. The last one counts.
void explain_work_with(words const*) noexcept;

}  // namespace weir::driver::sim
