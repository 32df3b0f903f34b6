// The thread's call context.
// Threads: each has its own.
#include "runtime/base/call_site.h"

#include "runtime/base/sync.h"

namespace weir::base {

call_context& this_call() noexcept {
  static auto* const of_thread = new per_thread<call_context>;  // never destroyed: asked until the process is gone
  return of_thread->get();
}

}  // namespace weir::base
