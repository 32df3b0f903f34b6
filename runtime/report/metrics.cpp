// One family for each kind of number; states and sizes are labels, so that a dashboard can add them up.
// Threads: any.
#include "runtime/report/metrics.h"

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
    {&memory_statistics::num_alloc_retries, "weir_ladders_climbed_total",
     "Allocations that had to look for memory beyond their stream's cache and the driver."},
    {&memory_statistics::waits_inserted, "weir_waits_inserted_total", "Waits between streams for the sake of memory."},
    {&memory_statistics::late_waits, "weir_late_waits_total",
     "Of these waits, those behind all that a stream had been given when somebody asked."},
    {&memory_statistics::fences, "weir_fences_total", "Events recorded for the sake of memory."},
    {&memory_statistics::pages_mapped, "weir_pieces_mapped_total", "Pieces of memory asked of the driver."},
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
  std::string take() && { return std::move(out_); }

 private:
  std::string out_, name_;
};

}  // namespace

std::string metrics(std::span<measured const> all) {
  page out;
  out.family("weir_memory_bytes", "gauge", "Memory held of the driver, by state: the sum is what is reserved.");
  for (measured const& m : all) {
    for (level const& l : levels) out.sample(m.device, "state", l.state, (m.numbers.*l.at).all.current);
  }
  out.family("weir_memory_peak_bytes", "gauge", "The most there was since the peaks were reset.");
  for (measured const& m : all) {
    for (level const& l : peaks) out.sample(m.device, "state", l.state, (m.numbers.*l.at).all.peak);
  }
  out.family("weir_shared_bytes", "gauge",
             "Memory of the device that is shared with other processes, beside what is reserved: this process's, and "
             "others' mapped here.");
  for (measured const& m : all) {
    out.sample(m.device, "state", "exported", m.numbers.exported_bytes.current);
    out.sample(m.device, "state", "imported", m.numbers.imported_bytes.current);
  }
  out.family("weir_blocks", "gauge", "Live blocks, by size: small ones are slots of a slab.");
  for (measured const& m : all) {
    out.sample(m.device, "size", "small", m.numbers.allocation.small.current);
    out.sample(m.device, "size", "large", m.numbers.allocation.large.current);
  }
  out.family("weir_allocations_total", "counter", "Blocks taken.");
  for (measured const& m : all) {
    out.sample(m.device, "size", "small", m.numbers.allocation.small.allocated);
    out.sample(m.device, "size", "large", m.numbers.allocation.large.allocated);
  }
  out.family("weir_allocated_bytes_total", "counter", "Bytes taken, rounded.");
  for (measured const& m : all) out.sample(m.device, "", "", m.numbers.allocated_bytes.all.allocated);
  for (count const& c : counts) {
    out.family(c.name, "counter", c.help);
    for (measured const& m : all) out.sample(m.device, "", "", static_cast<std::int64_t>(m.numbers.*c.at));
  }
  out.family("weir_ladders_found_total", "counter",
             "Of the allocations that had to look, those that found memory, by where.");
  for (measured const& m : all) {
    for (std::size_t i = 0; i < recovery_steps.size(); ++i)
      out.sample(m.device, "step", recovery_steps[i], static_cast<std::int64_t>(m.numbers.recovered_by[i]));
  }
  return std::move(out).take();
}

}  // namespace weir::report
