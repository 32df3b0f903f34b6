// weir snapshot: prints a snapshot's pickle as text, and writes it as a page for a browser.
// Threads: one.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "command_line.h"
#include "commands.h"
#include "runtime/base/text.h"
#include "runtime/options/options.h"
#include "runtime/report/snapshot.h"
#include "tools/weir/unpickle.h"

namespace weir::tool {
namespace {

std::string contents(std::string const& path) {
  if (std::error_code whatever; std::filesystem::is_directory(path, whatever))
    throw invalid_use("snapshot", path + " is a directory", "Pass a file in it", source_location::current());
  std::ifstream file(path, std::ios::binary);
  std::string bytes(std::istreambuf_iterator<char>(file), {});
  if (!file.good() && !file.eof())
    throw invalid_use("snapshot", path + ": " + std::strerror(errno),
                      "Pass a file of dump_memory_snapshot, or of PyTorch's _dump_snapshot",
                      source_location::current());
  return bytes;
}

struct sums {
  size_t reserved = 0, live = 0, requested = 0, pending = 0, blocks = 0, holes = 0, largest = 0;
};
sums sums_of(report::device_snapshot const& d) {
  sums s;
  for (memory_segment const& g : d.segments) {
    s.reserved += g.bytes;
    for (memory_block const& b : g.blocks) {
      if (b.state == block_state::active_allocated)
        s.live += b.bytes, s.requested += b.requested, ++s.blocks;
      if (b.state == block_state::active_pending_free)
        s.pending += b.bytes;
      if (b.state == block_state::inactive)
        ++s.holes, s.largest = std::max(s.largest, b.bytes);
    }
  }
  return s;
}

std::string where_text(source_location const& at) {
  if (!at.file_name())
    return "(line not known: allocated before the recording began, or by a thread without Python)";
  return base::visible(at.file_name()) + (at.line() ? ":" + std::to_string(at.line()) : "");
}

// "1 block", "2 blocks": `many` is one that ends in s.
std::string counted(size_t n, char const* many) {
  std::string const text = std::to_string(n) + " " + many;
  return n == 1 ? text.substr(0, text.size() - 1) : text;
}

void print_line(size_t bytes, size_t blocks, std::string const& name) {
  std::printf("  %12s in %7zu %s %s\n", bytes_text(bytes).c_str(), blocks, blocks == 1 ? "block  " : "blocks ",
              name.c_str());
}

void print_more(size_t lines, size_t shown) {
  if (lines > shown)
    std::printf("  and %s\n", counted(lines - shown, "more lines").c_str());
}

// Where the most was live, unless that is the end: the lines that held most then. In requested bytes, as the lines
// at the end.
void print_peak(report::device_snapshot const& d, size_t live_at_the_end) {
  report::peak_of_recording const peak = report::peak_of(d);
  if (d.trace.empty() || peak.live <= live_at_the_end)
    return;
  std::printf("  at the peak, %.1f ms after the recording began, %s were live:\n",
              static_cast<double>(peak.us - d.trace.front().us) / 1e3, bytes_text(peak.live).c_str());
  std::vector<std::pair<std::string, report::line_use>> sorted(peak.lines.begin(), peak.lines.end());
  std::sort(sorted.begin(), sorted.end(), [](auto const& a, auto const& b) { return a.second.bytes > b.second.bytes; });
  constexpr size_t most = 5;
  for (size_t i = 0; i < std::min(sorted.size(), most); ++i)
    print_line(sorted[i].second.bytes, sorted[i].second.blocks, base::visible(sorted[i].first));
  print_more(sorted.size(), most);
  if (live_at_the_end)
    std::printf("  at the end, %s were live:\n", bytes_text(live_at_the_end).c_str());
  else
    std::printf("  at the end no block was live\n");
}

// Live blocks by the line that allocated them, in descending order of bytes.
void print_lines(report::device_snapshot const& d) {
  struct line {
    std::string where;
    size_t bytes = 0, blocks = 0;
  };
  std::map<std::pair<std::string, unsigned>, line> all;
  for (memory_segment const& g : d.segments) {
    for (memory_block const& b : g.blocks) {
      if (b.state != block_state::active_allocated)
        continue;
      line& l = all[{b.where.file_name() ? b.where.file_name() : "", b.where.line()}];
      l.where = where_text(b.where);
      l.bytes += b.requested, ++l.blocks;
    }
  }
  std::vector<line> sorted;
  for (auto& [key, l] : all)
    sorted.push_back(std::move(l));
  std::sort(sorted.begin(), sorted.end(), [](line const& a, line const& b) { return a.bytes > b.bytes; });
  constexpr size_t most = 10;
  for (size_t i = 0; i < std::min(sorted.size(), most); ++i)
    print_line(sorted[i].bytes, sorted[i].blocks, sorted[i].where);
  print_more(sorted.size(), most);
}

void print(report::device_snapshot const& d) {
  sums const s = sums_of(d);
  std::printf(
      "gpu:%d: %s reserved, %s in use by %s (%s requested), %s freed and still used, %s free in %s (the largest %s); "
      "%s\n",
      d.device, bytes_text(s.reserved).c_str(), bytes_text(s.live).c_str(), counted(s.blocks, "blocks").c_str(),
      bytes_text(s.requested).c_str(), bytes_text(s.pending).c_str(),
      bytes_text(s.reserved - s.live - s.pending).c_str(), counted(s.holes, "holes").c_str(),
      bytes_text(s.largest).c_str(),
      d.trace.empty() ? "no history: the state at one moment" : counted(d.trace.size(), "events").c_str());
  print_peak(d, s.requested);
  print_lines(d);
}

// A device that the program never used.
bool is_unused(report::device_snapshot const& d) {
  return d.segments.empty() && d.trace.empty();
}

// Lines whose live memory changed between two snapshots, those that grew most first.
void print_growth(report::device_snapshot const& earlier, report::device_snapshot const& now) {
  struct change {
    std::string name;
    long long bytes = 0, blocks = 0;
  };
  std::map<std::string, change> all;
  auto const add = [&](report::device_snapshot const& d, int sign) {
    for (auto const& [name, use] : report::live_lines(d)) {
      change& c = all[name];
      c.name = name;
      c.bytes += sign * static_cast<long long>(use.bytes);
      c.blocks += sign * static_cast<long long>(use.blocks);
    }
  };
  add(earlier, -1);
  add(now, 1);
  std::vector<change> sorted;
  long long bytes = 0, blocks = 0;
  for (auto& [name, c] : all) {
    bytes += c.bytes, blocks += c.blocks;
    if (c.bytes || c.blocks)
      sorted.push_back(std::move(c));
  }
  std::sort(sorted.begin(), sorted.end(), [](change const& a, change const& b) { return a.bytes > b.bytes; });
  auto const signed_text = [](long long n) {
    return (n < 0 ? "-" : "+") + bytes_text(static_cast<size_t>(n < 0 ? -n : n));
  };
  std::printf("gpu:%d: live memory changed by %s in %+lld blocks\n", now.device, signed_text(bytes).c_str(), blocks);
  constexpr size_t most = 20;
  for (size_t i = 0; i < std::min(sorted.size(), most); ++i)
    std::printf("  %12s in %+7lld blocks  %s\n", signed_text(sorted[i].bytes).c_str(), sorted[i].blocks,
                base::visible(sorted[i].name).c_str());
  print_more(sorted.size(), most);
}

}  // namespace

int snapshot(std::vector<std::string> const& arguments) {
  namespace po = boost::program_options;
  std::string path, html, since;
  po::options_description all("weir snapshot FILE.pickle: the contents of a memory snapshot of weir or PyTorch");
  all.add_options()("help,h", "this text")(
      "html", po::value(&html),
      "file for an HTML page: memory over time, and the layout at any moment. The page needs no network")(
      "since", po::value(&since),
      "an earlier snapshot of the same program: tells which lines hold more or less memory than then")(
      "file", po::value(&path), "the snapshot");
  if (!understood(arguments, all, "file", 1))
    return 0;
  if (path.empty())
    throw invalid_use("snapshot", "no file", "Pass a file: weir snapshot FILE.pickle", source_location::current());
  auto const loaded = report::read_snapshot(contents(path), path);
  report::loaded_snapshot earlier;
  if (!since.empty())
    earlier = report::read_snapshot(contents(since), since);
  bool any = false;
  for (report::device_snapshot const& d : loaded.devices) {
    auto const then = std::ranges::find(earlier.devices, d.device, &report::device_snapshot::device);
    bool const was_used = then != earlier.devices.end() && !is_unused(*then);
    if (is_unused(d) && !was_used)
      continue;
    any = true;
    print(d);
    if (then != earlier.devices.end())
      print_growth(*then, d);
  }
  if (!any)
    std::printf("no device held memory\n");
  if (html.empty())
    return 0;
  std::ofstream out(html, std::ios::binary | std::ios::trunc);
  auto const file_name = [](std::string const& of) { return of.substr(of.rfind('/') + 1); };
  report::page_extras const more{{}, earlier.devices, file_name(since)};
  out << report::page(loaded.devices, loaded.stacks, file_name(path), more) << std::flush;
  if (!out)
    throw invalid_use("snapshot", html + ": " + std::strerror(errno), "Pass a file in a writable folder",
                      source_location::current());
  return 0;
}

}  // namespace weir::tool
