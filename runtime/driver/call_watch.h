// Tells a race checker the CUDA calls of this process that weir does not make: launches, copies, waits, allocations.
// Threads: any. The calls are told on the threads that make them.
#pragma once
#include <memory>
#include <string>

#include "runtime/driver/driver.h"
#include "runtime/driver/race_control.h"

namespace weir::driver {

class call_watch {
 public:
  virtual ~call_watch() = default;  // Blocks: until no thread tells a call
};
struct watch_begun {
  std::unique_ptr<call_watch> watch;  // null: the calls stay unseen
  std::string why;                    // for people, if it is null
};
// CUPTI tells the calls: it is found at run time, and has one subscriber in a process. Several watches share it.
// Requires: the checker lives longer. Throws: bad_alloc
watch_begun watch_calls(check::control&);
// Calls `begin` once, before the next call is told: it may begin a watch, and call CUDA, which is ready then.
// Returns: empty, or why the calls stay unseen
std::string call_when_told(void (*begin)());

// As name_race_places (weir/observe.h).
void name_places_with(source_location (*last_line)() noexcept) noexcept;

// A driver in front of a checking one: what weir itself calls in CUDA is not told, and the others' calls are.
std::unique_ptr<driver> with_watch(std::unique_ptr<driver> checking);

}  // namespace weir::driver
