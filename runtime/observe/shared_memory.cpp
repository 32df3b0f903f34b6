// Two sums for each device, and two maps by address.
// Threads: any.
#include "runtime/observe/shared_memory.h"

#include <algorithm>

namespace weir::observe {

stat* shared_memory::of(books& b, int device, sharing kind) noexcept {
  auto const d = static_cast<std::size_t>(device);
  if (d >= b.devices.size()) return nullptr;
  return kind == sharing::exported ? &b.devices[d].exported : &b.devices[d].imported;
}

void shared_memory::appeared(int device, sharing kind, std::uintptr_t at, std::size_t bytes) noexcept {
  auto b = books_.lock();
  try {
    if (b->devices.size() <= static_cast<std::size_t>(device)) b->devices.resize(static_cast<std::size_t>(device) + 1);
    b->mapped.insert_or_assign(at, pages{device, bytes, kind});
  } catch (...) {}
  if (stat* const s = of(*b, device, kind)) {
    auto const n = static_cast<std::int64_t>(bytes);
    s->current += n, s->allocated += n;
    s->peak = std::max(s->peak, s->current);
  }
}

void shared_memory::vanished(int device, sharing kind, std::uintptr_t at, std::size_t bytes) noexcept {
  auto b = books_.lock();
  b->mapped.erase(at);
  b->blocks.erase(b->blocks.lower_bound(at), b->blocks.lower_bound(at + bytes));
  if (stat* const s = of(*b, device, kind)) s->current -= static_cast<std::int64_t>(bytes), s->freed += static_cast<std::int64_t>(bytes);
}

void shared_memory::taken(std::uintptr_t at, std::size_t bytes, std::size_t requested, here from) noexcept {
  auto b = books_.lock();
  try {
    b->blocks.insert_or_assign(at, block{at, bytes, requested, from});
  } catch (...) {}
}

void shared_memory::given_back(std::uintptr_t at) noexcept { books_.lock()->blocks.erase(at); }

void shared_memory::opened(std::uintptr_t at, int reader) noexcept {
  auto b = books_.lock();
  if (auto const found = b->mapped.find(at); found != b->mapped.end()) found->second.readers |= std::uint64_t{1} << (reader & 63);
}

std::optional<shared_memory::place> shared_memory::find(void const* where) const {
  auto const at = reinterpret_cast<std::uintptr_t>(where);
  auto const b = books_.lock();
  auto const next = b->mapped.upper_bound(at);
  if (next == b->mapped.begin()) return std::nullopt;
  auto const& [first, its] = *std::prev(next);
  if (at - first >= its.bytes) return std::nullopt;
  auto const block = b->blocks.upper_bound(at);
  bool const in_use = block != b->blocks.begin() && at - std::prev(block)->first < std::prev(block)->second.bytes;
  return place{its.device, its.kind, its.readers, in_use};
}

void shared_memory::add_to(int device, memory_statistics& out) const {
  auto const b = books_.lock();
  if (static_cast<std::size_t>(device) >= b->devices.size()) return;
  out.exported_bytes = b->devices[static_cast<std::size_t>(device)].exported;
  out.imported_bytes = b->devices[static_cast<std::size_t>(device)].imported;
}

void shared_memory::reset_peak(int device) {
  auto b = books_.lock();
  for (auto const kind : {sharing::exported, sharing::imported}) {
    if (stat* const s = of(*b, device, kind)) s->peak = s->current;
  }
}

void shared_memory::reset_accumulated(int device) {
  auto b = books_.lock();
  for (auto const kind : {sharing::exported, sharing::imported}) {
    if (stat* const s = of(*b, device, kind)) s->allocated = s->freed = 0;
  }
}

std::vector<shared_memory::segment> shared_memory::segments(int device) const {
  auto const b = books_.lock();
  std::vector<segment> out;
  for (auto const& [at, its] : b->mapped) {
    if (its.device != device) continue;
    segment& s = out.emplace_back(segment{at, its.bytes, its.kind, its.readers & ~(std::uint64_t{1} << (device & 63)), {}});
    auto const end = b->blocks.lower_bound(at + its.bytes);
    for (auto one = b->blocks.lower_bound(at); one != end; ++one) s.blocks.push_back(one->second);
  }
  return out;
}

}  // namespace weir::observe
