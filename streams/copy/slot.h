// A slot: pinned memory that a staged copy passes through.
// Threads: a slot belongs to one copy.
#pragma once
#include <algorithm>
#include <optional>
#include <utility>

#include "streams/copy/staging.h"
#include "streams/pinned/pinned_memory.h"

namespace weir::streams {

// A block of the pinned pool, freed with the stamps it was marked with.
class slot {
 public:
  slot(pinned_memory& pool, void* memory, std::size_t bytes) noexcept : bytes_(bytes), memory_(memory, {&pool}) {}
  void* memory() const noexcept { return memory_.get(); }
  std::size_t bytes() const noexcept { return bytes_; }
  void used_by(clock::stream_clock const& stream) const noexcept { used_until(stream.now()); }
  void used_until(clock::stamp s) const noexcept { memory_.get_deleter().of->record_use(memory(), s); }

 private:
  std::size_t bytes_;
  pinned_memory::scoped_block memory_;
};

inline std::optional<slot> slot_if_any(pinned_memory& pool, int device, std::size_t bytes, source_location where) {
  void* const memory = pool.try_near(device, bytes, nullptr, where);
  return memory ? std::optional<slot>(std::in_place, pool, memory, bytes) : std::nullopt;
}

// If pinned memory is short, halves the slot down to the smallest. Throws: out_of_memory
inline slot shrinking_slot(pinned_memory& pool, int device, std::size_t bytes, source_location where) {
  for (; bytes > staging::smallest_chunk; bytes = std::max(staging::smallest_chunk, bytes / 2))
    if (auto s = slot_if_any(pool, device, bytes, where))
      return std::move(*s);
  return {pool, pool.allocate_for("copy", device, bytes, 0, where), bytes};
}

}  // namespace weir::streams
