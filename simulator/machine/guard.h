// Device pages out of the host's reach: a fault there is explained before the process dies of it. Pinned
// pages out of its reach while work uses them: a fault there is told, and the program goes on.
// Threads: any.
#pragma once
#include <string>

#include "runtime/base/os.h"
#include "runtime/driver/driver.h"

namespace weir::driver::sim {

class memory;

// A fault at an address of `m` is explained from now on, until `unwatch`.
void watch_faults(memory& m);
void unwatch_faults(memory& m) noexcept;
// Who knows the program's blocks. Called at a fault, on its thread.
struct onlooker {
  std::string (*block)(address) = nullptr;  // the block there, in words; empty: not known
  void (*met_shield)(std::uint64_t shield, os::bad_access const&) = nullptr;
  void (*the_end)() = nullptr;              // the process is about to end
};
void explain_faults_with(onlooker);

#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool bytes_are_guarded = true;
#elif defined(__has_feature)
inline constexpr bool bytes_are_guarded = __has_feature(address_sanitizer);
#else
inline constexpr bool bytes_are_guarded = false;
#endif
// Bytes that AddressSanitizer refuses to everybody, where a program is built with it.
void poison_bytes(address, std::size_t) noexcept;
void unpoison_bytes(address, std::size_t) noexcept;

}  // namespace weir::driver::sim
