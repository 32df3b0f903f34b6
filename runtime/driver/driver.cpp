// The texts of a driver's answers.
// Threads: any.
#include "runtime/driver/driver.h"

#include "runtime/base/sync.h"
#include "runtime/base/text.h"

namespace weir::driver {
namespace {
base::per_thread<int>& depth() noexcept {
  // never destroyed: used until the process has ended, also on CUDA's threads
  static auto* const inside = new base::per_thread<int>;
  return *inside;
}
}  // namespace

inside_work::inside_work() noexcept { ++depth().get(); }
inside_work::~inside_work() { --depth().get(); }
bool inside_work::here() noexcept { return depth().get() > 0; }

std::string_view name_of(code c) noexcept {
  return base::name_in({"ok", "not ready", "out of memory", "invalid", "not permitted", "not supported", "device lost",
                        "forked process", "process ending", "failed"},
                       c);
}

#ifndef WEIR_WITH_CUDA
opened open_cuda() { return {nullptr, "weir was built without the CUDA toolkit"}; }
#endif

}  // namespace weir::driver
