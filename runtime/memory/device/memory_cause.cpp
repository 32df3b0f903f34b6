// Why a request was left without memory: from what all work, all pages and no limit would give.
// Threads: as memory_audit.h.
#include <algorithm>
#include <map>
#include <tuple>

#include "runtime/memory/device/memory_audit.h"
#include "runtime/observe/history.h"

namespace weir::memory {
namespace {

constexpr std::size_t most_holders = 3;

// Of a device: what a GPU's driver and libraries hold without another process is less.
constexpr std::size_t much_outside = 16;

using by_line = std::map<std::tuple<char const*, std::uint32_t>, std::pair<source_location, std::size_t>>;

void add(by_line& to, source_location const& at, std::size_t bytes) {
  if (!at.file_name() || !bytes)
    return;
  to.try_emplace({at.file_name(), at.line()}, at, 0).first->second.second += bytes;
}

std::vector<memory_report::holder> largest(by_line const& all) {
  std::vector<memory_report::holder> out;
  for (auto const& [line, sum] : all)
    out.push_back({sum.first, sum.second});
  std::stable_sort(out.begin(), out.end(), [](auto const& a, auto const& b) { return a.bytes > b.bytes; });
  out.resize(std::min(out.size(), most_holders));
  return out;
}

}  // namespace

std::vector<stream_memory_use::waiting> memory_audit::unfinished() const {
  std::map<std::uint64_t, std::size_t> waits;
  auto const add = [&](clock::stamp s, std::size_t bytes) {
    if (s.n && !of_.clocks.complete(s))
      waits[s.stream] += bytes;
  };
  for (stream_heap* m : heaps_.all()) {
    quiet_session const in(*m);
    std::uint64_t const home = m->home().id();
    in.each_pending([&](pending_block const& b) {
      auto const first =
          std::find_if(b.stamps.begin(), b.stamps.end(), [&](auto s) { return !of_.clocks.complete(s); });
      if (first != b.stamps.end())
        add(*first, b.bytes);
    });
    in.each_free([&](heap_block const& p) { add({home, p.freed}, p.bytes); });
  }
  std::vector<stream_memory_use::waiting> out;
  for (auto const& [stream, bytes] : waits)
    out.push_back({stream, bytes});
  std::stable_sort(out.begin(), out.end(), [](auto const& a, auto const& b) { return a.bytes > b.bytes; });
  return out;
}

std::vector<memory_report::holder> memory_audit::lines_that_hold(room const* kept, memory_pool const* only) const {
  if (!observe::history::on())
    return {};
  by_line sums;
  auto const live = observe::history::process().live(static_cast<std::uint32_t>(of_.runtime.id()), of_.device);
  for (observe::live_block const& b : live) {
    if (only) {
      region const* const r = of_.space.find(reinterpret_cast<void const*>(b.at));
      if (!r || &r->owner.load()->pool() != only)
        continue;
    }
    if (!kept) {
      add(sums, b.from, b.bytes);
      continue;
    }
    for (auto const& h : kept->stays) {
      if (b.at < h.at + h.bytes && h.at < b.at + std::max<std::size_t>(b.bytes, 1))
        add(sums, b.from, h.free);
    }
  }
  return largest(sums);
}

void memory_audit::explain(memory_report& r, room const* found, memory_pool const& pool) const {
  auto const outside = r.other_processes - std::min(r.other_processes, r.exported);
  std::size_t const all_others = std::min(r.capacity, r.other_processes);
  std::size_t most = 0;
  if (found) {
    most = found->anywhere;
    for (auto const& p : found->places)
      most = std::max(most, p.largest);
  } else {
    most = r.capacity - std::min(r.capacity, all_others + r.reserved);
    if (r.limit)
      most = std::min(most, r.limit - std::min(r.limit, r.reserved));
  }
  bool const limited = found ? found->limited : r.limit && r.reserved + r.rounded > r.limit;
  bool const pool_is_full = found ? found->pool_is_full : r.pool.limit && r.pool.reserved + r.rounded > r.pool.limit;
  auto const is = [&]() -> memory_cause {
    if (r.rounded > r.capacity)
      return memory_cause::too_large;
    if (r.limit && r.rounded > r.limit)
      return memory_cause::limit;
    if (r.pool.limit && r.rounded > r.pool.limit)
      return memory_cause::pool_limit;
    if (std::any_of(r.recovery.begin(), r.recovery.end(), [](auto const& s) { return s.name == "addresses"; }))
      return memory_cause::addresses;
    std::size_t const least = std::max(r.rounded, granule);  // slots need a run
    if (found && most >= least) {                            // if all work were done and no call refused
      r.waits_for = unfinished();
      return r.waits_for.empty() ? memory_cause::driver : memory_cause::pending;
    }
    if (!found && !pool_is_full) {
      if (most >= least)
        return memory_cause::driver;
      auto waits = unfinished();
      for (auto const& w : waits)
        most += w.bytes;
      if (most >= least)
        return r.waits_for = std::move(waits), memory_cause::pending;
    }
    if (pool_is_full)
      return r.pool.allocated + r.rounded <= r.pool.limit ? memory_cause::survivors : memory_cause::pool_limit;
    std::size_t const within = limited ? r.limit : r.capacity - std::min(r.capacity, all_others + r.driver_reserve);
    if (r.allocated + r.rounded <= within)
      return memory_cause::survivors;
    if (limited)
      return memory_cause::limit;
    if (r.allocated + r.rounded > r.capacity)
      return memory_cause::in_use;
    if (r.exported > r.capacity / 2)
      return memory_cause::shared;
    return outside >= r.capacity / much_outside ? memory_cause::outside : memory_cause::in_use;
  };
  r.cause = is();
  bool const of_pool = r.cause == memory_cause::pool_limit || pool_is_full;
  memory_pool const* const only = of_pool ? &pool : nullptr;
  if (r.cause == memory_cause::survivors)
    r.holders = lines_that_hold(found, only);
  if (r.cause == memory_cause::pool_limit || r.cause == memory_cause::limit || r.cause == memory_cause::in_use)
    r.holders = lines_that_hold(nullptr, only);
}

}  // namespace weir::memory
