// Reads /proc and the heap's own count, and compares quarters.
// Threads: as growth.h.
#include "tests/soak/growth.h"

#include <dirent.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <ctime>
#include <span>

namespace weir::soak {
namespace {

std::int64_t entries(char const* folder) {
  DIR* const d = ::opendir(folder);
  if (!d)
    return -1;
  std::int64_t n = 0;
  while (dirent const* const e = ::readdir(d))
    n += e->d_name[0] != '.';
  ::closedir(d);
  return n;
}

struct pages {
  std::int64_t all = 0, resident = 0;
};
pages pages_now() {
  pages p;
  if (std::FILE* const f = std::fopen("/proc/self/statm", "r")) {
    long long all = 0, resident = 0;
    if (std::fscanf(f, "%lld %lld", &all, &resident) == 2)
      p = {all, resident};
    std::fclose(f);
  }
  return p;
}

// What one thing that has not ended adds at least.
std::int64_t unit_of(measure m) {
  switch (m) {
    case measure::host_bytes: return 32;  // the smallest block of the heap
    case measure::resident: return 32;
    case measure::used_addresses: return 2 << 20;  // a page
    default: return 1;
  }
}

// Growth by less than this part of the first quarter tells nothing. One spill maps most of a device at once. The tables
// of what is mapped are the other host bytes.
std::int64_t part_of(measure m) {
  switch (m) {
    case measure::used_addresses: return 2;
    case measure::host_bytes: return 1;
    default: return 8;
  }
}

bool is_the_same_at_rest(measure m) {
  switch (m) {
    case measure::descriptors:
    case measure::threads:
    case measure::device_bytes:
    case measure::pins:
    case measure::reserved:
    case measure::graphs: return true;
    default: return false;
  }
}

// Of ended threads, glibc keeps so many bytes of stacks: these tell nothing about the library.
constexpr std::int64_t stacks_kept = 40 << 20;
// Of one size, free lists and queues that last take so many blocks, ever more rarely, until each has had its most. In 20
// clean runs of two minutes the most was 650 without a sign that it ends.
constexpr std::int64_t blocks_kept = 2000;

template <class Range, class Value>
auto median_of(Range const& in, Value value) {
  std::vector<decltype(value(in[0]))> all;
  for (auto const& one : in)
    all.push_back(value(one));
  auto const middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
  std::nth_element(all.begin(), middle, all.end());
  return *middle;
}

// One event is no leak, which steps at each rest. Steps of the first quarter are how a run begins.
void take_out_largest_step(std::array<std::vector<sample>, 4>& quarters, std::size_t m) {
  std::int64_t last = quarters[0].back().of[m], largest = 0;
  sample const* at = nullptr;
  for (std::size_t q = 1; q < 4; ++q) {
    for (sample const& s : quarters[q]) {
      if (s.of[m] - last > largest) {
        largest = s.of[m] - last;
        at = &s;
      }
      last = s.of[m];
    }
  }
  for (std::size_t q = 1; q < 4; ++q) {
    for (sample& s : quarters[q])
      s.of[m] -= at && s.ends >= at->ends ? largest : 0;
  }
}

}  // namespace

std::string name_of(measure m) {
  static constexpr std::array<std::string_view, named_measures> names{
      "descriptors",       "threads",        "device bytes", "pinned ranges", "reserved addresses",
      "used addresses",    "streams",        "events",       "graphs",        "other host bytes",
      "large host blocks", "resident bytes", "virtual bytes"};
  auto const i = static_cast<std::size_t>(m);
  if (i < named_measures)
    return std::string(names[i]);
  return "blocks of " + std::to_string(most_bytes_of(i - named_measures)) + " B";
}

sample sample_now(books const& b) {
  sample s;
  auto const put = [&](measure m, std::int64_t n) { s.of[static_cast<std::size_t>(m)] = n; };
  put(measure::descriptors, entries("/proc/self/fd") - 1);  // without the folder itself
  put(measure::threads, entries("/proc/self/task"));
  put(measure::device_bytes, b.device.load());
  put(measure::pins, b.pins.load());
  put(measure::reserved, b.reserved.load());
  put(measure::used_addresses, b.used());
  put(measure::streams, b.streams.load());
  put(measure::events, b.events.load());
  put(measure::graphs, b.graphs.load());
  auto const heap = ::mallinfo2();
  put(measure::host_bytes, static_cast<std::int64_t>(heap.uordblks) - host_block_bytes_now());
  put(measure::large_blocks, static_cast<std::int64_t>(heap.hblks));
  std::int64_t const page = ::sysconf(_SC_PAGESIZE);
  pages const p = pages_now();
  put(measure::resident, p.resident * page);
  put(measure::virtual_bytes, p.all * page - b.reserved.load());
  std::ranges::copy(host_blocks_now(), s.of.begin() + named_measures);
  return s;
}

// By acts, not by time: a machine that is busy with other things plays few.
std::vector<growth> growth_of(std::vector<sample> const& all) {
  constexpr std::size_t least_samples = 2;
  if (all.empty())
    return {};
  std::uint64_t const from = all.front().ends, acts_of_all = all.back().ends - from + 1;
  std::array<std::vector<sample>, 4> quarters;
  for (sample const& s : all)
    quarters[(s.ends - from) * 4 / acts_of_all].push_back(s);
  std::array<double, 4> acts{};
  for (std::size_t q = 0; q < 4; ++q) {
    if (quarters[q].size() < least_samples)
      return {};
    acts[q] = static_cast<double>(median_of(quarters[q], [](sample const& s) { return s.ends; }));
  }
  std::vector<growth> out;
  for (std::size_t i = 0; i < measures; ++i) {
    auto const m = static_cast<measure>(i);
    growth g{.of = m, .same = is_the_same_at_rest(m), .part = part_of(m)};
    if (!g.same)
      take_out_largest_step(quarters, i);
    for (std::size_t q = 0; q < 4; ++q) {
      g.median[q] = median_of(quarters[q], [m](sample const& s) { return s.at(m); });
      g.least[q] = g.most[q] = g.median[q];
      for (sample const& s : quarters[q]) {
        g.least[q] = std::min(g.least[q], s.at(m));
        g.most[q] = std::max(g.most[q], s.at(m));
      }
    }
    auto const rate = [&](std::size_t from, std::size_t to) {
      return static_cast<double>(g.median[to] - g.median[from]) / std::max(acts[to] - acts[from], 1.0);
    };
    g.early = rate(0, 1);
    g.late = rate(2, 3);
    g.rarest = quarters[3].back().rarest - quarters[0].front().rarest;
    if (!g.same) {
      g.bound = static_cast<std::int64_t>(g.rarest / 2) * unit_of(m);
      if (m == measure::resident || m == measure::virtual_bytes)
        g.bound += stacks_kept;
      if (m >= measure::host_blocks)
        g.bound += blocks_kept;
    }
    out.push_back(g);
  }
  return out;
}

std::chrono::nanoseconds time_of_thread() noexcept {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return std::chrono::seconds(t.tv_sec) + std::chrono::nanoseconds(t.tv_nsec);
}

void call_times::add(std::chrono::nanoseconds took) noexcept {
  auto const ns = static_cast<std::uint64_t>(std::max<std::int64_t>(took.count(), steps));
  auto const power = static_cast<std::size_t>(std::bit_width(ns) - 1);
  std::size_t const step = static_cast<std::size_t>(ns >> (power - 4)) & (steps - 1);
  ++times_[std::min(power * steps + step, times_.size() - 1)];
  ++count_;
}
void call_times::add(call_times const& other) noexcept {
  for (std::size_t i = 0; i < times_.size(); ++i)
    times_[i] += other.times_[i];
  count_ += other.count_;
}

double call_times::quantile_ns(double q) const noexcept {
  auto const rank = static_cast<std::uint64_t>(q * static_cast<double>(count_));
  std::uint64_t below = 0;
  for (std::size_t i = 0; i < times_.size(); ++i) {
    below += times_[i];
    if (below <= rank)
      continue;
    auto const scale = static_cast<double>(std::uint64_t{1} << (i / steps)) / steps;
    return (steps + static_cast<double>(i % steps) + 0.5) * scale;
  }
  return 0;
}

}  // namespace weir::soak
