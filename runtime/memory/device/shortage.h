// The end of a request for memory, whatever ran out: the program is asked to free some, then told. Every out_of_memory
// is made here.
// Threads: any. Requires: no lock is held, for the program's callbacks run.
#pragma once
#include <utility>

#include "runtime/core/parts.h"

namespace weir::memory {

struct shortage {
  weir::runtime::impl* of;     // null: host memory of no runtime, which has no callbacks
  std::string_view operation;  // that the program called
  source_location at;
  std::uint64_t stream = 0;  // that was to use the memory; 0: none
};

// Calls the callbacks of on_out_of_memory, unless this thread runs one. True: search again.
bool ask_program(shortage const&, memory_report const&);
// Logs and records it. Throws: out_of_memory
[[noreturn]] void run_out(shortage const&, memory_report);

// Returns what `attempt` finds; before it fails, the program is asked once. `why` makes the report, `count` counts.
template <class Attempt, class Why, class Count>
auto find_or_run_out(shortage const& s, Attempt attempt, Why why, Count count) {
  auto found = attempt();
  if (found)
    return found;
  memory_report report = why();
  if (ask_program(s, report)) {
    found = attempt();
    if (found)
      return found;
    report = why();
  }
  count();
  run_out(s, std::move(report));
}

// An out_of_memory of `call` names the operation that the program called.
template <class Call>
decltype(auto) as_called(std::string_view operation, Call call) try {
  return call();
} catch (out_of_memory const& e) {
  throw out_of_memory(std::string(operation), e.report(), e.where());
}

}  // namespace weir::memory
