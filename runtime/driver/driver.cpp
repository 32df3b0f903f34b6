// The texts of a driver's answers.
// Threads: any.
#include "runtime/driver/driver.h"

#include "runtime/base/sync.h"

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
  switch (c) {
    case code::ok: return "ok";
    case code::not_ready: return "not ready";
    case code::out_of_memory: return "out of memory";
    case code::invalid: return "invalid";
    case code::not_permitted: return "not permitted";
    case code::not_supported: return "not supported";
    case code::lost: return "device lost";
    case code::forked: return "forked process";
    case code::unloading: return "process ending";
    case code::failed: return "failed";
  }
  return "unknown";
}

#ifndef WEIR_WITH_CUDA
opened open_cuda() { return {nullptr, "weir was built without the CUDA toolkit"}; }
#endif

}  // namespace weir::driver
