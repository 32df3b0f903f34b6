// The slow half of slab.h: runs in and out, and the scan for a free slot.
// Threads: as slab.h.
#include "runtime/memory/slab.h"

#include <algorithm>
#include <cstring>

namespace weir::memory {

std::size_t slabs::run_bytes(int c, std::size_t have) noexcept {
  // Few slabs: small runs, so that a class of which little is used holds little. Many: long runs, so that each costs little to keep.
  std::size_t const size = size_classes::bytes(c);
  std::size_t const least = have < 8 ? 64 << 10 : have < 32 ? 128 << 10 : 512 << 10;
  std::size_t best = least, best_waste = ~std::size_t{0};
  for (std::size_t run = least; run <= (512 << 10); run += granule) {
    std::size_t const waste = run % size;
    if (waste * (have < 2 ? 8 : have < 8 ? 32 : 64) <= run) return run;
    if (waste * best < best_waste * run || best_waste == ~std::size_t{0}) best = run, best_waste = waste;
  }
  return best;
}

void slabs::list(slab& s) noexcept {
  slab*& head = open_[static_cast<std::size_t>(s.size_class)];
  s.before = nullptr;
  s.after = head;
  if (head) head->before = &s;
  head = &s;
  s.listed = true;
}

void slabs::unlist(slab& s) noexcept {
  (s.before ? s.before->after : open_[static_cast<std::size_t>(s.size_class)]) = s.after;
  if (s.after) s.after->before = s.before;
  s.before = s.after = nullptr;
  s.listed = false;
}

slabs::taken slabs::take(int c, std::size_t requested) noexcept {
  slab* const s = open_[static_cast<std::size_t>(c)];
  if (!s) return {};
  if (s->empty()) --empties_[static_cast<std::size_t>(c)];
  auto const* const found = static_cast<std::uint8_t const*>(std::memchr(s->states.get() + s->hint, static_cast<int>(slot::free), s->slots - s->hint));
  auto const i = static_cast<std::uint32_t>(found - s->states.get());
  s->hint = i + 1;
  s->set(i, slot::live);
  s->unused[i] = static_cast<std::uint16_t>(s->size - requested);
  if (--s->free == 0) unlist(*s);
  return {s, i};
}

bool slabs::give(slab& s, std::uint32_t i) noexcept {
  if (s.at(i) == slot::pending) --s.pending;
  s.forget(i);
  s.set(i, slot::free);
  s.hint = std::min(s.hint, i);
  ++s.free;
  if (!s.listed) list(s);
  if (!s.empty()) return false;
  // One empty slab a class stays, so that a lone pair of calls does not cut and return a run each time.
  return ++empties_[static_cast<std::size_t>(s.size_class)] > 1;
}

void slabs::hold(slab& s, std::uint32_t i) noexcept {
  s.forget(i);
  s.set(i, slot::pending);
  ++s.pending;
}

slab& slabs::add(piece& run, int c) {
  if (spare_.empty()) {
    all_.push_back(std::make_unique<slab>());
    spare_.reserve(all_.size());
    spare_.push_back(all_.back().get());
  }
  slab& s = *spare_.back();
  std::size_t const size = size_classes::bytes(c), slots = run.bytes / size;
  auto states = std::make_unique<std::uint8_t[]>(slots);
  auto unused = std::make_unique<std::uint16_t[]>(slots);
  spare_.pop_back();
  s.states = std::move(states), s.unused = std::move(unused);
  s.run = &run, s.base = run.at, s.size = static_cast<std::uint32_t>(size), s.size_class = c;
  s.slots = s.free = static_cast<std::uint32_t>(slots);
  s.pending = s.hint = 0;
  run.in->leave(run);
  run.is = state::slab;
  run.cut = &s;
  run.in->enter(run);
  ++counts_[static_cast<std::size_t>(c)];
  ++empties_[static_cast<std::size_t>(c)];
  list(s);
  return s;
}

piece& slabs::remove(slab& s) noexcept {
  unlist(s);
  --counts_[static_cast<std::size_t>(s.size_class)];
  --empties_[static_cast<std::size_t>(s.size_class)];
  piece& run = *std::exchange(s.run, nullptr);
  s.states.reset(), s.unused.reset();
  s.slots = s.free = 0;
  run.in->leave(run);
  run.is = state::live;
  run.cut = nullptr;
  run.in->enter(run);
  spare_.push_back(&s);
  return run;
}

slab* slabs::any_empty() noexcept {
  for (std::size_t c = 0; c < open_.size(); ++c) {
    if (empties_[c] == 0) continue;
    for (slab* s = open_[c]; s; s = s->after) {
      if (s->empty()) return s;
    }
  }
  return nullptr;
}

void slabs::validate(std::vector<std::string>& wrong, std::string const& who) const {
  std::array<std::size_t, size_classes::count> counts{}, empties{};
  for (auto const& s : all_) {
    if (!s->run) continue;
    std::string const name = who + " slab of " + std::to_string(s->size) + " B: ";
    std::uint32_t free = 0, live = 0, pending = 0;
    for (std::uint32_t i = 0; i < s->slots; ++i) {
      free += s->at(i) == slot::free, live += s->at(i) == slot::live, pending += s->at(i) == slot::pending;
      if (s->at(i) == slot::free && i < s->hint) wrong.push_back(name + "no slot below the hint is free");
      if (((s->states[i] & slab::noted) != 0) != (s->notes.count(i) != 0)) wrong.push_back(name + "noted slots have their note");
    }
    if (free != s->free || pending != s->pending || free + live + pending != s->slots) wrong.push_back(name + "slots = free + live + pending");
    if (s->listed != (s->free > 0)) wrong.push_back(name + "listed exactly when a slot is free");
    if (s->run->is != state::slab || s->run->cut != s.get()) wrong.push_back(name + "its run knows it");
    ++counts[static_cast<std::size_t>(s->size_class)];
    empties[static_cast<std::size_t>(s->size_class)] += s->empty();
  }
  if (counts != counts_ || empties != empties_) wrong.push_back(who + ": slabs are counted by class");
}

}  // namespace weir::memory
