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

std::size_t of_other_processes(memory_report const& r) {
  return std::min(r.capacity, r.other_processes);
}

// Bytes. Without a room: of what may still be reserved.
std::size_t most_for_one_block(memory_report const& r, memory_audit::room const* found) {
  if (found) {
    std::size_t most = found->anywhere;
    for (auto const& p : found->places)
      most = std::max(most, p.largest);
    return most;
  }
  std::size_t const left = r.capacity - std::min(r.capacity, of_other_processes(r) + r.driver_reserve + r.reserved);
  if (!r.limit)
    return left;
  return std::min(left, r.limit - std::min(r.limit, r.reserved));
}

bool is_limited(memory_report const& r, memory_audit::room const* found) {
  if (found)
    return found->limited;
  return r.limit && r.reserved + r.rounded > r.limit;
}

bool is_pool_full(memory_report const& r, memory_audit::room const* found) {
  if (found)
    return found->pool_is_full;
  return r.pool.limit && r.pool.reserved + r.rounded > r.pool.limit;
}

// None: empty memory would hold the request.
memory_cause cause_by_size(memory_report const& r) {
  if (r.rounded > r.capacity)
    return memory_cause::too_large;
  if (r.limit && r.rounded > r.limit)
    return memory_cause::limit;
  if (r.pool.limit && r.rounded > r.pool.limit)
    return memory_cause::pool_limit;
  return memory_cause::none;
}

bool has_no_addresses(memory_report const& r) {
  return std::any_of(r.recovery.begin(), r.recovery.end(), [](auto const& s) { return s.name == "addresses"; });
}

memory_cause cause_in_a_full_pool(memory_report const& r) {
  if (r.pool.allocated + r.rounded <= r.pool.limit)
    return memory_cause::survivors;
  return memory_cause::pool_limit;
}

memory_cause cause_by_live_blocks(memory_report const& r, memory_audit::room const* found) {
  bool const limited = is_limited(r, found);
  std::size_t within = r.limit;
  if (!limited)
    within = r.capacity - std::min(r.capacity, of_other_processes(r) + r.driver_reserve);
  if (r.allocated + r.rounded <= within)
    return memory_cause::survivors;
  if (limited)
    return memory_cause::limit;
  if (r.allocated + r.rounded > r.capacity)
    return memory_cause::in_use;
  if (r.exported > r.capacity / 2)
    return memory_cause::shared;
  std::size_t const outside = r.other_processes - std::min(r.other_processes, r.exported);
  if (outside >= r.capacity / much_outside)
    return memory_cause::outside;
  return memory_cause::in_use;
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

memory_cause memory_audit::cause_by_work(memory_report& r, room const* found) const {
  std::size_t const least = std::max(r.rounded, granule);  // slots need a run
  std::size_t const most = most_for_one_block(r, found);
  // A room is what there would be if all work were done and no call refused.
  if (found) {
    if (most < least)
      return memory_cause::none;
    r.waits_for = unfinished();
    return r.waits_for.empty() ? memory_cause::driver : memory_cause::pending;
  }
  // Without a room the report's sums decide.
  if (is_pool_full(r, nullptr))
    return memory_cause::none;
  if (most >= least)
    return memory_cause::driver;
  auto waits = unfinished();
  std::size_t with_waits = most;
  for (auto const& w : waits)
    with_waits += w.bytes;
  if (with_waits < least)
    return memory_cause::none;
  r.waits_for = std::move(waits);
  return memory_cause::pending;
}

memory_cause memory_audit::cause_of(memory_report& r, room const* found) const {
  if (auto const by_size = cause_by_size(r); by_size != memory_cause::none)
    return by_size;
  if (has_no_addresses(r))
    return memory_cause::addresses;
  if (auto const by_work = cause_by_work(r, found); by_work != memory_cause::none)
    return by_work;
  if (is_pool_full(r, found))
    return cause_in_a_full_pool(r);
  return cause_by_live_blocks(r, found);
}

void memory_audit::explain(memory_report& r, room const* found, memory_pool const& pool) const {
  r.cause = cause_of(r, found);
  bool const of_pool = r.cause == memory_cause::pool_limit || is_pool_full(r, found);
  memory_pool const* const only = of_pool ? &pool : nullptr;
  if (r.cause == memory_cause::survivors)
    r.holders = lines_that_hold(found, only);
  if (r.cause == memory_cause::pool_limit || r.cause == memory_cause::limit || r.cause == memory_cause::in_use)
    r.holders = lines_that_hold(nullptr, only);
}

}  // namespace weir::memory
