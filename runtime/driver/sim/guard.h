// Device pages out of the host's reach: a fault there is explained before the process dies of it.
// Threads: any.
#pragma once
#include <string>

#include "runtime/driver/driver.h"

namespace weir::driver::sim {

class memory;

// A fault at an address of `m` is explained from now on, until `unwatch`.
void watch_faults(memory const& m);
void unwatch_faults(memory const& m) noexcept;
// Who can say more about an address than which device's it is: a sentence, or nothing. It may be asked at any moment.
void explain_addresses_with(std::string (*more)(address));

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
