// A memory report as text: the request, where the device's memory is, the recovery steps, and the remedy.
// Threads: any; it reads one value.
#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "weir/stats.h"

namespace weir {
namespace {

std::string in_units(size_t bytes) {
  constexpr std::array<char const*, 4> names{"B", "KiB", "MiB", "GiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < names.size(); ++unit)
    value /= 1024;
  char text[32];
  std::snprintf(text, sizeof text, unit ? "%.2f %s" : "%.0f %s", value, names[unit]);
  return text;
}

// The cause of a report that names none, from its sums alone. addresses: a range of addresses was short.
memory_cause likeliest_cause(memory_report const& r, bool addresses) {
  size_t const others_leave = r.capacity - std::min(r.capacity, r.other_processes);
  bool const limited = r.limit != 0 && r.limit < others_leave;
  size_t const within = limited ? r.limit : others_leave;  // the most that may be reserved
  size_t const held = r.allocated + r.pending, cached = r.reserved - held;
  size_t const outside = r.other_processes - std::min(r.other_processes, r.exported);
  if (r.rounded > r.capacity)
    return memory_cause::too_large;
  if (r.host_kept != 0 && r.rounded + r.host_kept > r.host_available)
    return memory_cause::host;
  if (addresses)
    return memory_cause::addresses;
  // Even with all free and pending memory the request would pass the limit.
  if (r.limit != 0 && r.allocated + r.rounded > r.limit && r.limit < r.capacity)
    return memory_cause::limit;
  if (r.exported > r.capacity / 2)
    return memory_cause::shared;
  if (outside > r.capacity / 2)
    return memory_cause::outside;
  // Enough is free, but in no single range. Less than a 64th is no cause: a rest of a page here and there.
  if (held + r.rounded <= within && r.largest_free < r.rounded && cached >= within / 64)
    return memory_cause::survivors;
  if (r.pending > r.rounded)
    return memory_cause::pending;
  return limited ? memory_cause::limit : memory_cause::in_use;
}

std::string gib_for(size_t bytes) {
  return std::to_string(bytes / (size_t{1} << 30) + 1) + "GiB";
}

std::string too_large(memory_report const& r) {
  if (r.requested > ~size_t{0} / 2)
    return "The size has overflowed: check the product it was made from.\n";
  return std::string("The request is larger than the ") + (r.on.is_cpu() ? "host" : "device") + ".\n";
}

std::string short_of_host_memory(memory_report const& r) {
  if (r.host_kept == 0)
    return "The host gives this process no more memory. Free some, request less, or raise the limit of the "
           "process (`ulimit -v`).\n";
  size_t const spare = r.host_available - std::min(r.host_available, r.host_kept);
  return "The host has " + in_units(r.host_available) + " available, of which weir leaves " + in_units(r.host_kept) +
         " to others and may pin " + in_units(spare) +
         ". Free pinned memory, use fewer or smaller buffers, or raise the total with pinned_limit "
         "(WEIR_CONF=pinned_limit:" +
         gib_for(r.reserved + r.rounded) + ").\n";
}

std::string short_of_addresses(memory_report const& r) {
  if (r.on.is_cpu())
    return "The process may map no more addresses. Free some memory, or raise its limit (`ulimit -v`).\n";
  return "The address space has no free range of that length. Each stream has addresses of its own, and each shared "
         "buffer has, too. Raise the option address_space, or use fewer of them: a new stream reuses the addresses "
         "of one that has ended.\n";
}

std::string at_the_limit(memory_report const& r) {
  if (r.on.is_cpu()) {
    std::string const remedy =
        "Raise the limit with pinned_limit (WEIR_CONF=pinned_limit:" + gib_for(r.allocated + r.pending + r.rounded) +
        ").\n";
    if (r.rounded > r.limit)
      return "The request is larger than the limit of pinned memory. " + remedy;
    return "The limit of pinned memory is reached: free pinned buffers. " + remedy;
  }
  if (r.rounded > r.limit)
    return "The request is larger than the memory limit. Raise the limit (set_memory_limit, or the option "
           "device_limit), or request less.\n";
  return "The memory limit is reached: raise the limit, or free memory.\n";
}

std::string at_the_limit_of_its_pool(memory_report const& r) {
  if (r.rounded > r.pool.limit)
    return "The request is larger than the limit of its pool. Raise the limit (pool::set_limit), or request "
           "less.\n";
  return "The limit of the pool is reached: free blocks of the pool, or raise its limit (pool::set_limit).\n";
}

std::string at_the_limit_of_its_share_pool(memory_report const& r) {
  if (r.rounded > r.pool.limit)
    return "The request is larger than the limit of its share_pool. Give the pool a larger limit "
           "(share_pool_options::limit), or request less.\n";
  return "The limit of the share_pool is reached: free buffers of the pool here and in other processes, or give it "
         "a larger limit (share_pool_options::limit).\n";
}

std::string refused_by_the_driver(memory_report const& r) {
  if (r.on.is_cpu())
    return "The system locks no more pages. Raise its limit of locked pages (`ulimit -l`), or pin less.\n";
  return "The driver refused memory that it reported as free. Another process may have allocated it. Look at "
         "`nvidia-smi`, and try again.\n";
}

// Long: one case for each cause.
std::string sentence(memory_report const& r, memory_cause why) {
  switch (why) {
    case memory_cause::too_large: return too_large(r);
    case memory_cause::host: return short_of_host_memory(r);
    case memory_cause::addresses: return short_of_addresses(r);
    case memory_cause::limit: return at_the_limit(r);
    case memory_cause::pool_limit: return at_the_limit_of_its_pool(r);
    case memory_cause::share_limit: return at_the_limit_of_its_share_pool(r);
    case memory_cause::driver: return refused_by_the_driver(r);
    case memory_cause::shared:
      return "Most of the device is memory to share with other processes. Destroy unused shared buffers and pools, "
             "or trim the pools.\n";
    case memory_cause::outside:
      return std::string("Other processes or libraries hold ") +
             (r.other_processes > r.capacity / 2 ? "most" : "much") +
             " of the device. End them, or use another device.\n";
    case memory_cause::survivors:
      return "Enough bytes are free, but live blocks occupy their pages, so weir cannot merge them. Allocate large "
             "blocks first, and long-lived blocks together.\n";
    case memory_cause::pending:
      return "Freed blocks are pending on their streams. Synchronize before the allocation, or keep fewer steps in "
             "flight.\n";
    default:
      return "The program's live blocks fill the memory. Free tensors and buffers earlier, or use smaller batches.\n";
  }
}

std::string row(std::string_view name, size_t bytes) {
  constexpr size_t width = 16;  // longer than the longest name
  return "  " + std::string(name) + std::string(width - name.size(), ' ') + in_units(bytes) + '\n';
}
std::string row_if(size_t bytes, std::string_view name) {
  return bytes ? row(name, bytes) : "";
}

std::string rows_of_memory(memory_report const& r) {
  std::string out = row("capacity", r.capacity);
  out += row("outside weir", r.other_processes - std::min(r.other_processes, r.exported));
  out += row_if(r.exported, "shared");
  out += row_if(r.driver_reserve, "for the driver");
  if (r.limit < r.capacity)
    out += row_if(r.limit, "limit");
  if (r.host_kept != 0)
    out += row("available", r.host_available) + row("  for others", r.host_kept);
  out += row("reserved", r.reserved);
  out += row("  allocated", r.allocated);
  out += row("  pending", r.pending);
  out += row("  cached", r.reserved - r.allocated - r.pending);  // reserved = allocated + pending + cached
  out += row("largest free", r.largest_free);
  return out;
}

std::string rows_of_pool(memory_report const& r) {
  std::string out = row_if(r.pool.limit, "limit of pool");
  out += row("reserved there", r.pool.reserved);
  out += row("  allocated", r.pool.allocated);
  out += row("  pending", r.pool.pending);
  out += row("  cached", r.pool.cached);
  return out;
}

// No step: a range of addresses was short, not memory.
bool is_of_addresses(recovery_step const& tried) {
  return tried.name == "addresses";
}

std::string what_it_gave(recovery_step const& tried) {
  // A wait frees no bytes, but later steps may find some.
  if (!tried.name.starts_with("waited"))
    return in_units(tried.gave_bytes);
  return tried.gave_bytes ? "completed" : "none was pending";
}

std::string lines_of_recovery(memory_report const& r) {
  std::string out;
  for (recovery_step const& tried : r.recovery) {
    if (is_of_addresses(tried))
      continue;
    if (out.empty())
      out = "  recovery steps\n";
    out += "    " + std::string(tried.name) + ": " + what_it_gave(tried) + " in " + std::to_string(tried.ns / 1000) +
           " us\n";
  }
  return out;
}

}  // namespace

std::string_view name(memory_cause why) noexcept {
  constexpr std::array<std::string_view, 13> names{"none",    "too large",  "limit",      "in use", "survivors",
                                                   "pending", "outside",    "shared",     "driver", "addresses",
                                                   "host",    "pool limit", "share limit"};
  return names[static_cast<size_t>(why)];
}

std::string memory_report::text() const {
  std::string out = on.str() + ": no room for " + in_units(requested) + " (" + in_units(rounded) + " rounded)";
  if (!pool.name.empty())
    out += " in pool " + pool.name;
  out += '\n' + rows_of_memory(*this);
  if (!pool.name.empty())
    out += rows_of_pool(*this);
  out += lines_of_recovery(*this);
  memory_cause why = cause;
  if (why == memory_cause::none)
    why = likeliest_cause(*this, std::ranges::any_of(recovery, is_of_addresses));
  out += sentence(*this, why);
  for (auto const& w : waits_for)
    out += "Stream " + std::to_string(w.stream) + " still uses " + in_units(w.bytes) + " of freed memory.\n";
  char const* const what = why == memory_cause::survivors ? " kept in place by blocks of " : " in live blocks of ";
  for (holder const& h : holders)
    out += in_units(h.bytes) + what + std::string(h.where.file_name()) + ":" + std::to_string(h.where.line()) + ".\n";
  return out;
}

}  // namespace weir
