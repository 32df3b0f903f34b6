// Page protection. A host access to device pages is explained, and the process ends. A host access to pinned
// pages that work uses is reported, and the program continues.
// Threads: any.
#pragma once
#include <string>

#include "runtime/base/os.h"
#include "runtime/driver/driver.h"

namespace weir::driver::sim {

class memory;

// Explains faults at addresses of `m`, until unwatch_faults.
void watch_faults(memory& m);
void unwatch_faults(memory& m) noexcept;
// Callbacks that know the program's blocks. Called on the faulting thread.
struct onlooker {
  std::string (*block)(address) = nullptr;  // the block there, for a report; empty: not known
  void (*met_shield)(std::uint64_t shield, os::bad_access const&) = nullptr;
  void (*the_end)() = nullptr;  // the process is about to end
};
void explain_faults_with(onlooker);
// Whether the program's system calls are told to the guard (runtime/base/os_call_watch.h). Else the system refuses
// closed pages to them.
bool calls_are_seen() noexcept;

#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool bytes_are_guarded = true;
#elif defined(__has_feature)
inline constexpr bool bytes_are_guarded = __has_feature(address_sanitizer);
#else
inline constexpr bool bytes_are_guarded = false;
#endif
// No code may access poisoned bytes. Only in builds with AddressSanitizer.
void poison_bytes(address, std::size_t) noexcept;
void unpoison_bytes(address, std::size_t) noexcept;

}  // namespace weir::driver::sim
