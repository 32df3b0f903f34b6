// The list of topics, in the articles' order.
#include "examples/seeds/topics.h"

namespace seeds {

std::span<topic const> topics() {
  static constexpr topic all[] = {
      {"reuse", "freed memory serves the next tensor; assigning over one needs room for both", give_back,
       "Pytorch显存动态分配规律探索; and nine tips"},
      {"small", "millions of floats of their own take little more than their bytes", small_blocks,
       "PyTorch显存机制分析——显存碎片问题"},
      {"views", "a view shares its memory, a result takes new memory", views, "PyTorch内存管理 (趋近智)"},
      {"watch", "counters rise and fall; a cache in pieces still serves a large block", watching,
       "PyTorch的内存管理; 对于CUDA的内存管理机制"},
      {"training", "a step keeps activations; checkpoints and small batches keep fewer", training,
       "PyTorch内存管理 (趋近智); Pytorch节省显存 - checkpoint"},
      {"devices", "a tensor and its operations stay on one device; an error names its line", devices,
       "对于CUDA的内存管理机制"},
      {"streams", "a missing wait gives wrong results, and the race checker names it", streams,
       "对于CUDA的内存管理机制"},
      {"pinned", "copies of pinned memory do not wait; a data loader overlaps them", pinned, "对于CUDA的内存管理机制"},
      {"several", "a batch divided over several devices gives the bits of one", several, "对于CUDA的内存管理机制"},
  };
  return all;
}

}  // namespace seeds
