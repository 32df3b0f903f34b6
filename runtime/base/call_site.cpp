// The thread's call context.
// Threads: each has its own.
#include "runtime/base/call_site.h"

#include "runtime/base/sync.h"

namespace weir::base {

call_context& this_call() noexcept {
  static auto* const of_thread = new per_thread<call_context>;  // never destroyed: used until the process has ended
  return of_thread->get();
}

std::string text_of(running_work const& w) {
  std::string text = w.given.operation ? w.given.operation : "work";
  if (w.given.at.file_name()) {
    std::string_view const file = w.given.at.file_name();
    text += " at " + std::string(file.substr(file.rfind('/') + 1)) + ":" + std::to_string(w.given.at.line());
  }
  return text + " on stream " + std::to_string(w.stream) + " of gpu:" + std::to_string(w.device);
}

}  // namespace weir::base
