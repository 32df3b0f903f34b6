// weir as PyTorch's own allocator of device memory: the class that PyTorch asks for statistics, snapshots, histories,
// pools and settings, over the functions of libweir_torch.so (door.h). It is compiled against the headers of the
// installed release (weir/torch/_native.py), which says by WEIR_HAS_… what that release's interface has.
// Threads: any. raw_delete() and what destructors of tensors call throw nothing.
#include <c10/core/Allocator.h>
#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <atomic>
#include <cstdio>
#include <unordered_set>

#include "door.h"
#include "history.h"
#include "pools.h"
#include "segments.h"

namespace weir_torch {
namespace {

#ifdef WEIR_HAS_DEVICE_ALLOCATOR
using statistics = c10::CachingDeviceAllocator::DeviceStats;
#else
using statistics = cca::DeviceStats;
#endif

std::string of_bytes(std::size_t n) {
  char text[64];
  double const mib = static_cast<double>(n) / (1 << 20);
  std::snprintf(text, sizeof text, mib >= 1024 ? "%.2f GiB" : "%.2f MiB", mib >= 1024 ? mib / 1024 : mib);
  return text;
}

template <class Stats>
void put(Stats& to, weir_torch_count const (&from)[weir_torch_sizes]) {
  for (std::size_t i = 0; i < weir_torch_sizes; ++i) {
    to[i].current = from[i].current, to[i].peak = from[i].peak;
    to[i].allocated = from[i].allocated, to[i].freed = from[i].freed;
  }
}

class allocator final : public cca::CUDAAllocator {
 public:
  // Memory ----------------------------------------------------------------------------------------------------
  c10::DataPtr allocate(std::size_t bytes) override {
    c10::DeviceIndex device = 0;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    void* const p = bytes ? take(bytes, device, c10::cuda::getCurrentCUDAStream(device).stream()) : nullptr;
    return {p, p, &give_back, c10::Device(c10::DeviceType::CUDA, device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void* raw_alloc(std::size_t bytes) override {
    if (bytes == 0)
      return nullptr;
    c10::DeviceIndex device = 0;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    return take(bytes, device, c10::cuda::getCurrentCUDAStream(device).stream());
  }
  void* raw_alloc_with_stream(std::size_t bytes, cudaStream_t stream) override {
    if (bytes == 0)
      return nullptr;
    c10::DeviceIndex device = 0;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    return take(bytes, device, stream);
  }
  void raw_delete(void* p) override { give_back(p); }
  void* getBaseAllocation(void* p, std::size_t* bytes) override { return weir_torch_base_alloc(p, bytes); }
  void recordStream(c10::DataPtr const& p, c10::cuda::CUDAStream stream) override {
    // Memory of others is none of weir's.
    if (!p.get() || p.get_deleter() != &give_back)
      return;
    if (pools_.has_blocks())
      pools_.share(p.get());
    if (auto const other = pools_.has_blocks() ? pools_.memory_of(p.get()) : nullptr)
      other->record(p.get(), stream.device_index(), stream.stream());
    else
      weir_torch_record_stream(p.get(), stream.stream());
  }
#ifdef WEIR_HAS_COPY_DATA
  void copy_data(void* to, void const* from, std::size_t bytes) const override {
    C10_CUDA_CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice));
  }
#endif
  // Mapped memory is no cudaMalloc's: between devices the driver copies it as a peer's, or through access.
  cudaError_t memcpyAsync(void* to, int to_device, void const* from, int from_device, std::size_t bytes,
                          cudaStream_t stream, bool has_access) override {
    if (has_access || to_device == from_device)
      return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
    return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
  }
  void enablePeerAccess(c10::DeviceIndex reader, c10::DeviceIndex owner) override {
    c10::cuda::CUDAGuard const on(reader);
    cudaError_t const opened = cudaDeviceEnablePeerAccess(owner, 0);
    if (opened == cudaErrorPeerAccessAlreadyEnabled)
      (void)cudaGetLastError();
    else
      C10_CUDA_CHECK(opened);
    weir_torch_open_memory(owner, reader);
  }

  // Life and limits -------------------------------------------------------------------------------------------
  void init(int devices) override {
    if (initialized())
      return;
    weir_torch_init(devices);
    initialized_.store(true);
  }
  bool initialized() override {
    return initialized_.load();
  }
  std::string name() override {
    return "weir";
  }
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override {
    TORCH_CHECK_VALUE(fraction >= 0 && fraction <= 1, "invalid fraction: ", fraction, ". Give one of 0 to 1");
    require_device(device);
    weir_torch_set_fraction(fraction, device);
  }
#ifdef WEIR_HAS_MEMORY_FRACTION
  double getMemoryFraction(c10::DeviceIndex device) override {
    require_device(device);
    return weir_torch_get_fraction(device);
  }
#endif
#ifdef WEIR_HAS_EXPANDABLE_SIZES
  std::vector<cca::StreamSegmentSize> getExpandableSegmentSizes(c10::DeviceIndex) override {
    return {};
  }
#endif
#ifdef WEIR_HAS_ENABLE
  void enable(bool value) override {
    enabled_.store(value);
  }
  bool isEnabled() const override {
    return enabled_.load();
  }
#endif
#ifdef WEIR_HAS_EMPTY_CACHE_OF_POOL
  // The free pages of one pool serve the whole device, so its end returns nothing to the driver.
  void emptyCache(c10::MempoolId_t pool) override {
    if (pool == c10::MempoolId_t())
      empty();
  }
#else
  void emptyCache() override {
    empty();
  }
#endif
  void cacheInfo(c10::DeviceIndex device, std::size_t* largest) override {
    *largest = weir_torch_largest(device);
  }

  // Figures ---------------------------------------------------------------------------------------------------
  statistics getDeviceStats(c10::DeviceIndex device) override {
    require_device(device);
    weir_torch_statistics const n = figures_of(pools_, device);
    statistics out;
    put(out.allocation, n.allocation), put(out.segment, n.segment), put(out.active, n.active);
    put(out.inactive_split, n.inactive_split), put(out.allocated_bytes, n.allocated_bytes);
    put(out.reserved_bytes, n.reserved_bytes), put(out.active_bytes, n.active_bytes);
    put(out.inactive_split_bytes, n.inactive_split_bytes), put(out.requested_bytes, n.requested_bytes);
    out.num_alloc_retries = n.retries, out.num_ooms = n.out_of_memory;
    out.num_device_alloc = n.handles_made, out.num_device_free = n.handles_released;
    return out;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    require_device(device);
    require(weir_torch_reset_accumulated(device), "reset_accumulated_memory_stats");
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    require_device(device);
    require(weir_torch_reset_peak(device), "reset_peak_memory_stats");
  }
#ifdef WEIR_HAS_SNAPSHOT_WITH_TRACES
  cca::SnapshotInfo snapshot(c10::cuda::MempoolId_t pool, bool with_traces) override {
    return snapshot_of(pool, with_traces);
  }
#elif defined(WEIR_HAS_SNAPSHOT_OF_POOL)
  cca::SnapshotInfo snapshot(c10::cuda::MempoolId_t pool) override {
    return snapshot_of(pool, true);
  }
#else
  cca::SnapshotInfo snapshot() override {
    return snapshot_of({0, 0}, true);
  }
#endif

  // History ---------------------------------------------------------------------------------------------------
  bool isHistoryEnabled() override {
    return history_.is_recording();
  }
  void recordHistory(bool enabled, cca::CreateContextFn gather, std::size_t most, cca::RecordContext when
#ifdef WEIR_HAS_HISTORY_CLEARS
                     ,
                     bool clears
#endif
#ifdef WEIR_HAS_SKIP_ACTIONS
                     ,
                     std::vector<std::string> const& skipped
#endif
                     ) override {
#ifndef WEIR_HAS_HISTORY_CLEARS
    bool const clears = false;
#endif
#ifndef WEIR_HAS_SKIP_ACTIONS
    std::vector<std::string> const skipped;
#endif
    TORCH_CHECK(when == cca::RecordContext::NEVER || gather, "weir.torch: recordHistory needs a recorder of contexts");
    if (enabled)
      history_.begin(gather, most, when, clears, skipped);
    else
      history_.end();
  }
  void attachOutOfMemoryObserver(cca::OutOfMemoryObserver observer) override {
    std::lock_guard<std::mutex> const hold(lock_);
    observers_.push_back(std::move(observer));
  }
  void attachAllocatorTraceTracker(cca::AllocatorTraceTracker tracker) override {
    history_.track(std::move(tracker));
  }
#ifdef WEIR_HAS_ANNOTATIONS
  void recordAnnotation(std::vector<std::pair<std::string, std::string>> const& words) override {
    c10::DeviceIndex device = 0;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    history_.annotate(device, words);
  }
#endif
#ifdef WEIR_HAS_COMPILE_CONTEXT
  void pushCompileContext(std::string& text) override {
    history::compile_contexts().push_back(text);
  }
  void popCompileContext() override {
    if (!history::compile_contexts().empty())
      history::compile_contexts().pop_back();
  }
#endif
#ifdef WEIR_HAS_USER_METADATA
  void setUserMetadata(std::string const& text) override {
    history::user_metadata() = text;
  }
  std::string getUserMetadata() override {
    return history::user_metadata();
  }
#endif

  // Pools -----------------------------------------------------------------------------------------------------
  void beginAllocateToPool(c10::DeviceIndex device, c10::cuda::MempoolId_t pool,
                           std::function<bool(cudaStream_t)> accepts) override {
    weir_torch_begin_pool(device, pool, std::move(accepts));
  }
  void endAllocateToPool(c10::DeviceIndex device, c10::cuda::MempoolId_t pool) override {
    weir_torch_end_pool(device, pool);
  }
  void releasePool(c10::DeviceIndex device, c10::cuda::MempoolId_t pool) override {
    weir_torch_release_pool(device, pool);
    if (weir_torch_holds_of_pool(device, pool.first, pool.second) == 0)
      pools_.end(device, pool);
  }
#ifdef WEIR_HAS_POOL_COUNTS
  int getPoolUseCount(c10::DeviceIndex device, c10::cuda::MempoolId_t pool) override {
    return weir_torch_holds_of_pool(device, pool.first, pool.second);
  }
#endif
#ifdef WEIR_HAS_CREATE_POOL
#ifdef WEIR_HAS_CREATE_POOL_BY_POINTER
  using source = cca::CUDAAllocator*;
  static std::shared_ptr<cca::CUDAAllocator> owned(source of) {
    return {of, [](cca::CUDAAllocator*) {}};
  }
#else
  using source = std::shared_ptr<cca::CUDAAllocator>;
  static source owned(source of) {
    return of;
  }
#endif
  void createOrIncrefPool(c10::DeviceIndex device, c10::cuda::MempoolId_t pool, source of) override {
    if (of) {
      pools_.serve_from(device, pool, owned(of), [this, device, pool](bool is_new, void* at, auto const& segment) {
        if (history_.is_watched())
          history_.note_segment(is_new, at, segment.bytes, {device, segment.stream, pool});
      });
    }
    weir_torch_hold_pool(device, pool.first, pool.second);
  }
#endif
#ifdef WEIR_HAS_ENSURE_POOL
  void ensureExistsAndIncrefPool(c10::DeviceIndex device, c10::cuda::MempoolId_t pool) override {
    weir_torch_hold_pool(device, pool.first, pool.second);
  }
#endif
  // Both hold always: a pool's free pages serve the device, and weir's handles are shared by no two pools.
#ifdef WEIR_HAS_USE_ON_OOM_FLAG
  void setUseOnOOM(c10::DeviceIndex, c10::cuda::MempoolId_t, bool) override {}
#elif defined(WEIR_HAS_USE_ON_OOM)
  void setUseOnOOM(c10::DeviceIndex, c10::cuda::MempoolId_t) override {}
#endif
#ifdef WEIR_HAS_NO_SPLIT
  void setNoSplit(c10::DeviceIndex, c10::cuda::MempoolId_t) override {}
#endif
  bool checkPoolLiveAllocations(c10::DeviceIndex device, c10::cuda::MempoolId_t pool,
                                std::unordered_set<void*> const& expected) override {
    return pools_.live(device, pool) == expected;
  }
  std::shared_ptr<cca::AllocatorState> getCheckpointState(c10::DeviceIndex device,
                                                          c10::cuda::MempoolId_t pool) override {
    return std::make_shared<pools::saved>(pools_, device, pool);
  }
  cca::CheckpointDelta setCheckpointPoolState(c10::DeviceIndex device,
                                              std::shared_ptr<cca::AllocatorState> state) override {
    auto const* const to = dynamic_cast<pools::saved const*>(state.get());
    TORCH_CHECK(to, "weir.torch: setCheckpointPoolState: a state that weir's getCheckpointState did not make");
    if (is_watched()) {
      for (void* const block : pools_.live(device, to->pool()))
        tell_freed(block);
    }
    pools::went_back went = pools_.go_back(*to);
    if (is_watched()) {
      for (void* const block : went.live)
        tell_taken(block, {device, nullptr, to->pool()});
    }
    cca::CheckpointDelta out;
    out.ptrs_freed = std::move(went.freed);
    for (void* const block : went.live)
      out.dataptrs_allocd.emplace_back(block, block, &give_back, c10::Device(c10::DeviceType::CUDA, device));
    return out;
  }

  // Other processes -------------------------------------------------------------------------------------------
#ifdef WEIR_HAS_SHARE_IPC
  cca::ShareableHandle shareIpcHandle(void*) override {
    TORCH_CHECK(false,
                "weir-594: shareIpcHandle: a CUDA tensor for another process: weir maps its memory. Send x.cpu()");
  }
#endif
  std::shared_ptr<void> getIpcDevPtr(std::string) override {
    TORCH_CHECK(false, "weir-595: getIpcDevPtr: a CUDA tensor of another process: weir maps its memory. Send x.cpu()");
  }

  static allocator& only() {
    static allocator& one = *new allocator;  // PyTorch frees blocks until the process ends
    return one;
  }

 private:
  static void require_device(int device) {
    int const devices = weir_torch_devices();
    TORCH_CHECK(device >= 0 && device < devices, "weir.torch: Invalid device argument ", device, ": this process has ",
                devices, " devices");
  }
  static std::size_t bytes_of(void* p, std::size_t otherwise) {
    weir_torch_block block{};
    return weir_torch_find(p, &block) ? block.bytes : otherwise;
  }
  // What PyTorch's tools watch: the history, the profiler, the sanitizer.
  bool is_watched() const noexcept {
    return history_.is_watched() || c10::impl::GPUTrace::haveState || c10::memoryProfilingEnabled();
  }

  void* take(std::size_t bytes, int device, cudaStream_t stream) {
    place at{device, stream};
    unsigned long long pool[2] = {0, 0};
    if (C10_UNLIKELY(weir_torch_pool_in_force(device, stream, pool)))
      return take_from_pool(bytes, {device, stream, {pool[0], pool[1]}});
    void* const p = take_from_weir(bytes, at);
    if (C10_UNLIKELY(is_watched()))
      tell_or_free(p, at);
    return p;
  }
  void* take_from_weir(std::size_t bytes, place const& at) {
    weir_torch_failure const* why = nullptr;
    void* const p = weir_torch_try_alloc(bytes, at.device, at.stream, &why);
    if (C10_UNLIKELY(!p))
      fail(*why, bytes, at);
    return p;
  }
  void* take_from_pool(std::size_t bytes, place const& at) {
    auto const other = pools_.other_of(at.device, at.pool);
    void* p = other ? other->take(bytes, at.stream) : pools_.take_again(bytes, at);
    bool const is_new = other || !p;
    if (!other && !p)
      p = take_from_weir(bytes, at);
    if (!p) {
      fail({1, 0, 0, 0, 0, 0, "The allocator of this pool, which the program gave to torch.cuda.MemPool, has no more."},
           bytes, at);
    }
    if (is_new)
      pools_.add(p, bytes_of(p, bytes), at, other);
    if (is_watched())
      tell_or_free(p, at);
    return p;
  }
  static void give_back(void* p) {
    if (!p)
      return;
    if (C10_UNLIKELY(only().is_watched()))
      only().tell_freed(p);
    if (C10_UNLIKELY(only().pools_.has_blocks()) && !only().give_to_pool(p))
      return;
    weir_torch_free(p, 0, 0, nullptr);
  }
  // True: it is of no pool.
  bool give_to_pool(void* p) noexcept {
    try {
      return pools_.is_none_of_mine(p);
    } catch (std::exception const& e) {
      std::fprintf(stderr, "weir.torch: a block of a pool is kept: %s\n", e.what());
      return false;
    }
  }
  void empty() {
    weir_torch_reset();
    for (int d = 0; d < weir_torch_devices(); ++d) {
      for (auto const& [id, memory] : pools_.others_on(d))
        memory->release_unused();
    }
  }

  void tell_or_free(void* p, place const& at) {
    try {
      tell_taken(p, at);
    } catch (...) {
      if (pools_.is_none_of_mine(p))
        weir_torch_free(p, 0, 0, nullptr);
      throw;
    }
  }
  // False: no block of weir's, nor of a pool's other memory.
  bool find(void* p, weir_torch_block& block) {
    auto const other = pools_.has_blocks() ? pools_.memory_of(p) : nullptr;
    if (!other)
      return weir_torch_find(p, &block) && block.base == p;
    auto const its = other->find(p);
    block = {p, its.requested, other->device(), its.stream};
    return its.requested != 0;
  }
  void tell_taken(void* p, place const& at) {
    weir_torch_block block{};
    if (!find(p, block))
      return;
    if (auto const* const python = c10::impl::GPUTrace::get_trace())
      (*python)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<std::uintptr_t>(p));
    tell_profiler(p, static_cast<std::int64_t>(block.bytes), at.device);
    if (history_.is_watched())
      history_.note_alloc(p, block.bytes, at);
  }
  void tell_freed(void* p) noexcept {
    try {
      weir_torch_block block{};
      if (!find(p, block))
        return;
      if (auto const* const python = c10::impl::GPUTrace::get_trace())
        (*python)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<std::uintptr_t>(p));
      if (history_.is_watched())
        history_.note_free(p, block.bytes, {block.device, block.stream});
      tell_profiler(p, -static_cast<std::int64_t>(block.bytes), block.device);
    } catch (std::exception const& e) {
      std::fprintf(stderr, "weir.torch: a free is not told to PyTorch's tools: %s\n", e.what());
    }
  }
  // bytes: below zero of a free, which has not happened yet
  void tell_profiler(void* p, std::int64_t bytes, int device) {
    if (!c10::memoryProfilingEnabled())
      return;
    weir_torch_statistics const n = figures_of(pools_, device);
    std::int64_t const allocated = n.allocated_bytes[weir_torch_all].current + std::min<std::int64_t>(bytes, 0);
    c10::reportMemoryUsageToProfiler(p, bytes, static_cast<std::size_t>(std::max<std::int64_t>(allocated, 0)),
                                     static_cast<std::size_t>(n.reserved_bytes[weir_torch_all].current),
                                     c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device)));
  }
  [[noreturn]] void fail(weir_torch_failure const& why, std::size_t bytes, place const& at) {
    int const device = at.device;
    TORCH_CHECK(why.out_of_memory, why.text);
    weir_torch_failure const of = why;
    std::string const report = why.text;  // the calls below may fail, too
    if (history_.is_watched())
      history_.note_out_of_memory(of.free, bytes, at);
    c10::reportOutOfMemoryToProfiler(static_cast<std::int64_t>(bytes), of.allocated, of.reserved,
                                     c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device)));
    std::vector<cca::OutOfMemoryObserver> observers;
    {
      std::lock_guard<std::mutex> const hold(lock_);
      observers = observers_;
    }
    for (auto const& tell : observers)
      tell(device, bytes, of.limit ? std::min(of.limit, of.capacity) : of.capacity, of.free);
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", of_bytes(bytes), ". GPU ",
                     device, " has a total capacity of ", of_bytes(of.capacity), " of which ", of_bytes(of.free),
                     " is free. weir's report:\n", report);
  }

  cca::SnapshotInfo snapshot_of(pool_id pool, bool with_traces) {
    int const devices = weir_torch_devices();
    cca::SnapshotInfo out;
    for (int d = 0; d < devices; ++d) {
      history_.note_snapshot(d);
      auto its = segments(pools_, history_).of(d, pool);
      std::move(its.begin(), its.end(), std::back_inserter(out.segments));
    }
    out.device_traces = with_traces ? history_.traces(devices, pool)
                                    : std::vector<std::vector<cca::TraceEntry>>(static_cast<std::size_t>(devices));
#ifdef WEIR_HAS_ANNOTATIONS
    if (with_traces)
      out.external_annotations = history_.annotations();
#endif
    out.config_metadata = {};
    out.config_metadata.expandable_segments = true;
    return out;
  }

  history history_;
  pools pools_;
  std::atomic<bool> initialized_{false};
#ifdef WEIR_HAS_ENABLE
  std::atomic<bool> enabled_{true};
#endif
  std::mutex lock_;
  std::vector<cca::OutOfMemoryObserver> observers_;
};

}  // namespace
}  // namespace weir_torch

// Puts weir where PyTorch looks. Returns: null, or why it is too late
extern "C" __attribute__((visibility("default"))) char const* weir_torch_native_install() {
  auto* const found = weir_torch::cca::allocator.load();
  if (found && found->initialized())
    return "PyTorch has used CUDA already";
  auto& mine = weir_torch::allocator::only();
  weir_torch::cca::allocator.store(&mine);
  c10::SetAllocator(c10::DeviceType::CUDA, &mine, 100);
  return nullptr;
}
