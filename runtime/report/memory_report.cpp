// A memory report as text: the request, where the device's memory is, the recovery steps, and the remedy.
// Threads: any; it reads one value.
#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "weir/stats.h"

namespace weir {
namespace {

constexpr char const* limit_forbids = "The memory limit is reached: raise the limit, or free memory.\n";

std::string in_units(size_t bytes) {
  constexpr std::array<char const*, 4> names{"B", "KiB", "MiB", "GiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < names.size(); ++unit) value /= 1024;
  char text[32];
  std::snprintf(text, sizeof text, unit ? "%.2f %s" : "%.0f %s", value, names[unit]);
  return text;
}

}  // namespace

std::string memory_report::text() const {
  size_t const cached = reserved - allocated - pending;  // reserved = allocated + pending + cached
  std::string out = on.str() + ": no room for " + in_units(requested) + " (" + in_units(rounded) + " rounded)\n";
  constexpr size_t width = 16;  // longer than the longest name
  auto const row = [&out](std::string_view name, size_t bytes) {
    out += "  " + std::string(name) + std::string(width - name.size(), ' ') + in_units(bytes) + '\n';
  };
  row("capacity", capacity);
  size_t const outside = other_processes - std::min(other_processes, exported);
  row("outside weir", outside);
  if (exported) row("shared", exported);
  if (limit != 0 && limit < capacity) row("limit", limit);
  if (host_kept != 0) {
    row("available", host_available);
    row("  for others", host_kept);
  }
  row("reserved", reserved);
  row("  allocated", allocated);
  row("  pending", pending);
  row("  cached", cached);
  row("largest free", largest_free);
  bool addresses = false, listed = false;  // addresses: these were short, not memory
  for (recovery_step const& tried : recovery) {
    if (tried.name == "addresses") {
      addresses = true;
      continue;
    }
    bool const waited = tried.name.starts_with("waited");  // frees no bytes, but later steps may find some
    if (!std::exchange(listed, true)) out += "  recovery steps\n";
    out += "    " + std::string(tried.name) + ": " +
           (waited ? (tried.gave_bytes ? "completed" : "none was pending") : in_units(tried.gave_bytes)) + " in " +
           std::to_string(tried.ns / 1000) + " us\n";
  }
  size_t const others_leave = capacity - std::min(capacity, other_processes);
  bool const limited = limit != 0 && limit < others_leave;
  size_t const within = limited ? limit : others_leave;  // the most that may be reserved
  size_t const held = allocated + pending;
  if (rounded > capacity) {
    out += std::string("The request is larger than the ") + (on.is_cpu() ? "host" : "device") + ".\n";
  } else if (host_kept != 0 && rounded + host_kept > host_available) {
    size_t const spare = host_available - std::min(host_available, host_kept);
    out += "The host has " + in_units(host_available) + " available, of which weir leaves " + in_units(host_kept) +
           " to others and may pin " + in_units(spare) +
           ". Free pinned memory, use fewer or smaller buffers, or raise the total with pinned_limit "
           "(WEIR_CONF=pinned_limit:" +
           std::to_string((reserved + rounded) / (size_t{1} << 30) + 1) + "GiB).\n";
  } else if (addresses) {
    out +=
        "The address space has no free range of that length. Each stream has addresses of its own. Raise "
        "the option address_space, or use fewer streams: a new stream reuses the addresses of one that has ended.\n";
  } else if (limit != 0 && rounded > limit) {
    out +=
        "The request is larger than the memory limit. Raise the limit (set_memory_limit, or the option "
        "device_limit), or request less.\n";
  } else if (limit != 0 && allocated + rounded > limit && limit < capacity) {
    out += limit_forbids;
  } else if (exported > capacity / 2) {
    out +=
        "Most of the device is memory to share with other processes. Destroy unused shared buffers and pools, "
        "or trim the pools.\n";
  } else if (outside > capacity / 2) {
    out += "Other processes or libraries hold most of the device. End them, or use another device.\n";
  } else if (held + rounded <= within && largest_free < rounded && cached >= within / 64) {
    // less is the rest of a page here and there
    out +=
        "Enough bytes are free, but live blocks occupy their pages, so weir cannot merge them. Allocate large "
        "blocks first, and long-lived blocks together.\n";
  } else if (pending > rounded) {
    out +=
        "Freed blocks are pending on their streams. Synchronize before the allocation, or keep fewer steps in "
        "flight.\n";
  } else if (limited) {
    out += limit_forbids;
  } else {
    out += "The program's live blocks fill the memory. Free tensors and buffers earlier, or use smaller batches.\n";
  }
  return out;
}

}  // namespace weir
