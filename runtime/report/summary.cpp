// The table with sums, and the same numbers under torch's names.
// Threads: any.
#include "runtime/report/summary.h"

#include <algorithm>
#include <cstdio>

#include "runtime/options/options.h"

namespace weir {
namespace report {
namespace {

std::string grouped(std::int64_t n) {  // 1,234,567
  std::string const digits = std::to_string(n < 0 ? -n : n);
  std::string out;
  if (n < 0)
    out += '-';
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i != 0 && (digits.size() - i) % 3 == 0)
      out += ',';
    out += digits[i];
  }
  return out;
}

std::string row(char const* name, statistic const& s) {
  char text[160];
  std::snprintf(text, sizeof text, "%-14s %20s %20s %22s %22s\n", name, grouped(s.current).c_str(),
                grouped(s.peak).c_str(), grouped(s.allocated).c_str(), grouped(s.freed).c_str());
  return text;
}

std::string in_units(std::int64_t bytes) {
  return bytes_text(static_cast<std::size_t>(bytes));
}

// Noteworthy: at least an eighth of `of`, and at least a page.
bool worth(std::int64_t bytes, std::int64_t of) {
  return bytes >= 2 << 20 && bytes >= of / 8;
}

std::string stream_text(std::uint64_t number) {
  return number ? "stream " + std::to_string(number) : std::string("streams that share pages");
}

std::string whose_cached(statistic const& cached, std::int64_t reserved, std::span<stream_memory_use const> streams) {
  std::string out = in_units(cached.current) + " of " + in_units(reserved) + " are free";
  std::size_t told = 0;
  for (stream_memory_use const& u : streams) {
    if (u.cached == 0 || u.cached < static_cast<std::size_t>(cached.current) / 8 || told == 3)
      continue;
    out += (told ? ", " : ": ") + bytes_text(u.cached) + " belong to " + stream_text(u.stream) +
           (u.allocated == 0 && u.pending == 0 ? ", which holds nothing else" : "");
    ++told;
  }
  return out + ". Other streams can use them when memory is short; empty_cache() returns them to the driver.\n";
}

std::string what_is_pending(std::int64_t pending, std::span<stream_memory_use const> streams) {
  std::string out = in_units(pending) + " are freed but may still be in use";
  std::size_t told = 0;
  for (stream_memory_use const& u : streams) {
    for (auto const& w : u.waits_for) {
      if (told == 4)
        break;
      out += told ? ", " : ": ";
      out += bytes_text(w.bytes) + " of " + stream_text(u.stream) + " on " + stream_text(w.stream);
      ++told;
    }
  }
  return out + ".\n";
}

std::int64_t outside(memory_report const& now) {
  return static_cast<std::int64_t>(now.other_processes - std::min(now.other_processes, now.exported));
}

std::string pool_row(pool_memory_use const& p) {
  auto const bytes = [](size_t n) { return grouped(static_cast<std::int64_t>(n)); };
  return "pool " + p.name + ": reserved " + bytes(p.reserved) + " B = allocated " + bytes(p.allocated) + " + pending " +
         bytes(p.pending) + " + cached " + bytes(p.cached) + ", peak " + bytes(p.max_reserved) + ", limit " +
         (p.limit ? bytes(p.limit) : "none") + (p.asleep ? ", asleep " + bytes(p.asleep) + " B" : "") + "\n";
}

// One plain sentence for each noteworthy fact.
std::string sentences(memory_statistics const& n, memory_report const& now,
                      std::span<stream_memory_use const> streams) {
  std::int64_t const reserved = n.reserved_bytes.all.current, cached = n.cached_bytes.all.current,
                     pending = n.pending_bytes.all.current;
  std::int64_t const rounding = n.allocated_bytes.all.current - n.requested_bytes.all.current;
  auto const largest_free = static_cast<std::int64_t>(now.largest_free);
  std::string out;
  if (worth(cached, reserved))
    out += whose_cached(n.cached_bytes.all, reserved, streams);
  if (worth(pending, reserved))
    out += what_is_pending(pending, streams);
  if (worth(cached, reserved) && largest_free < cached / 2)
    out += "The largest free block has " + in_units(largest_free) + " of the " + in_units(cached) +
           " free. A larger allocation merges free memory, or reserves more.\n";
  if (worth(rounding, reserved))
    out += in_units(rounding) +
           " are lost to rounding of small blocks. Allocate one large block and divide it to avoid this.\n";
  if (worth(n.reserved_bytes.all.peak - reserved, reserved))
    out += "The peak of reserved memory was " + in_units(n.reserved_bytes.all.peak) + ", " +
           in_units(n.reserved_bytes.all.peak - reserved) + " more than now.\n";
  if (n.peer_access_bytes)
    out += in_units(static_cast<std::int64_t>(n.peer_access_bytes)) +
           " are open to other devices. weir does not move them.\n";
  if (n.exported_bytes.current)
    out += in_units(n.exported_bytes.current) + " more are reserved to share with other processes.\n";
  if (n.imported_bytes.current)
    out += in_units(n.imported_bytes.current) + " of other processes are mapped in this process.\n";
  if (worth(outside(now), static_cast<std::int64_t>(now.capacity)))
    out += in_units(outside(now)) + " of the device's " + bytes_text(now.capacity) +
           " are in use outside weir: by other programs, by libraries, or by CUDA's context.\n";
  if (n.num_ooms)
    out += std::to_string(n.num_ooms) + (n.num_ooms == 1 ? " allocation" : " allocations") +
           " failed for lack of memory. out_of_memory::report() lists the recovery steps of each.\n";
  return out;
}

}  // namespace

std::string summary(memory_statistics const& n, memory_report const& now, std::span<stream_memory_use const> streams,
                    std::span<pool_memory_use const> pools) {
  char head[160];
  std::snprintf(head, sizeof head, "%-14s %20s %20s %22s %22s\n", (now.on.str() + ", bytes").c_str(), "now", "peak",
                "allocated in all", "freed in all");
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
  out += "largest free block " + bytes_text(now.largest_free) + "; device " + bytes_text(now.capacity) + ", limit " +
         (now.limit ? bytes_text(now.limit) : "none") + ", outside weir " + in_units(outside(now)) + "\n";
  out += "out of memory " + std::to_string(n.num_ooms) + ", recovery attempts " + std::to_string(n.num_alloc_retries) +
         ", waits inserted " + std::to_string(n.waits_inserted) + ", fences " + std::to_string(n.fences) + "\n";
  for (pool_memory_use const& p : pools)
    out += pool_row(p);
  return out + sentences(n, now, streams);
}

}  // namespace report

std::vector<std::pair<std::string, std::int64_t>> memory_statistics::flat() const {
  std::vector<std::pair<std::string, std::int64_t>> out;
  auto const one = [&](std::string const& name, statistic const& s) {
    out.emplace_back(name + ".current", s.current);
    out.emplace_back(name + ".peak", s.peak);
    out.emplace_back(name + ".allocated", s.allocated);
    out.emplace_back(name + ".freed", s.freed);
  };
  auto const by_size = [&](std::string const& name, statistic_by_size const& s) {
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
  one("exported_bytes", exported_bytes);
  one("imported_bytes", imported_bytes);
  one("oversize_allocations", {});  // no such size in weir
  one("oversize_segments", {});
  auto const scalar = [&](std::string const& name, std::uint64_t value) {
    out.emplace_back(name, static_cast<std::int64_t>(value));
  };
  out.emplace_back("max_split_size", -1);
  scalar("num_alloc_retries", num_alloc_retries);
  scalar("num_ooms", num_ooms);
  for (std::size_t i = 0; i < recovery_steps.size(); ++i)
    scalar("recovered_by." + std::string(recovery_steps[i]), recovered_by[i]);
  scalar("num_sync_all_streams", 0);  // weir never does this
  scalar("num_device_alloc", pages_mapped);
  scalar("peer_access_bytes", peer_access_bytes);
  scalar("num_device_free", static_cast<std::uint64_t>(segment.all.freed));
  scalar("cache_hits", cache_hits);
  scalar("fences", fences);
  scalar("waits_inserted", waits_inserted);
  scalar("late_waits", late_waits);
  scalar("handles_moved", handles_moved);
  scalar("bound_width", bound_width);
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace weir
