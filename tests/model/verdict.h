// A random program's failure, and the check that found it.
// Threads: a value.
#pragma once
#include <ostream>
#include <string>
#include <string_view>

#include "runtime/driver/race_control.h"

namespace weir::tests {

enum class check {
  none,
  bytes,       // a read found other bytes than its writer wrote
  order,       // the clocks say ordered or complete, but the driver's calls do not
  stray,       // work touched unmapped memory, or memory that its device may not access
  stuck,       // the host waits, and no work can run
  invariants,  // validate()
  census,      // memory or handles left at the end
  answers,     // a call was refused, or its answer breaks its contract
  race,        // the checker: nothing orders two uses of a byte
  lifetime,    // the checker: memory is used, handed out or unmapped while other work uses it
  host,        // the checker: the host used pinned memory that a copy was using, or changed its source
  over_wait,   // weir's waits cover more than they must
  places,      // the same calls gave other places on another machine, despite the promise
  rule,        // the library asserted a rule (runtime/base/rule.h)
  crash,       // the process crashed or hung
};

inline std::string_view name_of(check c) {
  switch (c) {
    case check::none: return "nothing";
    case check::bytes: return "bytes";
    case check::order: return "order";
    case check::stray: return "stray";
    case check::stuck: return "stuck";
    case check::invariants: return "invariants";
    case check::census: return "census";
    case check::answers: return "answers";
    case check::race: return "race";
    case check::lifetime: return "lifetime";
    case check::host: return "host";
    case check::over_wait: return "over-wait";
    case check::places: return "places";
    case check::rule: return "rule";
    case check::crash: return "crash";
  }
  return "?";
}

struct verdict {
  check by = check::none;  // the first that failed
  std::string what{};
  bool ok() const { return by == check::none; }
  void note(check c, std::string words) {
    if (ok())
      by = c, what = std::move(words);
  }
  friend std::ostream& operator<<(std::ostream& out, verdict const& v) {
    return out << name_of(v.by) << (v.ok() ? "" : ": ") << v.what;
  }
};

// The check that a machine's finding belongs to, by its first word.
inline check check_of(std::string_view finding) {
  return finding.starts_with("stuck") ? check::stuck : check::stray;
}

// Likewise for the checker.
inline check check_of(driver::check::finding::kind k) {
  using enum driver::check::finding::kind;
  switch (k) {
    case race: return check::race;
    case source_changed:
    case early_host: return check::host;
    case stuck: return check::stuck;
    default: return check::lifetime;
  }
}

}  // namespace weir::tests
