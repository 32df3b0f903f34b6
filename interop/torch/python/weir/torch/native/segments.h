// What PyTorch is told of memory: figures, and segments as its snapshots show them.
// Threads: any.
#pragma once
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "door.h"
#include "foreign_memory.h"
#include "history.h"
#include "pools.h"

namespace weir_torch {

// Requires: 0 came from the function whose text is asked for
inline void require(int result, char const* operation) {
  TORCH_CHECK(result == 0, "weir.torch: ", operation, ": ", weir_torch_error());
}

// With the memory that other allocators gave pools.
inline weir_torch_statistics figures_of(pools const& all, int device) {
  weir_torch_statistics n{};
  require(weir_torch_statistics_of(device, &n), "memory_stats");
  auto const add = [](weir_torch_count(&to)[weir_torch_sizes], std::size_t bytes) {
    for (int const size : {weir_torch_all, weir_torch_large}) {
      to[size].current += static_cast<std::int64_t>(bytes);
      to[size].peak = std::max(to[size].peak, to[size].current);
    }
  };
  for (auto const& [id, memory] : all.others_on(device)) {
    for (auto const& [at, block] : memory->all()) {
      std::size_t const live = block.requested ? block.bytes : 0;
      add(n.allocated_bytes, live), add(n.active_bytes, live), add(n.requested_bytes, block.requested);
      add(n.reserved_bytes, block.bytes), add(n.inactive_split_bytes, block.bytes - live);
      add(n.allocation, block.requested ? 1 : 0), add(n.active, block.requested ? 1 : 0), add(n.segment, 1);
    }
  }
  return n;
}

class segments {
 public:
  segments(pools const& blocks, history const& contexts) : pools_(blocks), history_(contexts) {}

  // By address, those of other allocators behind weir's. pool: 0, 0 for all of them
  std::vector<cca::SegmentInfo> of(int device, pool_id pool) {
    struct walk {
      segments& self;
      pool_id pool;
      std::vector<cca::SegmentInfo> all;
    } found{*this, pool, {}};
    require(weir_torch_segments(
                device,
                [](void* to, weir_torch_segment const* s) {
                  walk& w = *static_cast<walk*>(to);
                  if (w.pool == pool_id() || w.pool == pool_id(s->pool[0], s->pool[1]))
                    w.all.push_back(w.self.told(*s));
                },
                &found),
            "memory_snapshot");
    for (auto const& [id, memory] : pools_.others_on(device)) {
      if (pool != pool_id() && pool != id)
        continue;
      for (auto const& [at, block] : memory->all())
        found.all.push_back(told(device, id, at, block));
    }
    return std::move(found.all);
  }

 private:
  cca::SegmentInfo told(int device, pool_id id, void* at, foreign_memory::block const& block) {
    weir_torch_piece const whole{reinterpret_cast<std::uintptr_t>(at), block.bytes, block.requested,
                                 block.requested != 0, 0};
    return told({device, whole.address, block.bytes, block.stream, 0, {id.first, id.second}, 1, &whole});
  }
  cca::SegmentInfo told(weir_torch_segment const& s) {
    cca::SegmentInfo out;
    out.device = static_cast<c10::DeviceIndex>(s.device);
    out.address = s.address;
    out.total_size = s.bytes;
    out.stream = s.stream;
    out.is_large = !s.is_small;
    out.is_expandable = true;
    out.owner_private_pool_id = {s.pool[0], s.pool[1]};
    for (std::size_t i = 0; i < s.pieces; ++i)
      add(out, s.piece[i]);
    return out;
  }
  void add(cca::SegmentInfo& to, weir_torch_piece const& p) {
    auto* const block = reinterpret_cast<void*>(p.address);
    cca::BlockInfo b;
    b.size = p.bytes;
    b.allocated = p.is_allocated && !(pools_.has_blocks() && pools_.is_only_saved(block));
    b.active = b.allocated || p.is_pending;
    if (!b.active && !to.blocks.empty() && !to.blocks.back().active) {
      to.blocks.back().size += b.size;  // free ranges that adjoin are one
      return;
    }
    if (b.allocated) {
      b.requested_size = p.requested;
      b.context_when_allocated = history_.context_of(block);
    }
    to.requested_size += b.requested_size;
    to.allocated_size += b.allocated ? b.size : 0;
    to.active_size += b.active ? b.size : 0;
    to.blocks.push_back(std::move(b));
  }

  pools const& pools_;
  history const& history_;
};

}  // namespace weir_torch
