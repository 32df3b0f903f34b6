// One request for memory: checked and rounded once.
// Threads: any.
#include "runtime/memory/space/alloc_request.h"

#include <algorithm>

namespace weir::memory {
namespace {
constexpr std::size_t after_announced = 256;  // bytes behind a block that no program may touch
// Bytes that no device has. A larger size is rounded to this one, which still can be added to an address.
constexpr std::size_t beyond_memory = std::size_t{1} << 62;
}  // namespace

alloc_request alloc_request::make(device_context const& of, clock::stream_clock& home, std::size_t bytes,
                                  std::size_t alignment, source_location at) {
  auto refuse = [&](std::string operands, std::string remedy, error_id id) {
    throw invalid_use("allocate", std::move(operands), std::move(remedy), at, id);
  };
  if (alignment & (alignment - 1))
    refuse("alignment of " + std::to_string(alignment) + " B", "Ask for a power of two, or weir::default_alignment",
           error_id{160});
  if (alignment > largest_alignment)
    refuse("alignment of " + std::to_string(alignment) + " B",
           "Ask for at most " + std::to_string(largest_alignment) + " B", error_id{161});
  if (home.device() != of.device) {
    refuse("a stream of gpu:" + std::to_string(home.device()) + " for memory of gpu:" + std::to_string(of.device),
           "Name a stream of the block's own device", error_id{163});
  }
  if (home.alive() == clock::life::retired)
    refuse("a stream whose registration has ended", "Allocate on a registered stream", error_id{164});
  std::size_t room = std::min(bytes, beyond_memory);
  // No block lies in the bytes behind an announced one. Without them a block is aligned to the largest power
  // of two that divides its size, up to 512 B. With them it still is, for that alignment is asked for.
  if (of.announced) [[unlikely]] {
    std::size_t const own_size = round_up(std::max<std::size_t>(room, 1), 16);
    std::size_t const own_alignment = std::min<std::size_t>(own_size & (~own_size + 1), 512);
    room += after_announced;
    alignment = std::max(alignment, own_alignment);
  }
  int const slot_class = size_classes::of(room, std::max<std::size_t>(alignment, 1));
  if (slot_class >= 0)
    return {home, bytes, std::max<std::size_t>(alignment, 1), slot_class, size_classes::bytes(slot_class), at};
  return {home, bytes, std::max(alignment, bins::unit), -1, std::max(round_up(room, bins::unit), granule), at};
}

}  // namespace weir::memory
