// The results of a soak, in a table that fits a screen.
// Threads: any.
#include <cstdio>

#include "tests/soak/soak.h"

namespace weir::soak {

std::string_view name_of(path p) noexcept {
  switch (p) {
    case path::same_stream: return "reuse by the same stream";
    case path::ordered: return "reuse by another, ordered";
    case path::polled: return "reuse after a poll";
    case path::device_wait: return "reuse behind a device wait";
    case path::marked: return "freed while marked";
    case path::other_thread: return "freed by another thread";
    case path::growth: return "growth";
    case path::refused: return "out of memory";
    case path::ladder: return "the ladder climbed";
    case path::peer_up: return "copy to a higher device";
    case path::peer_down: return "copy to a lower device";
    case path::peer_read: return "kernel reads a peer";
    case path::staged_in: return "pageable to device";
    case path::staged_out: return "device to pageable";
    case path::pinned_in: return "pinned to device";
    case path::pinned_out: return "device to pinned";
    case path::pinned_reuse: return "pinned memory reused";
    case path::unmapped: return "handles unmapped";
    case path::count: break;
  }
  return "unknown";
}

bool possible(path p, int devices) noexcept {
  return devices > 1 || (p != path::peer_up && p != path::peer_down && p != path::peer_read);
}

std::string table(plan const& p, outcome const& o) {
  char line[256];
  std::string out;
  std::snprintf(line, sizeof line, "soak: %s; %d threads x %d streams x %d devices, %.0f s, seed %llu\n",
                o.machine.c_str(), p.threads, p.streams, o.devices, o.seconds, static_cast<unsigned long long>(p.seed));
  out += line;
  for (std::size_t i = 0; i < paths; ++i) {
    auto const which = static_cast<path>(i);
    char const* const note = !possible(which, o.devices) ? "needs two devices"
                             : o.times[i] < p.least      ? "TOO SELDOM"
                                                         : "";
    std::snprintf(line, sizeof line, "  %-28s %12llu  %s\n", std::string(name_of(which)).c_str(),
                  static_cast<unsigned long long>(o.times[i]), note);
    out += line;
  }
  std::snprintf(line, sizeof line, "  %llu operations, %llu verifications given, %llu reported, %llu mismatches\n",
                static_cast<unsigned long long>(o.operations), static_cast<unsigned long long>(o.launched),
                static_cast<unsigned long long>(o.reported), static_cast<unsigned long long>(o.mismatches));
  out += line;
  std::snprintf(line, sizeof line,
                "  %llu blocks behind device waits, which covered %.1f operations each beyond the last use\n",
                static_cast<unsigned long long>(o.waits),
                o.waits ? static_cast<double>(o.over_wait) / static_cast<double>(o.waits) : 0.0);
  out += line;
  if (o.lost)
    out += "  A DEVICE WAS LOST\n";
  if (!o.first_mismatch.empty())
    out += "  first: " + o.first_mismatch + "\n";
  if (!o.failure.empty())
    out += "  failure: " + o.failure + "\n";
  return out;
}

}  // namespace weir::soak
