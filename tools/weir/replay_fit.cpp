// weir replay --fit: searches, and prints what it found.
// Threads: one.
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "command_line.h"
#include "fit.h"
#include "runtime/base/round_up.h"
#include "runtime/base/text.h"

namespace weir::tool {
namespace {

constexpr std::size_t page = 2 << 20;  // bytes: of a GPU's memory; a limit between two pages is that of the lower one

// A line on a terminal that the next one overwrites; into a file nothing.
class progress {
 public:
  explicit progress(std::string name) : name_(std::move(name)) {}
  progress(progress const&) = delete;
  ~progress() {
    if (on_) std::fputs("\r\x1b[K", stderr);
  }
  void tell(char const* how, std::size_t limit) {
    if (!on_) return;
    std::string const what = limit ? "a limit of " + bytes_text(limit) : "no limit";
    std::fprintf(stderr, "\r\x1b[K%s: replay %d, %s, %s", name_.c_str(), ++replays_, how, what.c_str());
  }

 private:
  std::string const name_;
  bool const on_ = ::isatty(STDERR_FILENO) != 0;
  int replays_ = 0;
};

struct fitted {
  std::optional<std::size_t> limit;  // bytes; null: does not fit the device
  replay_outcome under{};                   // that limit
};

struct found {
  replay_outcome unlimited;
  fitted usual, careful;
};

fitted search(std::string const& path, trace const& t, replay_settings s, std::size_t most, char const* how,
              progress& told) {
  std::size_t const step = std::max(page, base::round_up(t.peak_requested / 1000, page));
  std::size_t const below = t.peak_held > page ? base::round_up(t.peak_held, page) - page : 0;
  fitted out;
  s.until_refused = true;
  auto const fits = [&](std::size_t limit) {
    told.tell(how, limit);
    s.limit = limit;
    replay_outcome o = replay_one(path, t, s);
    if (o.memory.num_ooms) return false;
    out.under = std::move(o);
    return true;
  };
  out.limit = smallest_limit(below, base::round_up(t.peak_requested, page), most, step, fits);
  if (out.limit && out.under.limit != *out.limit) (void)fits(*out.limit);  // another was tried later
  return out;
}

found search(std::string const& path, trace const& t, replay_settings const& s) {
  progress told(base::visible(path));
  replay_settings free = s;
  free.until_refused = true;
  told.tell("by default", 0);
  found out{replay_one(path, t, free), {}, {}};
  std::size_t const most = out.unlimited.capacity / page * page;
  if (!out.unlimited.memory.num_ooms) out.usual = search(path, t, s, most, "by default", told);
  replay_settings careful = s;
  careful.epsilon = 0;
  out.careful = search(path, t, careful, most, "carefully", told);
  return out;
}

double of_peak(trace const& t, std::size_t limit) {
  return t.peak_requested ? static_cast<double>(limit) / static_cast<double>(t.peak_requested) : 0;
}

std::string number_or_null(std::optional<std::size_t> n) { return n ? std::to_string(*n) : "null"; }

std::string json_of(char const* prefix, trace const& t, fitted const& f) {
  std::string const is = std::string("\"") + prefix;
  return is + "limit\": " + number_or_null(f.limit) + ", " + is +
         "ratio\": " + (f.limit ? base::json_number(of_peak(t, *f.limit), 4) : "null") + ", " + is +
         "warm_ns_per_op\": " + (f.limit ? base::json_number(f.under.warm_ns, 1) : "null") + ", " + is +
         "warm_driver_ns_per_op\": " + (f.limit ? base::json_number(f.under.warm_driver_ns, 1) : "null") + ", " + is +
         "opened_early\": " + (f.limit ? std::to_string(f.under.opened_early) : "null");
}

void print_json(std::string const& path, trace const& t, found const& f) {
  gpu_size const* const gpu = f.usual.limit ? smallest_gpu(*f.usual.limit) : nullptr;
  std::printf(
      "{\"trace\": %s, \"devices\": %s, \"fits\": %s, \"ops\": %zu, \"peak_requested\": %zu, \"gpu_gb\": %s, "
      "\"epsilon\": %s, %s, %s, "
      "\"unlimited_peak_reserved\": %lld, \"unlimited_warm_ns_per_op\": %s, \"unlimited_warm_driver_ns_per_op\": "
      "%s}\n",
      base::json_text(path).c_str(), base::json_text(f.unlimited.devices).c_str(), f.usual.limit ? "true" : "false",
      t.operations.size(), t.peak_requested, gpu ? std::to_string(gpu->gb).c_str() : "null",
      base::json_number(f.unlimited.epsilon, 4).c_str(), json_of("", t, f.usual).c_str(),
      json_of("careful_", t, f.careful).c_str(), static_cast<long long>(f.unlimited.memory.reserved_bytes.all.peak),
      base::json_number(f.unlimited.warm_ns, 1).c_str(), base::json_number(f.unlimited.warm_driver_ns, 1).c_str());
}

void print_head() {
  std::printf(
      "               smallest limit   of the peak requested   host ns an operation   driver ns\n"
      "VERDICT        that fits        by default  epsilon 0   limited  unlimited     limited  unlimited  GPU          "
      " "
      "trace\n");
}

std::string limit_text(std::size_t limit) { return std::to_string(limit >> 20) + "MiB"; }  // as --limit takes it

void print_row(std::string const& path, trace const& t, found const& f) {
  auto const ratio = [&](fitted const& is) {
    return is.limit ? base::json_number(of_peak(t, *is.limit), 4) : std::string("none");
  };
  auto const& [limit, under] = f.usual;
  gpu_size const* const gpu = limit ? smallest_gpu(*limit) : nullptr;
  auto const ns = [&, fits = limit.has_value()](double n) {
    return fits ? base::json_number(n, 1) : std::string("-");
  };
  std::string const least = !limit ? "-" : gpu ? std::to_string(gpu->gb) + " GB and up" : "none";
  std::printf("%-14s %-16s %-11s %-11s %7s  %9s     %7s  %9s  %-13s %s\n", limit ? "FITS IN" : "DOES NOT FIT",
              limit ? limit_text(*limit).c_str() : "-", ratio(f.usual).c_str(), ratio(f.careful).c_str(),
              ns(under.warm_ns).c_str(), ns(f.unlimited.warm_ns).c_str(), ns(under.warm_driver_ns).c_str(),
              ns(f.unlimited.warm_driver_ns).c_str(), least.c_str(), base::visible(path).c_str());
}

void print_assumed(std::string const& devices) {
  std::printf(
      "\nReplayed on %s.\nThe limit one step below does not fit. A step is 0.1 %% of the peak requested, at least 2 "
      "MiB.\nA GPU is named if it has the limit and %s for CUDA's context, cuBLAS and NCCL. Memory that is assumed:\n",
      devices.c_str(), bytes_text(beside_weir).c_str());
  for (gpu_size const& g : gpu_sizes())
    std::printf("  %3d GB  %6.1f GiB  %s\n", g.gb, static_cast<double>(g.usable) / (1 << 30), g.examples);
}

}  // namespace

int fit(std::vector<std::string> const& traces, replay_settings const& s) {
  bool all = true, begun = false;
  std::string devices;
  for (std::string const& path : traces) {
    trace const t = read_trace(path);
    found const f = search(path, t, s);
    all &= f.usual.limit.has_value();
    devices = f.unlimited.devices;
    if (s.json) {
      print_json(path, t, f);
    } else {
      if (!std::exchange(begun, true)) print_head();
      print_row(path, t, f);
    }
    std::fflush(stdout);
  }
  if (begun) print_assumed(devices);
  return all ? 0 : s.json ? 1 : does_not_fit;
}

}  // namespace weir::tool
