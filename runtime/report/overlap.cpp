// Merges a device's kernels into disjoint intervals, and intersects each copy with them.
#include "runtime/report/trace_events.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <vector>

#include "runtime/options/options.h"

namespace weir::report {
namespace {

struct stretch {
  std::int64_t from, to;
};

std::string time_text(std::int64_t ns) {
  char text[32];
  std::snprintf(text, sizeof text, ns < 10'000'000 ? "%.2f ms" : "%.1f ms", static_cast<double>(ns) / 1e6);
  return text;
}

std::vector<stretch> joined(std::vector<stretch> all) {
  std::sort(all.begin(), all.end(), [](stretch a, stretch b) { return a.from < b.from; });
  std::vector<stretch> out;
  for (stretch const s : all) {
    if (!out.empty() && s.from <= out.back().to) out.back().to = std::max(out.back().to, s.to);
    else out.push_back(s);
  }
  return out;
}

std::int64_t within(stretch s, std::vector<stretch> const& others) {
  std::int64_t sum = 0;
  auto at = std::partition_point(others.begin(), others.end(), [&](stretch o) { return o.to <= s.from; });
  for (; at != others.end() && at->from < s.to; ++at) sum += std::min(at->to, s.to) - std::max(at->from, s.from);
  return sum;
}

struct device_times {
  std::vector<stretch> kernels;
  std::vector<observe::span const*> copies;
  std::int64_t waited = 0;
};

std::string sentence(int device, device_times const& d) {
  auto const kernels = joined(d.kernels);
  std::int64_t computing = 0, copying = 0, overlapped = 0;
  for (stretch const k : kernels) computing += k.to - k.from;
  struct line {
    std::int64_t alone = 0, whole = 0;
    std::size_t bytes = 0, copies = 0;
    std::set<std::uint64_t> calls{};  // of copies in several parts
  };
  std::map<std::pair<std::string, unsigned>, line> lines;
  for (observe::span const* const c : d.copies) {
    std::int64_t const whole = c->end_ns - c->begin_ns, both = within({c->begin_ns, c->end_ns}, kernels);
    copying += whole, overlapped += both;
    line& l = lines[{c->at.file_name() ? c->at.file_name() : "", c->at.line()}];
    l.alone += whole - both, l.whole += whole, l.bytes += c->bytes;
    l.copies += c->link == 0 || l.calls.insert(c->link).second;
  }
  std::string out = "gpu:" + std::to_string(device) + ": kernels ran for " + time_text(computing) + ", copies for " +
                    time_text(copying) + ", streams waited for each other for " + time_text(d.waited) + ".\n";
  if (d.copies.empty() || copying == 0) return out;
  out += "Of the copies, " + std::to_string(overlapped * 100 / copying) + " % of the time overlapped with a kernel.\n";
  auto const worst = std::max_element(lines.begin(), lines.end(),
                                      [](auto const& a, auto const& b) { return a.second.alone < b.second.alone; });
  if (worst->second.alone * 50 < copying) return out;
  std::string file = worst->first.first;
  file = file.substr(file.rfind('/') + 1);
  line const& l = worst->second;
  std::string const copies = l.copies == 1 ? "1 copy of " + bytes_text(l.bytes)
                                           : std::to_string(l.copies) + " copies, " + bytes_text(l.bytes) + " in all,";
  return out + "Longest alone: " + copies + " at " + file + ":" + std::to_string(worst->first.second) + ", " +
         time_text(worst->second.alone) + " of " + time_text(worst->second.whole) + ".\n";
}

}  // namespace

std::string overlap(std::span<observe::span const> spans) {
  std::map<int, device_times> devices;
  for (observe::span const& s : spans) {
    if (s.where != observe::span::on::stream) continue;
    device_times& d = devices[s.device];
    if (s.name == "copy" || s.name == "fill") d.copies.push_back(&s);
    else if (s.name == "wait") d.waited += s.end_ns - s.begin_ns;
    else d.kernels.push_back({s.begin_ns, s.end_ns});
  }
  std::string out;
  for (auto const& [device, d] : devices) out += sentence(device, d);
  return out.empty() ? "Nothing was recorded: call record_timeline() first.\n" : out;
}

}  // namespace weir::report
