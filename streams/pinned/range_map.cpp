// Cutting and merging ranges of pinned memory.
// Threads: as range_map.h.
#include "streams/pinned/range_map.h"

#include <iterator>

namespace weir::streams {

pinned_space::entries pinned_space::make_entries() {
  segments_by_age segment;
  segment.try_emplace(0);
  ranges whole;
  whole.try_emplace(0);
  sizes listing{{}};
  return {segment.extract(segment.begin()), whole.extract(whole.begin()), listing.extract(listing.begin())};
}

void pinned_space::add(entries&& in, address base, std::size_t bytes, int node) noexcept {
  mixed_ |= !segments_.empty() && segments_.begin()->second.node != node;
  in.segment.key() = next_age_;
  in.segment.mapped() = {base, bytes, node};
  in.whole.key() = base;
  in.whole.mapped() = {};
  in.whole.mapped().bytes = bytes;
  in.whole.mapped().segment = base;
  in.whole.mapped().age = next_age_++;
  in.listing.value() = {bytes, in.whole.mapped().age, base};
  segments_.insert(std::move(in.segment));
  ranges_.insert(std::move(in.whole));
  by_size_.insert(std::move(in.listing));
}

pinned_space::entries pinned_space::remove(address base) noexcept {
  auto whole = ranges_.extract(base);
  auto of = segments_.extract(whole.mapped().age);
  auto listing = by_size_.extract({of.mapped().bytes, whole.mapped().age, base});
  return {std::move(of), std::move(whole), std::move(listing)};
}

std::vector<pinned_space::address> pinned_space::wholly_free(std::int64_t idle_since) const {
  std::vector<address> found;
  for (auto const& [age, one] : segments_) {
    if (one.idle_since > idle_since)
      continue;
    auto const first = ranges_.find(one.base);
    if (first->second.is == state::free && first->second.bytes == one.bytes)
      found.push_back(one.base);
  }
  return found;
}

pinned_space::place pinned_space::cut(place whole, std::size_t first_bytes) {
  auto& [at, first] = *whole;
  address const second = at + first_bytes;
  ranges fresh;
  range& rest = fresh[second];
  rest.bytes = first.bytes - first_bytes;
  rest.segment = first.segment;
  rest.age = first.age;
  sizes listing{{rest.bytes, rest.age, second}};  // nothing allocates after this
  auto its = by_size_.extract({first.bytes, first.age, at});
  first.bytes = first_bytes;
  its.value() = {first_bytes, first.age, at};
  by_size_.insert(std::move(its));
  by_size_.merge(listing);
  return ranges_.insert(fresh.extract(fresh.begin())).position;
}

pinned_space::place pinned_space::take(std::size_t bytes, std::size_t alignment, int node) {
  if (mixed_ && node >= 0) {
    if (auto const near = take_on(bytes, alignment, node); near != ranges_.end())
      return near;
  }
  return take_on(bytes, alignment, -1);
}

pinned_space::place pinned_space::take_on(std::size_t bytes, std::size_t alignment, int node) {
  for (auto candidate = by_size_.lower_bound({bytes, 0, 0}); candidate != by_size_.end(); ++candidate) {
    auto const [size, age, at] = *candidate;
    std::size_t const before = (alignment - at % alignment) % alignment;  // stays free
    if (size - bytes < before || (node >= 0 && segments_.find(age)->second.node != node))
      continue;
    auto found = ranges_.find(at);
    if (before)
      found = cut(found, before);
    try {
      if (found->second.bytes > bytes)
        cut(found, bytes);
    } catch (...) {
      found->second.listing = by_size_.extract({found->second.bytes, age, found->first});
      give(found);  // undoes the first cut
      throw;
    }
    found->second.listing = by_size_.extract({bytes, age, found->first});
    found->second.is = state::live;
    return found;
  }
  return ranges_.end();
}

pinned_space::place pinned_space::give(place freed) noexcept {
  address const base = freed->second.segment;
  auto const joins = [&](place other) { return other->second.segment == base && other->second.is == state::free; };
  range whole;
  whole.bytes = freed->second.bytes;
  whole.segment = base;
  whole.age = freed->second.age;
  auto listing = std::move(freed->second.listing);
  if (auto const after = std::next(freed); after != ranges_.end() && joins(after)) {
    whole.bytes += after->second.bytes;
    by_size_.erase({after->second.bytes, whole.age, after->first});
    ranges_.erase(after);
  }
  if (freed != ranges_.begin()) {
    if (auto const before = std::prev(freed); joins(before)) {
      by_size_.erase({before->second.bytes, whole.age, before->first});
      whole.bytes += before->second.bytes;
      ranges_.erase(freed);
      freed = before;
    }
  }
  listing.value() = {whole.bytes, whole.age, freed->first};
  by_size_.insert(std::move(listing));
  freed->second = std::move(whole);
  return freed;
}

pinned_space::place pinned_space::find(address at) {
  return base::holder_of(ranges_, at);
}

std::vector<std::string> pinned_space::validate() const {
  std::vector<std::string> wrong;
  std::size_t counted = 0;
  for (auto const& [age, one] : segments_) {
    auto const [base, bytes, node, idle_since] = one;
    address at = base;
    bool free_before = false;
    for (auto here = ranges_.find(base); here != ranges_.end() && here->second.segment == base; ++here) {
      if (here->first != at)
        wrong.push_back("the ranges of a segment leave a gap or overlap");
      bool const is_free = here->second.is == state::free;
      if (is_free && free_before)
        wrong.push_back("two neighbouring free ranges were not merged");
      if (is_free && !by_size_.contains({here->second.bytes, here->second.age, here->first}))
        wrong.push_back("the list by size differs from the free ranges");
      counted += is_free;
      free_before = is_free;
      at += here->second.bytes;
    }
    if (at != base + bytes)
      wrong.push_back("the ranges of a segment leave a gap or overlap");
  }
  if (counted != by_size_.size())
    wrong.push_back("the list by size differs from the free ranges");
  return wrong;
}

}  // namespace weir::streams
