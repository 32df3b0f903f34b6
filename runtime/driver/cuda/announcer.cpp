// Reports weir's mappings as NVTX heaps, and weir's blocks as NVTX regions.
// Threads: see announcer.h.
#include "runtime/driver/cuda/announcer.h"

#include <algorithm>

#if __has_include(<nvtx3/nvToolsExtMem.h>)
#include <nvtx3/nvToolsExtMem.h>
#define WEIR_HAS_NVTX_MEMORY 1
#else
#define WEIR_HAS_NVTX_MEMORY 0
#endif

namespace weir::driver::cuda {
namespace {

#if WEIR_HAS_NVTX_MEMORY
nvtxDomainHandle_t domain() {
  static nvtxDomainHandle_t const made = nvtxDomainCreateA("weir");
  return made;
}

void* register_heap(address at, std::size_t bytes) {
  nvtxMemVirtualRangeDesc_t const range{bytes, reinterpret_cast<void const*>(at)};
  nvtxMemHeapDesc_t heap{};
  heap.extCompatID = NVTX_EXT_COMPATID_MEM;
  heap.structSize = sizeof heap;
  heap.usage = NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR;
  heap.type = NVTX_MEM_TYPE_VIRTUAL_ADDRESS;
  heap.typeSpecificDescSize = sizeof range;
  heap.typeSpecificDesc = &range;
  return nvtxMemHeapRegister(domain(), &heap);
}

void unregister_heap(void* heap) {
  nvtxMemHeapUnregister(domain(), static_cast<nvtxMemHeapHandle_t>(heap));
}

void register_region(void* heap, address at, std::size_t bytes) {
  nvtxMemVirtualRangeDesc_t const range{bytes, reinterpret_cast<void const*>(at)};
  nvtxMemRegionsRegisterBatch_t batch{};
  batch.extCompatID = NVTX_EXT_COMPATID_MEM;
  batch.structSize = sizeof batch;
  batch.regionType = NVTX_MEM_TYPE_VIRTUAL_ADDRESS;
  batch.heap = static_cast<nvtxMemHeapHandle_t>(heap);
  batch.regionCount = 1;
  batch.regionDescElementSize = sizeof range;
  batch.regionDescElements = &range;
  nvtxMemRegionsRegister(domain(), &batch);
}

void unregister_region(address at) {
  nvtxMemRegionRef_t region{};
  region.pointer = reinterpret_cast<void const*>(at);
  nvtxMemRegionsUnregisterBatch_t batch{};
  batch.extCompatID = NVTX_EXT_COMPATID_MEM;
  batch.structSize = sizeof batch;
  batch.refType = NVTX_MEM_REGION_REF_TYPE_POINTER;
  batch.refCount = 1;
  batch.refElementSize = sizeof region;
  batch.refElements = &region;
  nvtxMemRegionsUnregister(domain(), &batch);
}
#else
void* register_heap(address, std::size_t) {
  return nullptr;
}
void unregister_heap(void*) {}
void register_region(void*, address, std::size_t) {}
void unregister_region(address) {}
#endif

}  // namespace

bool announcer::possible() noexcept {
  return WEIR_HAS_NVTX_MEMORY;
}

// Called again for a peer's grant, without effect.
void announcer::usable(address at, std::size_t bytes) {
  pages_.lock()->all.emplace(at, page{bytes});
}

void announcer::unusable(address at) noexcept {
  auto p = pages_.lock();
  auto const found = p->all.find(at);
  if (found == p->all.end())
    return;
  // NVTX ends the regions of a heap with it.
  if (found->second.heap) {
    p->regions.erase(p->regions.lower_bound(at), p->regions.lower_bound(at + found->second.bytes));
    unregister_heap(found->second.heap);
  }
  p->all.erase(found);
}

void announcer::taken(address at, std::size_t bytes) {
  if (bytes == 0)
    return;
  auto p = pages_.lock();
  p->blocks[at] = bytes;
  // From the last page that begins at or before the block.
  auto in = p->all.upper_bound(at);
  if (in != p->all.begin())
    --in;
  for (; in != p->all.end() && in->first < at + bytes; ++in) {
    auto& [base, its] = *in;
    address const from = std::max(at, base), to = std::min(at + bytes, base + its.bytes);
    if (from >= to)
      continue;  // the page ends before the block
    if (!its.heap)
      its.heap = register_heap(base, its.bytes);
    register_region(its.heap, from, to - from);
    p->regions[from] = to - from;
  }
}

void announcer::given_back(address at) noexcept {
  auto p = pages_.lock();
  auto const block = p->blocks.find(at);
  if (block == p->blocks.end())
    return;
  for (auto r = p->regions.lower_bound(at); r != p->regions.end() && r->first < at + block->second;) {
    unregister_region(r->first);
    r = p->regions.erase(r);
  }
  p->blocks.erase(block);
}

}  // namespace weir::driver::cuda
