// Two sums for each device, and three maps by address.
// Threads: any.
#include "runtime/observe/external_memory.h"

#include <algorithm>

#include "runtime/base/byte_range.h"
#include "runtime/base/lasting.h"
#include "runtime/observe/stat_math.h"

namespace weir::observe {
namespace {

base::guarded<std::vector<external_memory const*>>& in_process() noexcept {
  static base::lasting<base::guarded<std::vector<external_memory const*>>> all;  // outlives every runtime
  return *all;
}

}  // namespace

external_memory::external_memory(runtime::impl&) {
  in_process().lock()->push_back(this);
}
external_memory::~external_memory() {
  std::erase(*in_process().lock(), this);
}

statistic* external_memory::of(books& b, int device, sharing kind) noexcept {
  auto const d = static_cast<std::size_t>(device);
  if (d >= b.devices.size())
    return nullptr;
  return kind == sharing::exported ? &b.devices[d].exported : &b.devices[d].imported;
}

void external_memory::appeared(int device, sharing kind, std::uintptr_t at, std::size_t bytes) noexcept {
  auto b = books_.lock();
  try {
    if (b->devices.size() <= static_cast<std::size_t>(device))
      b->devices.resize(static_cast<std::size_t>(device) + 1);
    b->mapped.insert_or_assign(at, pages{device, bytes, kind});
  } catch (...) {
    return;
  }
  if (statistic* const s = of(*b, device, kind))
    add(*s, static_cast<std::int64_t>(bytes));
}

void external_memory::vanished(int device, sharing kind, std::uintptr_t at, std::size_t bytes) noexcept {
  auto b = books_.lock();
  bool const was_counted = b->mapped.erase(at) > 0;
  b->blocks.erase(b->blocks.lower_bound(at), b->blocks.lower_bound(at + bytes));
  if (!was_counted)
    return;
  if (statistic* const s = of(*b, device, kind))
    add(*s, -static_cast<std::int64_t>(bytes));
}

void external_memory::taken(std::uintptr_t at, std::size_t bytes, std::size_t requested,
                            source_location from) noexcept {
  auto b = books_.lock();
  try {
    auto const [own, is_new] = b->blocks.try_emplace(at, block{at, bytes, requested, from});
    if (!is_new) {
      own->second.requested = std::max(own->second.requested, requested);
      ++own->second.holders;
    }
    auto const next = std::next(own);
    bool const is_inside = own != b->blocks.begin() && at - std::prev(own)->first < std::prev(own)->second.requested;
    bool const holds_next = next != b->blocks.end() && next->first - at < requested;
    if (!is_inside && !holds_next)
      return;
    if (auto const in = base::at_or_before(b->mapped, at); in != b->mapped.end())
      in->second.overlaps = true;  // find() looks at earlier blocks, too
  } catch (...) {
    if (auto const in = base::at_or_before(b->mapped, at); in != b->mapped.end())
      in->second.partly_known = true;
  }
}

void external_memory::given_back(std::uintptr_t at) noexcept {
  auto b = books_.lock();
  auto const found = b->blocks.find(at);
  if (found == b->blocks.end())
    return;
  --found->second.holders;
  if (found->second.holders == 0)
    b->blocks.erase(found);
}

bool external_memory::pinned(std::uintptr_t at, std::size_t bytes, source_location from) noexcept {
  auto b = books_.lock();
  try {
    b->pins.insert_or_assign(at, block{at, bytes, bytes, from});
    return true;
  } catch (...) {
    return false;
  }
}

std::optional<external_memory::block> external_memory::unpinned(std::uintptr_t at) noexcept {
  auto b = books_.lock();
  auto const is = b->pins.find(at);
  if (is == b->pins.end())
    return std::nullopt;
  block const out = is->second;
  b->pins.erase(is);
  return out;
}

void external_memory::opened(std::uintptr_t at, int reader) noexcept {
  auto b = books_.lock();
  if (auto const found = b->mapped.find(at); found != b->mapped.end())
    found->second.readers |= std::uint64_t{1} << (reader & 63);
}

void external_memory::sent(std::uintptr_t at) noexcept {
  auto b = books_.lock();
  if (auto const found = b->mapped.find(at); found != b->mapped.end())
    found->second.was_sent = true;
}

std::size_t external_memory::idle(int device) const noexcept {
  auto const b = books_.lock();
  std::size_t bytes = 0;
  for (auto const& [at, its] : b->mapped) {
    if (its.device != device || its.kind != sharing::exported || its.was_sent || its.partly_known)
      continue;
    auto const first = b->blocks.lower_bound(at);
    if (first == b->blocks.end() || first->first >= at + its.bytes)
      bytes += its.bytes;
  }
  return bytes;
}

std::optional<external_memory::place> external_memory::find(void const* where) const noexcept {
  auto const at = reinterpret_cast<std::uintptr_t>(where);
  auto const b = books_.lock();
  if (auto const pin = base::holder_of(b->pins, at); pin != b->pins.end())
    return place{.in_use = true, .at = pin->first, .bytes = pin->second.bytes};
  auto const in = base::holder_of(b->mapped, at);
  if (in == b->mapped.end())
    return std::nullopt;
  auto const& its = in->second;
  auto holder = base::at_or_before(b->blocks, at);
  auto const end_of = [](auto const& one) { return one->first + one->second.requested; };
  // Of the blocks that overlap, an earlier one may end later.
  if (its.overlaps && holder != b->blocks.end()) {
    for (auto one = holder; one != b->blocks.begin() && std::prev(one)->first >= in->first;) {
      --one;
      if (end_of(one) > end_of(holder))
        holder = one;
    }
  }
  if (holder != b->blocks.end() && at - holder->first < holder->second.requested)
    return place{.device = its.device,
                 .kind = its.kind,
                 .readers = its.readers,
                 .in_use = true,
                 .at = holder->first,
                 .bytes = holder->second.requested};
  if (its.partly_known)
    return place{.device = its.device,
                 .kind = its.kind,
                 .readers = its.readers,
                 .in_use = true,
                 .at = in->first,
                 .bytes = its.bytes};
  return place{.device = its.device, .kind = its.kind, .readers = its.readers};
}

std::optional<external_memory::place> external_memory::find_in_process(void const* where) noexcept {
  auto const all = in_process().lock();
  for (auto const* one : *all)
    if (auto const found = one->find(where))
      return found;
  return std::nullopt;
}

void external_memory::add_to(int device, memory_statistics& out) const {
  auto const b = books_.lock();
  if (static_cast<std::size_t>(device) >= b->devices.size())
    return;
  out.exported_bytes = b->devices[static_cast<std::size_t>(device)].exported;
  out.imported_bytes = b->devices[static_cast<std::size_t>(device)].imported;
}

void external_memory::reset_peak(int device) {
  auto b = books_.lock();
  for (auto const kind : {sharing::exported, sharing::imported})
    if (statistic* const s = of(*b, device, kind))
      s->peak = s->current;
}

void external_memory::reset_accumulated(int device) {
  auto b = books_.lock();
  for (auto const kind : {sharing::exported, sharing::imported})
    if (statistic* const s = of(*b, device, kind))
      s->allocated = s->freed = 0;
}

std::vector<external_memory::segment> external_memory::segments(int device) const {
  auto const b = books_.lock();
  std::vector<segment> out;
  for (auto const& [at, its] : b->mapped) {
    if (its.device != device)
      continue;
    std::uint64_t const others = its.readers & ~(std::uint64_t{1} << (device & 63));
    segment& s = out.emplace_back(segment{at, its.bytes, its.kind, others, {}});
    auto const end = b->blocks.lower_bound(at + its.bytes);
    for (auto one = b->blocks.lower_bound(at); one != end; ++one)
      s.blocks.push_back(one->second);
  }
  return out;
}

}  // namespace weir::observe
