// weir replay --fit: searches, and prints what it found.
// Threads: one.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <set>

#include "command_line.h"
#include "fit.h"
#include "runtime/base/round_up.h"
#include "runtime/base/text.h"

namespace weir::tool {
namespace {

constexpr int lasting = 20;            // replays that a limit must hold for: later ones may need a little more
constexpr std::size_t page = 2 << 20;  // bytes: of a GPU's memory; a limit between two pages is that of the lower one

// A line on a terminal that the next one overwrites; into a file nothing.
class progress {
 public:
  explicit progress(std::string name) : name_(std::move(name)) {}
  progress(progress const&) = delete;
  ~progress() {
    if (on_)
      std::fputs("\r\x1b[K", stderr);
  }
  void tell(char const* how, std::size_t limit) {
    if (!on_)
      return;
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
  replay_outcome under{};            // that limit
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
  auto const fits = [&](std::size_t limit, int rounds) {
    told.tell(how, limit);
    s.limit = limit, s.rounds = rounds;
    replay_outcome o = replay_one(path, t, s);
    if (o.memory.num_ooms)
      return false;
    out.under = std::move(o);
    return true;
  };
  int const quick = s.rounds;
  out.limit = smallest_limit(below, base::round_up(t.peak_requested, page), most, step,
                             [&](std::size_t limit) { return fits(limit, quick); });
  while (out.limit && !fits(*out.limit, std::max(quick, lasting)))
    out.limit = *out.limit < most ? std::optional(std::min(most, *out.limit + step)) : std::nullopt;
  return out;
}

found search(std::string const& path, trace const& t, replay_settings const& s) {
  progress told(base::visible(path));
  replay_settings free = s;
  free.until_refused = true;
  told.tell("by default", 0);
  found out{replay_one(path, t, free), {}, {}};
  std::size_t const most = out.unlimited.capacity / page * page;
  if (!out.unlimited.memory.num_ooms)
    out.usual = search(path, t, s, most, "by default", told);
  replay_settings careful = s;
  careful.epsilon = 0;
  out.careful = search(path, t, careful, most, "carefully", told);
  return out;
}

double of_peak(trace const& t, std::size_t limit) {
  return t.peak_requested ? static_cast<double>(limit) / static_cast<double>(t.peak_requested) : 0;
}

// As --limit takes it.
std::string limit_text(std::size_t limit) {
  return std::to_string(limit >> 20) + "MiB";
}

std::string json_of(char const* prefix, trace const& t, fitted const& f) {
  std::string const is = std::string("\"") + prefix;
  return is + "limit\": " + number_or_null(f.limit) + ", " + is +
         "ratio\": " + (f.limit ? base::json_number(of_peak(t, *f.limit), 4) : "null") + ", " + is +
         "warm_ns_per_op\": " + (f.limit ? base::json_number(f.under.warm_ns, 1) : "null") + ", " + is +
         "warm_driver_ns_per_op\": " + (f.limit ? base::json_number(f.under.warm_driver_ns, 1) : "null") + ", " + is +
         "opened_early\": " + (f.limit ? std::to_string(f.under.opened_early) : "null");
}

// A recording that ends out of memory shows a part of the program: bytes that any device for the whole must have.
std::size_t least_of(trace const& t, found const& f) {
  return std::max({f.usual.limit.value_or(0), t.needed, t.peak_held});
}
bool fits_whole(trace const& t, found const& f) {
  return f.usual.limit && !t.refused;
}

void print_json(std::string const& path, trace const& t, found const& f) {
  gpu_size const* const gpu = smallest_gpu(least_of(t, f));
  std::printf(
      "{\"trace\": %s, \"devices\": %s, \"fits\": %s, \"ops\": %zu, \"peak_requested\": %zu, "
      "\"torch_reserved\": %s, \"gpu_gb\": %s, \"epsilon\": %s, %s, %s, "
      "\"unlimited_peak_reserved\": %lld, \"unlimited_warm_ns_per_op\": %s, \"unlimited_warm_driver_ns_per_op\": "
      "%s, \"recorded_refusal\": %zu, \"needs_more_than\": %zu, \"began_with\": %zu}\n",
      base::json_text(path).c_str(), base::json_text(f.unlimited.devices).c_str(), fits_whole(t, f) ? "true" : "false",
      t.operations.size(), t.peak_requested, number_or_null(t.of_torch).c_str(),
      gpu ? std::to_string(gpu->gb).c_str() : "null", base::json_number(f.unlimited.epsilon, 4).c_str(),
      json_of("", t, f.usual).c_str(), json_of("careful_", t, f.careful).c_str(),
      static_cast<long long>(f.unlimited.memory.reserved_bytes.all.peak),
      base::json_number(f.unlimited.warm_ns, 1).c_str(), base::json_number(f.unlimited.warm_driver_ns, 1).c_str(),
      t.refused, t.needed, t.began_with);
}

void print_head() {
  std::printf("%-14s %-12s %-12s %-26s %-26s %-12s %-14s\n", "", "", "times", "a later replay,", "the same,",
              "and 1 GiB", "");
  std::printf("%-14s %-12s %-12s %-26s %-26s %-12s %-14s trace\n", "VERDICT", "least limit", "requested",
              "at that limit", "without a limit", "for CUDA", "GPU");
}

std::string milliseconds(trace const& t, double ns_per_op) {
  return base::json_number(ns_per_op * static_cast<double>(t.operations.size()) / 1e6, 1) + " ms";
}
std::string pass_text(trace const& t, replay_outcome const& o) {
  return "host " + milliseconds(t, o.warm_ns) + ", driver " + milliseconds(t, o.warm_driver_ns);
}

std::string gpu_text(gpu_size const* gpu, bool whole) {
  if (!gpu)
    return "none";
  return whole ? std::to_string(gpu->gb) + " GB and up" : "at least " + std::to_string(gpu->gb) + " GB";
}

// Returns: the GPU that the row names; null: none
gpu_size const* print_row(std::string const& path, trace const& t, found const& f) {
  auto const& [limit, under] = f.usual;
  std::size_t const least = least_of(t, f);
  gpu_size const* const gpu = smallest_gpu(least);
  char const* const verdict = !limit ? "DOES NOT FIT" : t.refused ? "NEEDS MORE" : "FITS IN";
  std::string const limit_is = fits_whole(t, f) ? limit_text(*limit) : "> " + limit_text(least);
  std::printf(
      "%-14s %-12s %-12s %-26s %-26s %-12s %-14s %s\n", verdict, limit_is.c_str(),
      fits_whole(t, f) ? base::json_number(of_peak(t, *limit), 4).c_str() : "-",
      limit ? pass_text(t, under).c_str() : "-", f.unlimited.memory.num_ooms ? "-" : pass_text(t, f.unlimited).c_str(),
      bytes_text(least + beside_weir).c_str(), gpu_text(gpu, fits_whole(t, f)).c_str(), base::visible(path).c_str());
  if (t.refused)
    std::printf("  %s\n", refusal_text(t).c_str());
  if (t.began_with)
    std::printf("  %s\n", began_text(t).c_str());
  return gpu;
}

void print_assumed(std::string const& devices, std::set<gpu_size const*> const& named) {
  std::printf(
      "\nReplayed on %s. Host times vary with the machine's load.\nThe limit holds for %d replays. The search has "
      "steps "
      "of 0.1 %% of the peak requested, at least 2 MiB.\nA GPU is named if it has the limit and %s for CUDA's context, "
      "cuBLAS and NCCL.\n",
      devices.c_str(), lasting, bytes_text(beside_weir).c_str());
  for (gpu_size const* g : named)
    if (g)
      std::printf("  %d GB: %.1f GiB, as on %s\n", g->gb, static_cast<double>(g->usable) / (1 << 30), g->examples);
}

}  // namespace

int fit(std::vector<std::string> const& traces, replay_settings const& s) {
  bool all = true, begun = false;
  std::string devices;
  std::set<gpu_size const*> named;
  for (std::string const& path : traces) {
    trace const t = read_trace(path);
    found const f = search(path, t, s);
    all &= fits_whole(t, f);
    devices = f.unlimited.devices;
    if (s.json) {
      print_json(path, t, f);
    } else {
      if (!std::exchange(begun, true))
        print_head();
      named.insert(print_row(path, t, f));
    }
    std::fflush(stdout);
  }
  if (begun)
    print_assumed(devices, named);
  return all ? 0 : s.json ? 1 : does_not_fit;
}

}  // namespace weir::tool
