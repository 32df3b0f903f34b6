// The words of a race checker's findings, and the checkers of the process.
// Threads: any.
#include "runtime/driver/race_control.h"

#include "runtime/base/text.h"

namespace weir::driver::check {

constinit base::atomic<detail::all_checkers const*> detail::checkers{nullptr};

std::string_view name_of(finding::kind k) noexcept {
  return base::name_in({"race", "use after free", "freed in use", "handed out too early", "unmapped in use",
                        "source changed", "host too early", "undeclared use", "stuck", "possible race"},
                       k);
}

unjudged& unjudged::operator+=(unjudged const& more) noexcept {
  direct_work |= more.direct_work;
  streams += more.streams;
  events += more.events;
  program_streams += more.program_streams;
  host_pointers |= more.host_pointers;
  system_calls |= more.system_calls;
  return *this;
}

std::string unjudged::text() const {
  auto const count = [](std::uint64_t n, char const* what) {
    return std::to_string(n) + ' ' + what + (n == 1 ? "" : "s");
  };
  std::string text;
  // Work without a stream leaves no count, so that every list ends with it.
  if (direct_work) {
    text = "work given to CUDA itself (";
    if (streams)
      text += "on " + count(streams, "stream") + " handed out by native(), ";
    if (events)
      text += "with " + count(events, "event") + " handed out by native(), ";
    if (program_streams)
      text += "on " + count(program_streams, "stream") + " of the program, ";
    text += text.back() == '(' ? "without a stream)" : "or without a stream)";
  }
  auto const add = [&text](char const* more) { text += std::string(text.empty() ? "" : "; ") + more; };
  if (host_pointers)
    add("accesses of the host through a pointer");
  if (system_calls)
    add("system calls with pinned bytes in use, which fail with EFAULT (remedy: link weir::system_calls, or set "
        "LD_PRELOAD=libweir_system_calls.so)");
  return text.empty() ? text : "Not judged: " + text;
}

}  // namespace weir::driver::check
