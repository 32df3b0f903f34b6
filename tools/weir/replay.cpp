// weir replay: runs the recorded allocations of a program through weir, twice, and says what that took.
// Threads: one.
#include "replayed.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "command_line.h"
#include "commands.h"
#include "fit.h"
#include "runtime/base/text.h"
#include "weir/error.h"

namespace weir::tool {
namespace {

template <class Say>
std::string recovered_by(memory_statistics const& n, Say say) {
  std::string out;
  for (size_t i = 0; i < recovery_steps.size(); ++i) {
    if (n.recovered_by[i])
      out += (out.empty() ? "" : ", ") + say(recovery_steps[i], std::to_string(n.recovered_by[i]));
  }
  return out;
}

std::string part_text(double part) {  // finite: it was read as one
  char text[32];
  std::snprintf(text, sizeof text, "%g", part);
  return text;
}

void print_json(std::string const& path, trace const& t, replay_outcome const& o) {
  std::printf(
      "{\"trace\": %s, \"devices\": %s, \"epsilon\": %s, \"ops\": %zu, \"peak_requested\": %zu, \"peak_allocated\": "
      "%lld, \"peak_reserved\": %lld, \"ratio\": %s, \"torch_reserved\": %s, "
      "\"first_ns_per_op\": %s, \"warm_ns_per_op\": %s, \"first_driver_ns_per_op\": %s, \"warm_driver_ns_per_op\": %s, "
      "\"handles_created\": %llu, \"handles_moved\": %llu, \"warm_handles_moved\": %llu, \"ooms\": %llu, "
      "\"recovery_attempts\": %llu, \"opened_early\": %llu, \"recovered_by\": {%s}, \"began_with\": %zu}\n",
      base::json_text(path).c_str(), base::json_text(o.devices).c_str(), part_text(o.epsilon).c_str(),
      t.operations.size(), t.peak_requested, static_cast<long long>(o.memory.allocated_bytes.all.peak),
      static_cast<long long>(o.memory.reserved_bytes.all.peak), base::json_number(ratio(t, o), 4).c_str(),
      number_or_null(t.of_torch).c_str(), base::json_number(o.first_ns, 1).c_str(),
      base::json_number(o.warm_ns, 1).c_str(), base::json_number(o.first_driver_ns, 1).c_str(),
      base::json_number(o.warm_driver_ns, 1).c_str(), static_cast<unsigned long long>(o.created),
      static_cast<unsigned long long>(o.moved), static_cast<unsigned long long>(o.warm_moved),
      static_cast<unsigned long long>(o.memory.num_ooms), static_cast<unsigned long long>(o.memory.num_alloc_retries),
      static_cast<unsigned long long>(o.opened_early),
      recovered_by(o.memory, [](std::string_view rung,
                                std::string const& times) { return base::json_text(std::string(rung)) + ": " + times; })
          .c_str(),
      t.began_with);
}

std::string count_text(std::uint64_t n) {
  return std::to_string(n);
}

// To a MiB: limits that differ by a page must not read the same.
std::string exact_text(std::size_t bytes) {
  constexpr std::size_t mib = 1 << 20;
  if (bytes % mib)
    return count_text(bytes) + " B";
  return bytes % (1024 * mib) ? count_text(bytes / mib) + " MiB" : count_text(bytes / (1024 * mib)) + " GiB";
}

// Whether the limit is less than what is in use at once.
bool beyond_any(trace const& t, replay_settings const& s) {
  return s.limit && *s.limit < t.peak_held;
}

void print_text(std::string const& path, trace const& t, replay_outcome const& o, replay_settings const& s) {
  std::string const what = base::visible(path) + ": " + count_text(t.operations.size()) + " operations of " +
                           count_text(t.streams) + (t.streams == 1 ? " stream" : " streams") + " on " + o.devices;
  bool const too_small = o.memory.num_ooms || (s.limit && *s.limit < t.needed);
  char const* const verdict = too_small ? "DOES NOT FIT" : s.limit ? t.refused ? "MAY NOT FIT" : "FITS" : "";
  std::string const where = s.limit ? " a limit of " + exact_text(*s.limit) : o.memory.num_ooms ? " the device" : "";
  std::printf("%s%s%s%s\n", verdict, where.c_str(), *verdict ? ": " : "", what.c_str());
  auto const reserved = static_cast<size_t>(o.memory.reserved_bytes.all.peak);
  std::string const second =
      s.rounds > 2 ? "the median of " + count_text(s.rounds - 1) + " later replays" : "the second replay";
  std::printf("  memory at the peak\n    requested    %12s\n    reserved     %12s   %.4f times that\n",
              bytes_text(t.peak_requested).c_str(), bytes_text(reserved).c_str(), ratio(t, o));
  if (t.of_torch && t.peak_requested)
    std::printf("    PyTorch's    %12s   %.4f times that (%s)\n", bytes_text(*t.of_torch).c_str(),
                static_cast<double>(*t.of_torch) / static_cast<double>(t.peak_requested), t.where.c_str());
  if (beyond_any(t, s))
    std::printf("  The program needs %s at once: no allocator fits it into that limit.\n",
                bytes_text(t.peak_held).c_str());
  else if (too_small && s.limit && !t.refused)
    std::printf("  The smallest limit that fits: weir replay --fit\n");
  if (t.refused)
    std::printf("  %s\n", refusal_text(t).c_str());
  if (t.began_with)
    std::printf("  %s\n", began_text(t).c_str());
  std::printf(
      "  an operation           host         driver\n    first replay %9.1f ns %11.1f ns\n    %-12s %9.1f ns "
      "%11.1f ns\n",
      o.first_ns, o.first_driver_ns, s.rounds > 2 ? "later" : "second", o.warm_ns, o.warm_driver_ns);
  std::printf("  handles\n    created      %12s\n    moved        %12s   in %s %s\n", count_text(o.created).c_str(),
              count_text(o.moved).c_str(), second.c_str(), count_text(o.warm_moved).c_str());
  if (!*verdict && !o.memory.num_alloc_retries)
    return;
  std::printf(
      "  memory was short\n    refused      %12s   allocations\n    recovered    %12s   searches for memory began\n"
      "    waited       %12s   times for blocks in use on another stream\n",
      count_text(static_cast<std::uint64_t>(o.memory.num_ooms)).c_str(),
      count_text(static_cast<std::uint64_t>(o.memory.num_alloc_retries)).c_str(), count_text(o.opened_early).c_str());
  auto const found = recovered_by(
      o.memory, [](std::string_view rung, std::string const& times) { return std::string(rung) + " " + times; });
  if (!found.empty())
    std::printf("    found by     %s\n", found.c_str());
}

double part_or_throw(std::string const& text) {
  auto const part = part_from_text(text);
  if (!part)
    throw invalid_use("replay", "--epsilon \"" + text + "\" is not a number from 0 to 1", "Write --epsilon 0.02",
                      source_location::current());
  return *part;
}

size_t size_or_throw(std::string const& text) {
  auto const bytes = size_from_text(text);
  if (!bytes || !*bytes)
    throw invalid_use("replay", "--limit \"" + text + "\" is not a size",
                      "Write bytes, or a number and KiB, MiB, GiB or TiB: 7.4GiB", source_location::current());
  return *bytes;
}

}  // namespace

int replay(std::vector<std::string> const& arguments) {
  namespace po = boost::program_options;
  std::string devices, limit, epsilon;
  std::vector<std::string> paths;
  bool fits_where = false;
  replay_settings s;
  po::options_description all(
      "weir replay TRACE…: replays recorded allocations (plain or gzip) twice on one device.\nOn a simulated machine "
      "the driver's time is modelled on an H200's. Exit status: 0: all fit; 3: one does not (1 with --json); 1: an "
      "error");
  all.add_options()("help,h", "this text")("devices", po::value(&devices),
                                           "auto | cuda | sim[:N[:SIZE]][:seed=S]; WEIR_DEVICES, else auto")(
      "epsilon", po::value(&epsilon),
      "the fraction by which reserved memory may exceed the most that was in use: 0.02, …")(
      "rounds", po::value(&s.rounds), "number of replays, 2 by default; the medians are of those after the first")(
      "limit", po::value(&limit), "limit of reserved memory: bytes, or 512MiB, 8GiB, …")(
      "fit", po::bool_switch(&fits_where),
      "search the smallest limit into which each program fits, and the GPUs that have that much memory")(
      "json", po::bool_switch(&s.json), "print a line of JSON for each trace")(
      "snapshot", po::value(&s.snapshot), "file for a snapshot for PyTorch's memory viewer")(
      "html", po::value(&s.page), "file for an HTML page: memory over time, and the layout at any moment")(
      "trace", po::value(&paths), "files");
  if (!understood(arguments, all, "trace", -1))
    return 0;
  if (s.rounds < 2)
    throw invalid_use("replay", "--rounds " + std::to_string(s.rounds), "Use at least 2: a first and a warm one",
                      source_location::current());
  if (paths.empty())
    throw invalid_use("replay", "no trace", "Pass one or more files: weir replay TRACE…", source_location::current());
  use_devices(devices);
  char const* const from_environment = std::getenv("WEIR_DEVICES");
  if (from_environment)
    devices = from_environment;
  if (!devices.empty())
    s.machine = parse_devices(devices);
  s.size_given = std::count(devices.begin(), devices.end(), ':') == 2;
  if (!limit.empty())
    s.limit = size_or_throw(limit);
  if (!epsilon.empty())
    s.epsilon = part_or_throw(epsilon);
  if (fits_where) {
    if (s.limit || !s.snapshot.empty() || !s.page.empty())
      throw invalid_use("replay", "--fit with --limit, --snapshot or --html",
                        "Leave these out: the search sets the limit, and has many replays", source_location::current());
    return fit(paths, s);
  }
  bool fits = true;
  for (std::string const& path : paths) {
    trace const t = read_trace(path);
    replay_outcome const o = replay_one(path, t, s);
    s.json ? print_json(path, t, o) : print_text(path, t, o, s);
    if (!o.ladder.empty() && (s.json || !beyond_any(t, s)))
      std::fprintf(s.json ? stderr : stdout, "%s\n", o.ladder.c_str());
    std::fflush(stdout);
    fits &= o.memory.num_ooms == 0 && !(s.limit && t.refused);
  }
  return fits ? 0 : s.json ? 1 : does_not_fit;
}

}  // namespace weir::tool
