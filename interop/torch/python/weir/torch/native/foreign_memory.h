// Memory of a pool whose blocks come from another allocator: torch.cuda.MemPool(allocator), as NCCL's. Freed blocks
// are kept for the pool's later requests on their stream.
// Threads: any; one lock. The other allocator is called without it.
#pragma once
#include <c10/cuda/CUDAException.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace weir_torch {

class foreign_memory {
 public:
  struct block {
    std::size_t bytes = 0, requested = 0;  // requested: 0 while nobody has it
    cudaStream_t stream = nullptr;         // its home
    std::vector<cudaStream_t> users;       // others, since it was handed out
  };

  // takes: null or a c10::OutOfMemoryError if there is none
  foreign_memory(int device, std::function<void*(std::size_t bytes, cudaStream_t)> takes,
                 std::function<void(void*)> gives)
      : device_(device), takes_(std::move(takes)), gives_(std::move(gives)) {}
  ~foreign_memory() { release_unused(); }
  foreign_memory(foreign_memory const&) = delete;

  // Null: the other allocator has none, also after all unused blocks went back to it.
  void* take(std::size_t requested, cudaStream_t stream) {
    std::size_t const bytes = (requested + unit - 1) / unit * unit;
    if (void* const kept = unused(bytes, requested, stream))
      return kept;
    void* made = asked(bytes, stream);
    if (!made && release_unused())
      made = asked(bytes, stream);
    if (made) {
      std::lock_guard<std::mutex> const hold(lock_);
      blocks_[made] = {bytes, requested, stream, {}};
    }
    return made;
  }
  // Later work of its home waits on the device for the other streams.
  void give_back(void* at) {
    std::vector<cudaStream_t> users;
    cudaStream_t home = nullptr;
    {
      std::lock_guard<std::mutex> const hold(lock_);
      home = blocks_.at(at).stream;
      users = std::exchange(blocks_.at(at).users, {});
    }
    for (cudaStream_t const user : users)
      order(user, home);
    std::lock_guard<std::mutex> const hold(lock_);
    blocks_.at(at).requested = 0;
  }
  void record(void* at, cudaStream_t user) {
    std::lock_guard<std::mutex> const hold(lock_);
    auto& its = blocks_.at(at);
    if (user != its.stream && std::find(its.users.begin(), its.users.end(), user) == its.users.end())
      its.users.push_back(user);
  }
  // Blocks: until the device's work is complete. Returns: whether any block went back
  bool release_unused() {
    std::vector<void*> all;
    {
      std::lock_guard<std::mutex> const hold(lock_);
      for (auto at = blocks_.begin(); at != blocks_.end();) {
        if (at->second.requested == 0) {
          all.push_back(at->first);
          at = blocks_.erase(at);
        } else {
          ++at;
        }
      }
    }
    if (all.empty())
      return false;
    synchronize();
    for (void* const at : all)
      gives_(at);
    return true;
  }
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

  // A kept block of that stream that wastes an eighth at most.
  void* unused(std::size_t bytes, std::size_t requested, cudaStream_t stream) {
    std::lock_guard<std::mutex> const hold(lock_);
    void* best = nullptr;
    std::size_t least = bytes + bytes / 8 + 1;
    for (auto const& [at, its] : blocks_) {
      if (its.requested == 0 && its.stream == stream && its.bytes >= bytes && its.bytes < least)
        best = at, least = its.bytes;
    }
    if (best)
      blocks_.at(best).requested = requested;
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
  void synchronize() const {
    int before = device_;
    (void)cudaGetDevice(&before);
    // A device that the thread never used would get a context by this call.
    if (before != device_)
      (void)cudaSetDevice(device_);
    (void)cudaDeviceSynchronize();
    if (before != device_)
      (void)cudaSetDevice(before);
  }
  static void order(cudaStream_t user, cudaStream_t home) {
    cudaEvent_t done = nullptr;
    C10_CUDA_CHECK(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
    cudaError_t const recorded = cudaEventRecord(done, user);
    cudaError_t const waits = recorded == cudaSuccess ? cudaStreamWaitEvent(home, done, 0) : recorded;
    (void)cudaEventDestroy(done);
    C10_CUDA_CHECK(waits);
  }

  int const device_;
  std::function<void*(std::size_t, cudaStream_t)> const takes_;
  std::function<void(void*)> const gives_;
  std::mutex mutable lock_;
  std::unordered_map<void*, block> blocks_;
};

}  // namespace weir_torch
