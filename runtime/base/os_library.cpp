// Libraries found at run time, through the system's loader.
// Threads: any.
#include "runtime/base/os_library.h"

#include <dlfcn.h>

#include "runtime/base/os.h"

namespace weir::os {

// Local: the exports of one library must not resolve a missing name of another.
void* load_library(char const* name) noexcept {
  return refused(call::load_library) ? nullptr : ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
}
void* find_symbol(void* library, char const* name) noexcept { return ::dlsym(library, name); }

}  // namespace weir::os
