// The lookup of an address: device blocks, pinned blocks, then shared and registered memory.
// Threads: any.
#include "streams/api/known_range.h"

#include "runtime/base/byte_range.h"
#include "runtime/core/parts.h"
#include "runtime/memory/space/memory_pool.h"
#include "runtime/observe/external_memory.h"
#include "streams/pinned/pinned_memory.h"

namespace weir::streams {
namespace {

base::byte_range range_of(memory::block const& b) noexcept {
  return {reinterpret_cast<std::uintptr_t>(b.base), b.bytes};
}

known_range::verdict judge(memory::block const& b, void const* at, std::size_t bytes) noexcept {
  auto const from = reinterpret_cast<std::uintptr_t>(at);
  bool inside = range_of(b).holds(from, bytes);
  // Without a size, the range must begin at a byte of its block. An empty block has only its base.
  if (!bytes && at != b.base)
    inside = range_of(b).left_from(from) > 0;
  return inside ? known_range::verdict::inside : known_range::verdict::past_end;
}

}  // namespace

known_range known_range::of(runtime::impl& r, void const* at, std::size_t bytes) noexcept {
  known_range out;
  out.at = at, out.bytes = bytes;
  auto const judge_in = [&](std::optional<memory::block> const& found) {
    if (!found) {
      out.is = verdict::no_block;
      return;
    }
    out.is = found->asleep ? verdict::asleep : judge(*found, at, bytes);
    out.block = *found;
  };
  if (auto const from = reinterpret_cast<std::uintptr_t>(at); from + bytes < from) {
    out.is = verdict::wraps;
    return out;
  }
  if (auto* const devices = r.part_if_made<memory::device_memory>()) {
    if (auto* const owner = devices->owner(at)) {
      out.memory = owner, out.device = owner->device();
      judge_in(owner->find(at));
      return out;
    }
  }
  if (auto* const pool = r.part_if_made<pinned_memory>()) {
    if (auto const found = pool->find(at); found || pool->reserves(at)) {
      out.pinned = pool;
      judge_in(found);
      return out;
    }
  }
  if (auto const* const external = r.part_if_made<observe::external_memory>()) {
    if (auto const its = external->find(at)) {
      bool const of_host = its->device < 0;
      out.device = its->device, out.readers = its->readers;
      out.locked_in_place = of_host;
      out.imported = !of_host && its->kind == observe::sharing::imported;
      auto const kind = of_host ? memory_kind::pinned : memory_kind::device;
      memory::block const held{reinterpret_cast<void*>(its->at), its->bytes, its->device, kind, nullptr};
      judge_in(its->in_use ? std::optional(held) : std::nullopt);
      return out;
    }
  }
  if (memory::device_memory::owner_in_process(at))
    out.is = verdict::of_another_runtime;
  return out;
}

std::size_t known_range::left() const noexcept {
  return range_of(block).left_from(reinterpret_cast<std::uintptr_t>(at));
}

bool known_range::open_to(int reader) const noexcept {
  return memory ? memory->granted(at, reader) : readers >> (reader & 63) & 1;
}

std::string known_range::text() const {
  return (device >= 0                 ? base::gpu_name(device) + " "
          : pinned || locked_in_place ? "pinned "
                                      : "") +
         base::address_text(at);
}

known_range const& known_range::require_inside(std::string_view operation, std::string_view operand,
                                               source_location where) const {
  if (is == verdict::inside || is == verdict::unknown) [[likely]]
    return *this;
  // Always throws: no case below goes on after it.
  auto const refuse = [&](std::string const& what, char const* remedy, error_id id) {
    std::string const asked = bytes ? ", asked " + std::to_string(bytes) + " B" : ", asked for the rest of its block";
    throw invalid_use(std::string(operation), std::string(operand) + " " + text() + " " + what + asked, remedy, where,
                      id);
  };
  switch (is) {
    case verdict::past_end:
      refuse("holds " + std::to_string(left()) + " B" +
                 (at == block.base ? "" : " to the end of its block of " + std::to_string(block.bytes) + " B"),
             "Use no more bytes than the block holds", error_id{184});
      break;
    case verdict::no_block:
      if (memory || pinned)
        refuse("is not allocated", "Keep the owner of the memory until this call", error_id{185});
      refuse("lies in shared memory, but in no buffer", "Keep the buffer until this call", error_id{186});
      break;
    case verdict::wraps:
      refuse("wraps around the address space", "Check the size for an overflow", error_id{187});
      break;
    case verdict::asleep:
      refuse("lies in pool " + block.pool->name() + ", which is asleep", "Wake the pool first (pool::wake)",
             error_id{393});
      break;
    case verdict::of_another_runtime:
      refuse("is device memory of another runtime", "Use the runtime that allocated the memory", error_id{188});
      break;
    case verdict::inside:
    case verdict::unknown: break;
  }
  return *this;
}

}  // namespace weir::streams
