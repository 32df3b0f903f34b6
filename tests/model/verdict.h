// What a random program found to be wrong, and which check saw it.
// Threads: a value.
#pragma once
#include <ostream>
#include <string>
#include <string_view>

#include "simulator/checker/race_checker.h"

namespace weir::tests {

enum class check {
  none,
  bytes,       // somebody reads other bytes than were written there for it
  order,       // the clocks say ordered or complete, and the order of the driver's calls does not
  stray,       // work touched memory that is not there, or not its device's to touch
  stuck,       // the host waits, and nothing can move
  invariants,  // validate()
  census,      // what is left when all has ended
  answers,     // a call was refused, or answered what its contract rules out
  race,        // the checker: nothing orders two uses of a byte
  lifetime,    // the checker: memory is used, handed out or unmapped while others still use it
  host,        // the checker: the host used pinned memory that a copy was using, or changed its source
  over_wait,   // waits of weir's own cover more than they must
  places,      // the same calls gave other places on another machine, and were promised not to
  crash,       // the process ended, or did not come back
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
    case check::crash: return "crash";
  }
  return "?";
}

struct verdict {
  check by = check::none;  // the first that saw something
  std::string what{};
  bool ok() const { return by == check::none; }
  void note(check c, std::string words) {
    if (ok()) by = c, what = std::move(words);
  }
  friend std::ostream& operator<<(std::ostream& out, verdict const& v) {
    return out << name_of(v.by) << (v.ok() ? "" : ": ") << v.what;
  }
};

// One of the machine's own findings: its first word says which check.
inline check check_of(std::string_view finding) { return finding.starts_with("stuck") ? check::stuck : check::stray; }

// One of the checker's, likewise.
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
