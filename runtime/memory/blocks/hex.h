// Addresses as text.
// Threads: any.
#pragma once
#include <cstdio>
#include <string>

#include "runtime/memory/blocks/region.h"

namespace weir::memory {

inline std::string hex(address a) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(a));
  return text;
}
inline std::string hex(void const* p) { return hex(reinterpret_cast<address>(p)); }

}  // namespace weir::memory
