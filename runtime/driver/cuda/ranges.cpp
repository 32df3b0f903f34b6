// NVTX consists of headers: the first call looks for a tool, and there is nothing to link.
#include "runtime/driver/ranges.h"

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>

namespace weir::driver {
void push_range(char const* name) noexcept {
  (void)nvtxRangePushA(name);
}
void pop_range() noexcept {
  (void)nvtxRangePop();
}
}  // namespace weir::driver
#else
namespace weir::driver {
void push_range(char const*) noexcept {}
void pop_range() noexcept {}
}  // namespace weir::driver
#endif
