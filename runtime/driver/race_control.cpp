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

unjudged& unjudged::operator+=(unjudged const& more) {
  direct_work |= more.direct_work;
  streams += more.streams;
  events += more.events;
  program_streams += more.program_streams;
  host_pointers |= more.host_pointers;
  system_calls |= more.system_calls;
  watched |= more.watched;
  for (auto const& [what, n] : more.not_understood)
    not_understood[what] += n;
  missed_calls += more.missed_calls;
  forgotten_uses += more.forgotten_uses;
  unknown_pointers += more.unknown_pointers;
  suppressed += more.suppressed;
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
  auto const add = [&text](std::string const& more) { text += (text.empty() ? "" : "; ") + more; };
  auto const add_count = [&](std::uint64_t n, char const* what, char const* why) {
    if (n)
      add(count(n, what) + why);
  };
  if (watched)
    add("memory that kernels reach by other ways than a pointer in their parameters");
  for (auto const& [what, n] : not_understood)
    add(what + " (" + std::to_string(n) + ")");
  add_count(missed_calls, "call", " that the host had no memory to note");
  add_count(forgotten_uses, "use", " of blocks with too many unfinished ones");
  add_count(unknown_pointers, "pointer", " into memory that no call told of");
  add_count(suppressed, "pair", " of uses that WEIR_CHECK_SUPPRESS names");
  if (host_pointers)
    add("accesses of the host through a pointer");
  if (system_calls)
    add("system calls with pinned bytes in use, which fail with EFAULT (remedy: link weir::system_calls, or set "
        "LD_PRELOAD=libweir_system_calls.so)");
  return text.empty() ? text : "Not judged: " + text;
}

}  // namespace weir::driver::check
