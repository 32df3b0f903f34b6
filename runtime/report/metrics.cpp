// One family for each kind of number; states and sizes are labels, so that a dashboard can add them up.
// Threads: any.
#include "runtime/report/summary.h"

#include <algorithm>

namespace weir::report {
namespace {

using by_size = statistic_by_size memory_statistics::*;
struct level {
  by_size at;
  std::string_view state;
};
constexpr level levels[] = {{&memory_statistics::allocated_bytes, "allocated"},
                            {&memory_statistics::pending_bytes, "pending"},
                            {&memory_statistics::cached_bytes, "cached"}};
constexpr level peaks[] = {{&memory_statistics::allocated_bytes, "allocated"},
                           {&memory_statistics::reserved_bytes, "reserved"},
                           {&memory_statistics::requested_bytes, "requested"}};
struct count {
  std::uint64_t memory_statistics::*at;
  std::string_view name, help;
};
constexpr count counts[] = {
    {&memory_statistics::num_ooms, "weir_out_of_memory_total", "Allocations that failed."},
    {&memory_statistics::num_alloc_retries, "weir_recovery_attempts_total",
     "Allocations that neither their stream's heap nor the driver could serve."},
    {&memory_statistics::waits_inserted, "weir_waits_inserted_total",
     "Waits inserted between streams to reuse memory."},
    {&memory_statistics::late_waits, "weir_late_waits_total",
     "Inserted waits that cover all work enqueued at the request."},
    {&memory_statistics::fences, "weir_fences_total", "Events recorded to reuse memory."},
    {&memory_statistics::pages_mapped, "weir_pages_mapped_total", "Memory handles created by the driver."},
    {&memory_statistics::handles_moved, "weir_handles_moved_total",
     "Memory handles moved to other addresses instead of growth."},
};

class page {
 public:
  void family(std::string_view name, std::string_view type, std::string_view help) {
    name_ = name;
    out_ += "# HELP " + name_ + ' ' + std::string(help) + "\n# TYPE " + name_ + ' ' + std::string(type) + '\n';
  }
  void sample(std::string const& device, std::string_view label, std::string_view value, std::int64_t n) {
    out_ += name_ + "{device=\"" + device + '"' +
            (label.empty() ? "" : "," + std::string(label) + "=\"" + std::string(value) + '"') + "} " +
            std::to_string(n) + '\n';
  }
  void sample_of_pool(std::string const& device, std::string_view pool, std::string_view state, std::size_t n) {
    std::string name;
    for (char const c : pool)
      name += c == '\\' ? "\\\\" : c == '"' ? "\\\"" : c == '\n' ? "\\n" : std::string(1, c);
    out_ += name_ + "{device=\"" + device + "\",pool=\"" + name + '"' +
            (state.empty() ? "" : ",state=\"" + std::string(state) + '"') + "} " + std::to_string(n) + '\n';
  }
  std::string take() && { return std::move(out_); }

 private:
  std::string out_, name_;
};

using devices = std::span<measured const>;

void add_levels(page& out, devices all) {
  out.family("weir_memory_bytes", "gauge",
             "Reserved device memory, by state. The states add up to all reserved memory.");
  for (measured const& m : all) {
    for (level const& l : levels)
      out.sample(m.device, "state", l.state, (m.numbers.*l.at).all.current);
  }
  out.family("weir_memory_peak_bytes", "gauge", "Peak memory since the last reset.");
  for (measured const& m : all) {
    for (level const& l : peaks)
      out.sample(m.device, "state", l.state, (m.numbers.*l.at).all.peak);
  }
}

void add_pools(page& out, devices all) {
  // A family without a sample would be an empty row of a dashboard.
  if (std::ranges::none_of(all, [](measured const& m) { return !m.pools.empty(); }))
    return;
  out.family("weir_pool_bytes", "gauge", "Reserved device memory of a pool, by state. Part of weir_memory_bytes.");
  for (measured const& m : all) {
    for (pool_memory_use const& p : m.pools) {
      out.sample_of_pool(m.device, p.name, "allocated", p.allocated);
      out.sample_of_pool(m.device, p.name, "pending", p.pending);
      out.sample_of_pool(m.device, p.name, "cached", p.cached);
    }
  }
  out.family("weir_pool_limit_bytes", "gauge", "The limit of a pool's reserved memory; 0: none.");
  for (measured const& m : all) {
    for (pool_memory_use const& p : m.pools)
      out.sample_of_pool(m.device, p.name, "", p.limit);
  }
}

void add_shared(page& out, devices all) {
  out.family("weir_shared_bytes", "gauge",
             "Device memory shared with other processes, not part of reserved memory: exported by this process, or "
             "imported from others.");
  for (measured const& m : all) {
    out.sample(m.device, "state", "exported", m.numbers.exported_bytes.current);
    out.sample(m.device, "state", "imported", m.numbers.imported_bytes.current);
  }
}

void add_blocks(page& out, devices all) {
  out.family("weir_blocks", "gauge", "Live blocks, by size. Small blocks are slots of a slab.");
  for (measured const& m : all) {
    out.sample(m.device, "size", "small", m.numbers.allocation.small.current);
    out.sample(m.device, "size", "large", m.numbers.allocation.large.current);
  }
  out.family("weir_allocations_total", "counter", "Blocks allocated.");
  for (measured const& m : all) {
    out.sample(m.device, "size", "small", m.numbers.allocation.small.allocated);
    out.sample(m.device, "size", "large", m.numbers.allocation.large.allocated);
  }
  out.family("weir_allocated_bytes_total", "counter", "Bytes allocated, after rounding.");
  for (measured const& m : all)
    out.sample(m.device, "", "", m.numbers.allocated_bytes.all.allocated);
}

void add_counts(page& out, devices all) {
  for (count const& c : counts) {
    out.family(c.name, "counter", c.help);
    for (measured const& m : all)
      out.sample(m.device, "", "", static_cast<std::int64_t>(m.numbers.*c.at));
  }
  out.family("weir_recovered_allocations_total", "counter", "Allocations served by a recovery step, by step.");
  for (measured const& m : all) {
    for (std::size_t i = 0; i < recovery_steps.size(); ++i)
      out.sample(m.device, "step", recovery_steps[i], static_cast<std::int64_t>(m.numbers.recovered_by[i]));
  }
}

}  // namespace

std::string metrics(std::span<measured const> all) {
  page out;
  add_levels(out, all);
  add_pools(out, all);
  add_shared(out, all);
  add_blocks(out, all);
  add_counts(out, all);
  return std::move(out).take();
}

}  // namespace weir::report
