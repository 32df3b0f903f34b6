// How weir hears of the program's system calls. The library weir_system_calls (interop/system_calls), which a program
// may have, tells each call before it is made, and the bytes that it used after it.
// Threads: any. Invariant: a watcher lasts as long as the process.
#pragma once
#include <cstddef>

namespace weir::os {

struct call_watcher {
  // Called on the thread of the call, perhaps in a signal handler. Throws: only the end of a cancelled thread
  void (*may_use)(void const* at, std::size_t bytes, bool writes);
  // code: of the call, in the program
  void (*has_used)(void const* at, std::size_t bytes, bool writes, void const* code);
  call_watcher* next = nullptr;  // the library's
};
// Each call is told from then on. False: not each; the program does not have the library, or not before the system's.
// Requires: not watched yet
bool watch_calls(call_watcher&) noexcept;

// The library's function, which is found by its name.
inline constexpr char const* name_of_watch = "weir_watch_system_calls";
using watch_function = bool (*)(call_watcher*);

}  // namespace weir::os
