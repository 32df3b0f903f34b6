// The table that adds up, and torch's names for the same numbers.
// Threads: any.
#include "runtime/report/summary.h"

#include <algorithm>
#include <cstdio>

namespace weir {
namespace report {
namespace {

std::string grouped(std::int64_t n) {  // 1,234,567
  std::string const digits = std::to_string(n < 0 ? -n : n);
  std::string out;
  if (n < 0) out += '-';
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i != 0 && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

std::string row(char const* name, stat const& s) {
  char text[160];
  std::snprintf(text, sizeof text, "%-14s %20s %20s %22s %22s\n", name, grouped(s.current).c_str(), grouped(s.peak).c_str(), grouped(s.allocated).c_str(), grouped(s.freed).c_str());
  return text;
}

}  // namespace

std::string summary(memory_statistics const& n, memory_report const& now) {
  char head[160];
  std::snprintf(head, sizeof head, "%-14s %20s %20s %22s %22s\n", (now.on.str() + ", bytes").c_str(), "now", "peak", "taken in all", "given back in all");
  std::string out = head;
  out += row("reserved", n.reserved_bytes.all);
  out += row("= allocated", n.allocated_bytes.all);
  out += row("+ pending", n.pending_bytes.all);
  out += row("+ cached", n.cached_bytes.all);
  out += row("requested", n.requested_bytes.all);
  out += row("live blocks", n.allocation.all);
  out += row("  small", n.allocation.small);
  out += row("  large", n.allocation.large);
  out += row("segments", n.segment.all);
  out += "largest piece free " + grouped(static_cast<std::int64_t>(now.largest_hole)) + " B; device " + grouped(static_cast<std::int64_t>(now.capacity)) +
         " B, limit " + (now.limit ? grouped(static_cast<std::int64_t>(now.limit)) + " B" : "none") + ", outside weir " + grouped(static_cast<std::int64_t>(now.other_processes)) + " B\n";
  out += "out of memory " + std::to_string(n.num_ooms) + ", ladders climbed " + std::to_string(n.num_alloc_retries) + ", waits inserted " + std::to_string(n.waits_inserted) + ", fences " +
         std::to_string(n.fences) + "\n";
  return out;
}

}  // namespace report

std::vector<std::pair<std::string, std::int64_t>> memory_statistics::flat() const {
  std::vector<std::pair<std::string, std::int64_t>> out;
  auto const one = [&](std::string const& name, stat const& s) {
    out.emplace_back(name + ".current", s.current);
    out.emplace_back(name + ".peak", s.peak);
    out.emplace_back(name + ".allocated", s.allocated);
    out.emplace_back(name + ".freed", s.freed);
  };
  auto const by_size = [&](std::string const& name, stat_by_size const& s) {
    one(name + ".all", s.all);
    one(name + ".small_pool", s.small);
    one(name + ".large_pool", s.large);
  };
  by_size("allocation", allocation);
  by_size("segment", segment);
  by_size("active", active);
  by_size("inactive_split", inactive);
  by_size("allocated_bytes", allocated_bytes);
  by_size("requested_bytes", requested_bytes);
  by_size("reserved_bytes", reserved_bytes);
  by_size("active_bytes", active_bytes);
  by_size("inactive_split_bytes", cached_bytes);
  by_size("pending_bytes", pending_bytes);
  one("oversize_allocations", {});  // weir has no such size
  one("oversize_segments", {});
  auto const scalar = [&](char const* name, std::uint64_t value) { out.emplace_back(name, static_cast<std::int64_t>(value)); };
  out.emplace_back("max_split_size", -1);
  scalar("num_alloc_retries", num_alloc_retries);
  scalar("num_ooms", num_ooms);
  scalar("num_sync_all_streams", 0);  // weir never does
  scalar("num_device_alloc", pages_mapped);
  scalar("num_device_free", static_cast<std::uint64_t>(segment.all.freed));
  scalar("cache_hits", cache_hits);
  scalar("fences", fences);
  scalar("waits_inserted", waits_inserted);
  scalar("over_waits", over_waits);
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace weir
