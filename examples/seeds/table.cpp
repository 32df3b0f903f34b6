// Measurement, output and checks of the table.
#include "examples/seeds/table.h"

#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <ostream>

#include "weir/device.h"

namespace seeds {

machine::machine(settings const& with, weir::simulated devices, weir::options o) {
  if (with.on_gpus)
    runtime_.emplace(o);
  else
    runtime_.emplace(devices, o);
  current_.emplace(*runtime_);
}

namespace {
std::int64_t own_memory() {
  std::int64_t all = 0, resident = 0, shared = 0;
  std::ifstream("/proc/self/statm") >> all >> resident >> shared;  // in pages
  return (resident - shared) * sysconf(_SC_PAGESIZE);
}

std::string line(char const* format, auto... what) {
  char text[400];
  std::snprintf(text, sizeof text, format, what...);
  return text;
}
}  // namespace

moment now(weir::device d) {
  weir::memory_info const all = weir::mem_get_info(d);
  return {static_cast<std::int64_t>(weir::memory_allocated(d)), static_cast<std::int64_t>(weir::memory_reserved(d)),
          own_memory() - weir::pinned_memory_stats().reserved_bytes.all.current,
          static_cast<std::int64_t>(all.total - all.free)};
}

std::string in_words(std::int64_t bytes) {
  double const size = static_cast<double>(bytes < 0 ? -bytes : bytes);
  if (size >= 0x1p30)
    return line("%.3f GiB", static_cast<double>(bytes) / 0x1p30);
  if (size >= 0x1p20)
    return line("%.1f MiB", static_cast<double>(bytes) / 0x1p20);
  return size >= 10240 ? line("%.1f KiB", static_cast<double>(bytes) / 1024) : line("%ld B", static_cast<long>(bytes));
}

table::table(settings const& with, std::string_view title) : with_(with) {
  with_.out << "\n" << title << "\n";
  if (!with_.brief)
    with_.out << columns();
}

std::string table::columns() {
  return line("%-44s%11s%11s%11s%13s  %s\n", "step", "allocated", "reserved", "process", "device used",
              "what the article saw");
}

table::~table() {
  if (untold_ > 0)
    with_.out << line("  and %d rows and sentences more that hold", untold_);
}

moment table::row(std::string_view step, expected const& e, std::string_view saw, weir::device d) {
  moment const m = now(d);
  untold_ += with_.brief && saw.empty();
  if (!with_.brief || !saw.empty())
    with_.out << line("%-44.44s%11s%11s%11s%13s  %s\n", std::string(step).c_str(), in_words(m.allocated).c_str(),
                      in_words(m.reserved).c_str(), in_words(m.process).c_str(), in_words(m.used).c_str(),
                      std::string(saw).c_str());
  judge("allocated", m.allocated, e.allocated);
  judge("reserved", m.reserved, e.reserved);
  if (with_.process_memory && before_)
    judge("process memory grew by", m.process - before_->process, e.process_grew);
  // A simulated device has no other users: its used memory is what weir reserves.
  if (!with_.on_gpus)
    judge("used", m.used, exactly(m.reserved));
  before_ = m;
  return m;
}

void table::judge(std::string_view what, std::int64_t bytes, range r) {
  ++judged_;
  if (bytes >= r.least && bytes <= r.most)
    return;
  ++failures_;
  with_.out << line("  NOT AS IT MUST BE: %s %ld B, must be %ld to %ld B\n", std::string(what).c_str(),
                    static_cast<long>(bytes), static_cast<long>(r.least), static_cast<long>(r.most));
}

void table::holds(bool yes, std::string_view sentence) {
  ++judged_;
  failures_ += !yes;
  untold_ += with_.brief && yes;
  if (!with_.brief || !yes)
    with_.out << (yes ? "  " : "  NOT TRUE: ") << sentence << "\n";
}

}  // namespace seeds
