// What the allocator that is compiled against PyTorch's headers asks of weir (python/weir/torch/native/door.h).
// Threads: any.
#include <algorithm>
#include <array>
#include <map>

#include "interop/torch/door.h"
#include "interop/torch/python/weir/torch/native/door.h"
#include "weir/observe.h"

namespace weir::interop {
namespace {

constexpr source_location of_torch;  // a line of Python, which errors do not know
thread_local weir_torch_failure last_failure;
thread_local std::string last_text;

weir_torch_count count_of(statistic const& s) noexcept {
  return {s.current, s.peak, s.allocated, s.freed};
}
void put(weir_torch_count (&to)[weir_torch_sizes], statistic_by_size const& s) noexcept {
  to[weir_torch_all] = count_of(s.all), to[weir_torch_small] = count_of(s.small);
  to[weir_torch_large] = count_of(s.large);
}

// Of the exception that is being handled.
weir_torch_failure const* failure_to_allocate() noexcept {
  last_failure = {};
  try {
    throw;
  } catch (out_of_memory const& e) {
    memory_report const& r = e.report();
    std::size_t const taken = r.reserved + r.other_processes;
    last_failure = {.out_of_memory = 1,
                    .allocated = r.allocated,
                    .reserved = r.reserved,
                    .free = taken < r.capacity ? r.capacity - taken : 0,
                    .capacity = r.capacity,
                    .limit = r.limit,
                    .text = ""};
    last_text = r.text();
  } catch (...) {
    last_text = text_of(std::current_exception());
  }
  last_failure.text = last_text.c_str();
  return &last_failure;
}

weir_torch_segment told_segment(int device, memory_segment const& s,
                                std::map<std::uint64_t, pools_of_torch::id> const& ids,
                                std::vector<weir_torch_piece>& pieces) {
  pieces.clear();
  for (memory_block const& b : s.blocks) {
    pieces.push_back({.address = b.address,
                      .bytes = b.bytes,
                      .requested = b.requested,
                      .is_allocated = b.state == block_state::active_allocated,
                      .is_pending = b.state == block_state::active_pending_free});
  }
  auto const pool = ids.find(s.pool);
  pools_of_torch::id const id = pool == ids.end() ? pools_of_torch::id() : pool->second;
  return {.device = device,
          .address = s.address,
          .bytes = s.bytes,
          .stream = streams().handle_of(s.stream),
          .is_small = s.small,
          .pool = {id.first, id.second},
          .pieces = pieces.size(),
          .piece = pieces.data()};
}

}  // namespace
}  // namespace weir::interop

using namespace weir::interop;

WEIR_HOOK void* weir_torch_try_alloc(std::size_t bytes, int device, CUstream_st* stream,
                                     weir_torch_failure const** why) noexcept {
  if (void* const p = allocate_quickly(bytes, device, stream)) [[likely]]
    return p;
  try {
    require_no_fork();
    return allocate_rounded(bytes, device, stream, streams().of(device, stream));
  } catch (...) {
    *why = failure_to_allocate();
    return nullptr;
  }
}

WEIR_HOOK int weir_torch_devices() noexcept {
  return guarded([] { return weir::device_count(of_torch); }, 0);
}

WEIR_HOOK int weir_torch_find(void const* p, weir_torch_block* out) noexcept {
  auto const block = weir::find_block(p);
  if (!block || block->on.is_cpu())
    return 0;
  *out = {block->base, block->bytes, block->on.index(), block->home ? streams().handle_of(block->home->id()) : nullptr};
  return 1;
}

WEIR_HOOK std::size_t weir_torch_largest(int device) noexcept {
  return guarded([&] { return weir::memory_headroom(device, of_torch).largest; }, std::size_t{0});
}

WEIR_HOOK int weir_torch_statistics_of(int device, weir_torch_statistics* out) noexcept {
  return done([&] {
    auto const n = weir::memory_stats(device, of_torch);
    put(out->allocation, n.allocation), put(out->segment, n.segment), put(out->active, n.active);
    put(out->inactive_split, n.inactive), put(out->allocated_bytes, n.allocated_bytes);
    put(out->reserved_bytes, n.reserved_bytes), put(out->active_bytes, n.active_bytes);
    put(out->inactive_split_bytes, n.cached_bytes), put(out->requested_bytes, n.requested_bytes);
    out->retries = static_cast<std::int64_t>(n.num_alloc_retries);
    out->out_of_memory = static_cast<std::int64_t>(n.num_ooms);
    out->handles_made = static_cast<std::int64_t>(n.pages_mapped);
    out->handles_released = n.segment.all.freed;
  });
}

WEIR_HOOK int weir_torch_segments(int device, void (*tell)(void*, weir_torch_segment const*), void* to) noexcept {
  return done([&] {
    std::vector<weir_torch_piece> pieces;
    auto const ids = pools().by_number(device);
    for (weir::memory_segment const& s : weir::memory_snapshot(device, of_torch)) {
      if (s.shared == weir::memory_sharing::imported)
        continue;
      weir_torch_segment const one = told_segment(device, s, ids, pieces);
      tell(to, &one);
    }
  });
}

WEIR_HOOK void weir_torch_open_memory(int owner, int reader) noexcept {
  open_memory(owner, reader);
}

WEIR_HOOK int weir_torch_holds_of_pool(int device, unsigned long long first, unsigned long long second) noexcept {
  return pools().holds(device, {first, second});
}
WEIR_HOOK int weir_torch_begun_of_pool(int device, unsigned long long first, unsigned long long second) noexcept {
  return pools().begun(device, {first, second});
}
WEIR_HOOK int weir_torch_pool_in_force(int device, CUstream_st* stream, unsigned long long id[2]) noexcept {
  if (!at_hand.open_pools.load(std::memory_order_relaxed))
    return 0;
  auto const found = guarded([&] { return pools().in_force(device, stream); }, std::optional<pools_of_torch::id>());
  if (found)
    id[0] = found->first, id[1] = found->second;
  return found.has_value();
}
