// weir/libtorch_allocator.h: weir as LibTorch's allocator of device memory, for LibTorch 2.x with CUDA. It serves
// tensors on the streams that LibTorch names. A program in Python installs weir.torch instead (docs/how-to/pytorch.md).
// Threads: any.
#pragma once
#include <c10/util/Exception.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <string>

#include "weir/memory.h"
#include "weir/stream_of.h"

namespace weir::libtorch {

// Makes weir LibTorch's allocator, with the current runtime. LibTorch's kernels expect an alignment of 512 B.
// Requires: no tensor on a GPU so far. The runtime outlives all tensors. LibTorch throws otherwise.
inline void use_allocator(source_location at = source_location::current()) {
  runtime* const machine = &runtime::current(at);
  auto const allocator = std::make_shared<torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator>(
      [machine](std::size_t bytes, int device, cudaStream_t stream) -> void* {
        runtime_guard const in(*machine);
        try {
          return allocate(borrow_stream(weir::device(device), stream), bytes, 512);
        } catch (out_of_memory const& e) {
          TORCH_CHECK_WITH(OutOfMemoryError, false, e.what());
        }
      },
      [machine](void* block, std::size_t, int device, cudaStream_t stream) {
        // Destructors of tensors call it.
        try {
          runtime_guard const in(*machine);
          ::weir::detail::deallocate_on(weir::device(device), stream, block);
        } catch (std::exception const& e) {
          std::fprintf(stderr, "%s (a block of LibTorch is not freed)\n", e.what());
        }
      });
  allocator->set_record_stream_fn([machine](void* block, cudaStream_t stream) {
    runtime_guard const in(*machine);
    // Memory of others (from_blob, DLPack) is none of weir's.
    if (block && find_block(block))
      record_stream(block, ::weir::detail::stream_of(stream));
  });
  allocator->set_base_alloc_fn([machine](void* inside, std::size_t* bytes) -> void* {
    runtime_guard const in(*machine);
    std::optional<block_info> const block = find_block(inside);
    if (bytes)
      *bytes = block ? block->bytes : 0;
    return block ? block->base : inside;
  });
  allocator->set_memory_fraction_fn([machine](double of_total, int device) {
    runtime_guard const in(*machine);
    set_per_process_memory_fraction(of_total, weir::device(device));
  });
  allocator->set_reset_fn([machine] {
    runtime_guard const in(*machine);
    for (int i = 0; i < device_count(); ++i)
      empty_cache(weir::device(i));
  });
  torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(allocator);
}

}  // namespace weir::libtorch
