// The texts of a driver's answers.
// Threads: any.
#include "runtime/driver/driver.h"

#include "runtime/base/sync.h"
#include "runtime/base/sync_thread_value.h"
#include "runtime/base/text.h"

namespace weir::driver {
namespace {
constinit base::atomic<sim::words const*> said_of_work{nullptr};
using depth = base::thread_value<inside_work, int>;  // used until the process has ended, also on CUDA's threads
}  // namespace

inside_work::inside_work() noexcept {
  ++depth::value;
}
inside_work::~inside_work() {
  --depth::value;
}
bool inside_work::here() noexcept {
  return depth::value > 0;
}

std::string_view name_of(code c) noexcept {
  return base::name_in({"ok", "not ready", "out of memory", "invalid", "not permitted", "not supported", "device lost",
                        "forked process", "process ending", "failed"},
                       c);
}

void sim::explain_work_with(words const* all) noexcept {
  said_of_work.store(all);
}
sim::words const* sim::words_of_work() noexcept {
  return said_of_work.load();
}

#ifndef WEIR_WITH_CUDA
opened open_cuda() {
  return {nullptr, "weir was built without the CUDA toolkit"};
}
#endif

}  // namespace weir::driver
