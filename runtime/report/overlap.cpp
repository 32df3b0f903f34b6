// Merges a device's kernels into disjoint intervals, and intersects each copy and each collective with them.
#include "runtime/report/trace_events.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <vector>

#include "runtime/base/text.h"
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
    if (!out.empty() && s.from <= out.back().to)
      out.back().to = std::max(out.back().to, s.to);
    else
      out.push_back(s);
  }
  return out;
}

// How much of s the others cover. They are disjoint and in order.
std::int64_t within(stretch s, std::vector<stretch> const& others) {
  std::int64_t sum = 0;
  auto at = std::partition_point(others.begin(), others.end(), [&](stretch o) { return o.to <= s.from; });
  for (; at != others.end() && at->from < s.to; ++at)
    sum += std::min(at->to, s.to) - std::max(at->from, s.from);
  return sum;
}

// Work that a device can hide behind kernels: its copies, or its collectives.
struct hidden_work {
  std::string_view one, many;  // names
  std::vector<observe::span const*> spans{};
};

struct device_times {
  std::vector<stretch> kernels;
  hidden_work copies{"copy", "copies"}, collectives{"collective", "collectives"};
  std::int64_t waited = 0, on_host = 0;
  bool graphs = false;
};

std::int64_t sum_of(std::vector<observe::span const*> const& spans) {
  std::int64_t sum = 0;
  for (observe::span const* const s : spans)
    sum += s->end_ns - s->begin_ns;
  return sum;
}

// The share that ran while a kernel ran, and the line that spent most without one.
std::string share_hidden(hidden_work const& work, std::vector<stretch> const& kernels) {
  std::int64_t const all = sum_of(work.spans);
  if (all == 0)
    return "";
  struct line {
    std::int64_t alone = 0, whole = 0;
    std::size_t bytes = 0, count = 0;
    std::set<std::uint64_t> calls{};  // of work in several parts
  };
  std::int64_t overlapped = 0;
  std::map<std::pair<std::string, unsigned>, line> lines;
  for (observe::span const* const s : work.spans) {
    std::int64_t const whole = s->end_ns - s->begin_ns, both = within({s->begin_ns, s->end_ns}, kernels);
    overlapped += both;
    line& l = lines[{s->at.file_name() ? s->at.file_name() : "", s->at.line()}];
    l.alone += whole - both, l.whole += whole, l.bytes += s->bytes;
    // The parts of one call share its link, and count once.
    bool is_new_call = true;
    if (s->link != 0)
      is_new_call = l.calls.insert(s->link).second;
    l.count += is_new_call;
  }
  std::string const out =
      base::text("Of the ", work.many, ", ", overlapped * 100 / all, " % of the time overlapped with a kernel.\n");
  auto const worst = std::max_element(lines.begin(), lines.end(),
                                      [](auto const& a, auto const& b) { return a.second.alone < b.second.alone; });
  line const& l = worst->second;
  // Less than 2 % of the time is not worth a sentence.
  if (l.alone * 50 < all)
    return out;
  std::string file = worst->first.first;
  file = file.substr(file.rfind('/') + 1);
  std::string const what = l.count == 1 ? base::text("1 ", work.one, " of ", bytes_text(l.bytes))
                                        : base::text(l.count, " ", work.many, ", ", bytes_text(l.bytes), " in all,");
  return base::text(out, "Longest alone: ", what, " at ", file, ":", worst->first.second, ", ", time_text(l.alone),
                    " of ", time_text(l.whole), ".\n");
}

std::string sentences(int device, device_times const& d) {
  auto const kernels = joined(d.kernels);
  std::int64_t computing = 0;
  for (stretch const k : kernels)
    computing += k.to - k.from;
  std::string_view const what = d.graphs ? ": kernels and graphs ran for " : ": kernels ran for ";
  std::string out = base::text(base::gpu_name(device), what, time_text(computing), ", copies for ",
                               time_text(sum_of(d.copies.spans)));
  if (!d.collectives.spans.empty())
    out += ", collectives for " + time_text(sum_of(d.collectives.spans));
  if (d.on_host != 0)
    out += ", host functions for " + time_text(d.on_host);
  out += ", streams waited for each other for " + time_text(d.waited) + ".\n";
  return out + share_hidden(d.copies, kernels) + share_hidden(d.collectives, kernels);
}

// By the names that the streams' calls give their spans: what is none of these is a collective, named by its calls.
void add_span(observe::span const& s, device_times& d) {
  std::int64_t const ns = s.end_ns - s.begin_ns;
  if (s.name == "copy" || s.name == "fill")
    d.copies.spans.push_back(&s);
  else if (s.name == "wait")
    d.waited += ns;
  else if (s.name == "launch_host")
    d.on_host += ns;
  else if (s.name == "launch" || s.name == "graph")
    d.kernels.push_back({s.begin_ns, s.end_ns});
  else
    d.collectives.spans.push_back(&s);
  d.graphs |= s.name == "graph";
}

}  // namespace

std::string overlap(std::span<observe::span const> spans) {
  std::map<int, device_times> devices;
  for (observe::span const& s : spans) {
    if (s.where != observe::span::on::stream)
      continue;
    add_span(s, devices[s.device]);
  }
  std::string out;
  for (auto const& [device, d] : devices)
    out += sentences(device, d);
  if (!out.empty())
    return out;
  return spans.empty() ? "Nothing was recorded: call record_timeline() first.\n"
                       : "Nothing was recorded on a stream.\n";
}

}  // namespace weir::report
