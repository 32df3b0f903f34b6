// Spaces come and go under one lock of the process.
// Threads: as mapped_spaces.h.
#include "runtime/memory/space/mapped_spaces.h"

#include "runtime/base/process.h"

namespace weir::memory {

constinit base::atomic<std::size_t> mapped_spaces::used_{0};
constinit std::array<mapped_spaces::place, mapped_spaces::most> mapped_spaces::places_{};
constinit base::mutex mapped_spaces::changing_;

void mapped_spaces::enter(address base, std::size_t bytes, address_space const& s) noexcept {
  base::lock_guard const hold(changing_);
  base::no_switch const whatever_was_there_before;  // entries of earlier runtimes add no switch point
  std::size_t const n = used_.load();
  std::size_t i = 0;  // the first place that is empty, or the next one
  while (i < n && places_[i].bytes.load() != 0)
    ++i;
  if (i == most)
    return;
  places_[i].space.store(&s);  // before its base: a reader that has the place's old size finds the new space
  places_[i].base.store(base);
  places_[i].bytes.store(bytes, base::memory_order_release);
  if (i == n)
    used_.store(n + 1, base::memory_order_release);
  invalidate_fast_paths();
}

void mapped_spaces::leave(address base) noexcept {
  base::lock_guard const hold(changing_);
  base::no_switch const whatever_was_there_before;
  for (place& p : places_) {
    if (p.bytes.load() != 0 && p.base.load() == base)
      p.bytes.store(0);
  }
  invalidate_fast_paths();
}

region const* mapped_spaces::find(address a) noexcept {
  base::no_switch const whatever_was_there_before;
  for (std::size_t i = 0, n = used_.load(base::memory_order_acquire); i < n; ++i) {
    place const& p = places_[i];
    std::size_t const bytes = p.bytes.load(base::memory_order_acquire);
    if (a - p.base.load() < bytes)
      return p.space.load()->find(reinterpret_cast<void const*>(a));
  }
  return nullptr;
}

}  // namespace weir::memory
