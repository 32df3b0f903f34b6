// The thread's call context.
// Threads: each has its own.
#include "runtime/base/call_site.h"

#include "runtime/base/sync_thread_value.h"

namespace weir::base {

call_context& this_call() noexcept {
  return thread_value<call_context, call_context>::value;
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
