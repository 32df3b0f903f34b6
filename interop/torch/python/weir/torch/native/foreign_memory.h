// Memory of a pool whose blocks come from another allocator: torch.cuda.MemPool(allocator), as NCCL's. Freed blocks
// are kept for the pool's later requests on their stream. What a graph may write stays until the pool ends, and what
// several streams used until it is known to be complete.
// Threads: any; one lock. The other allocator and CUDA are called without it.
#pragma once
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace weir_torch {

class foreign_memory {
 public:
  struct block {
    std::size_t bytes = 0, requested = 0;  // requested 0: it is unused
    cudaStream_t stream = nullptr;         // its home
    bool is_of_graph = false;              // it was handed out inside a capture
    std::uint64_t users = 0;               // devices of other streams that were recorded, a bit each
  };
  // Of a segment that the other allocator gives, or gets back. Threads: any
  using teller = std::function<void(bool is_new, void*, block const&)>;

  // takes: null or a c10::OutOfMemoryError if there is none
  foreign_memory(int device, std::function<void*(std::size_t bytes, cudaStream_t)> takes,
                 std::function<void(void*)> gives, teller tell = {})
      : device_(device), takes_(std::move(takes)), gives_(std::move(gives)), tell_(std::move(tell)) {}
  ~foreign_memory() { release(true); }
  foreign_memory(foreign_memory const&) = delete;

  // Null: the other allocator has none, also after all unused blocks went back to it.
  void* take(std::size_t requested, cudaStream_t stream) {
    std::size_t const bytes = (requested + unit - 1) / unit * unit;
    bool const is_of_graph = is_captured(stream);
    if (void* const kept = unused(bytes, requested, stream, is_of_graph))
      return kept;
    void* made = asked(bytes, stream);
    if (!made && release_unused())
      made = asked(bytes, stream);
    if (!made)
      return nullptr;
    block const its{bytes, requested, stream, is_of_graph, 0};
    {
      std::lock_guard<std::mutex> const hold(lock_);
      blocks_[made] = its;
    }
    if (tell_)
      tell_(true, made, its);
    return made;
  }
  void give_back(void* at) noexcept {
    std::lock_guard<std::mutex> const hold(lock_);
    auto const found = blocks_.find(at);
    if (found != blocks_.end())
      found->second.requested = 0;
  }
  void record(void* at, int device, cudaStream_t user) {
    std::lock_guard<std::mutex> const hold(lock_);
    auto const found = blocks_.find(at);
    if (found != blocks_.end() && (user != found->second.stream || device != device_))
      found->second.users |= std::uint64_t{1} << (device & 63);
  }
  // Blocks: until the work of all devices that used them is complete. Returns: whether any block went back
  bool release_unused() noexcept { return release(false); }
  int device() const noexcept { return device_; }
  block find(void* at) const {  // bytes 0: not one of its blocks
    std::lock_guard<std::mutex> const hold(lock_);
    auto const found = blocks_.find(at);
    return found == blocks_.end() ? block() : found->second;
  }
  std::vector<std::pair<void*, block>> all() const {
    std::lock_guard<std::mutex> const hold(lock_);
    std::vector<std::pair<void*, block>> out(blocks_.begin(), blocks_.end());
    std::sort(out.begin(), out.end(), [](auto const& a, auto const& b) { return a.first < b.first; });
    return out;
  }

 private:
  static constexpr std::size_t unit = 512;  // bytes, as PyTorch's

  static bool is_captured(cudaStream_t stream) {
    cudaStreamCaptureStatus is = cudaStreamCaptureStatusNone;
    return cudaStreamIsCapturing(stream, &is) == cudaSuccess && is != cudaStreamCaptureStatusNone;
  }
  // A kept block of that stream that wastes an eighth at most, and that no other stream may still use.
  void* unused(std::size_t bytes, std::size_t requested, cudaStream_t stream, bool is_of_graph) {
    std::lock_guard<std::mutex> const hold(lock_);
    void* best = nullptr;
    std::size_t least = bytes + bytes / 8 + 1;
    for (auto const& [at, its] : blocks_) {
      bool const is_free = its.requested == 0 && its.users == 0 && its.stream == stream;
      if (is_free && its.bytes >= bytes && its.bytes < least)
        best = at, least = its.bytes;
    }
    if (best) {
      blocks_.at(best).requested = requested;
      blocks_.at(best).is_of_graph |= is_of_graph;
    }
    return best;
  }
  // Null: it has none, or says so by an exception.
  void* asked(std::size_t bytes, cudaStream_t stream) {
    try {
      return takes_(bytes, stream);
    } catch (c10::OutOfMemoryError const&) {
      return nullptr;
    }
  }
  bool release(bool of_graphs_too) noexcept {
    try {
      std::vector<std::pair<void*, block>> gone;
      std::uint64_t devices = std::uint64_t{1} << (device_ & 63);
      {
        std::lock_guard<std::mutex> const hold(lock_);
        for (auto at = blocks_.begin(); at != blocks_.end();) {
          bool const goes = at->second.requested == 0 && (of_graphs_too || !at->second.is_of_graph);
          if (goes) {
            gone.emplace_back(*at);
            devices |= at->second.users;
          }
          at = goes ? blocks_.erase(at) : std::next(at);
        }
      }
      if (gone.empty())
        return false;
      synchronize(devices);
      for (auto const& [at, its] : gone) {
        if (tell_)
          tell_(false, at, its);
        gives_(at);
      }
      return true;
    } catch (std::exception const& e) {
      std::fprintf(stderr, "weir.torch: memory of a pool's other allocator does not go back: %s\n", e.what());
      return false;
    }
  }
  static void synchronize(std::uint64_t devices) {
    int before = 0;
    (void)cudaGetDevice(&before);
    for (int d = 0; d < 64; ++d) {
      if (!(devices >> d & 1))
        continue;
      (void)cudaSetDevice(d);
      (void)cudaDeviceSynchronize();
    }
    (void)cudaSetDevice(before);
  }

  int const device_;
  std::function<void*(std::size_t, cudaStream_t)> const takes_;
  std::function<void(void*)> const gives_;
  teller const tell_;
  std::mutex mutable lock_;
  std::unordered_map<void*, block> blocks_;
};

}  // namespace weir_torch
