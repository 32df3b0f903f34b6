// The history of PyTorch's allocator: entries with the contexts that PyTorch gathers, its trackers and annotations.
// Threads: any. One lock, with which the trackers are called and nothing else of PyTorch's.
#pragma once
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/ApproximateClock.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace weir_torch {

namespace cca = c10::cuda::CUDACachingAllocator;
using context = std::shared_ptr<c10::GatheredContext>;
using pool_id = std::pair<unsigned long long, unsigned long long>;

struct place {  // of an entry
  int device = 0;
  cudaStream_t stream = nullptr;
  pool_id pool = {0, 0};
};

class history {
 public:
  // Whether an allocation or a free has to be told here.
  bool is_watched() const noexcept { return watched_.load(std::memory_order_relaxed); }
  bool is_recording() const noexcept { return recording_.load(std::memory_order_relaxed); }

  void begin(cca::CreateContextFn gather, std::size_t most, cca::RecordContext when, bool clears,
             std::vector<std::string> const& skipped) {
    std::lock_guard<std::mutex> const hold(lock_);
    if (clears)
      forget();
    gather_.store(when == cca::RecordContext::NEVER ? nullptr : gather);
    when_.store(when);
    most_ = std::max<std::size_t>(1, most);
    skips_.fill(false);
    for (std::string const& name : skipped)
      skips_.at(number_of(name)) = true;
    recording_.store(true);
    watched_.store(true);
  }
  void end() {
    std::lock_guard<std::mutex> const hold(lock_);
    recording_.store(false);
    gather_.store(nullptr);
    forget();
    watched_.store(!trackers_.empty());
  }
  void track(cca::AllocatorTraceTracker tracker) {
    std::lock_guard<std::mutex> const hold(lock_);
    trackers_.push_back(std::move(tracker));
    watched_.store(true);
  }

  // A segment that another allocator gave, or that goes back to it.
  void note_segment(bool is_new, void* segment, std::size_t bytes, place const& at) {
    std::lock_guard<std::mutex> const hold(lock_);
    add(is_new ? cca::TraceEntry::SEGMENT_ALLOC : cca::TraceEntry::SEGMENT_FREE, reinterpret_cast<std::size_t>(segment),
        bytes, at, nullptr);
  }

  // Null: none is gathered at such calls. Blocks: may take Python's lock
  context gathered(cca::RecordContext at_least) const {
    cca::CreateContextFn const gather = gather_.load();
    return gather && when_.load() >= at_least ? gather() : nullptr;
  }

  void note_alloc(void* block, std::size_t bytes, place const& at) {
    context const its = gathered(cca::RecordContext::STATE);
    std::lock_guard<std::mutex> const hold(lock_);
    if (recording_.load())
      contexts_[block] = {its, at.pool};
    add(cca::TraceEntry::ALLOC, reinterpret_cast<std::size_t>(block), bytes, at, its);
  }
  void note_free(void* block, std::size_t bytes, place at) {
    context its = gathered(cca::RecordContext::ALL);
    std::lock_guard<std::mutex> const hold(lock_);
    auto const found = contexts_.find(block);
    if (found != contexts_.end()) {
      at.pool = found->second.pool;
      if (!its)
        its = found->second.gathered;
      contexts_.erase(found);
    }
    add(cca::TraceEntry::FREE_REQUESTED, reinterpret_cast<std::size_t>(block), bytes, at, its);
    add(cca::TraceEntry::FREE_COMPLETED, reinterpret_cast<std::size_t>(block), bytes, at, its);
  }
  // free: bytes of the device
  void note_out_of_memory(std::size_t free, std::size_t bytes, place const& at) {
    context const its = gathered(cca::RecordContext::STATE);
    std::lock_guard<std::mutex> const hold(lock_);
    add(cca::TraceEntry::OOM, free, bytes, at, its);
  }
  void note_snapshot(int device) {
    std::lock_guard<std::mutex> const hold(lock_);
    add(cca::TraceEntry::SNAPSHOT, 0, 0, {device}, nullptr);
  }
  context context_of(void* block) const {
    std::lock_guard<std::mutex> const hold(lock_);
    auto const found = contexts_.find(block);
    return found == contexts_.end() ? nullptr : found->second.gathered;
  }

  // By device, oldest first, with the times of the wall clock in µs.
  std::vector<std::vector<cca::TraceEntry>> traces(int devices, pool_id of) const {
    auto const to_ns = clock_.makeConverter();
    std::vector<std::vector<cca::TraceEntry>> out(static_cast<std::size_t>(devices));
    std::lock_guard<std::mutex> const hold(lock_);
    for (std::size_t d = 0; d < std::min(out.size(), entries_.size()); ++d) {
      for (cca::TraceEntry const& e : entries_[d]) {
        if (of != pool_id() && pool_of(e) != of)
          continue;
        out[d].push_back(e);
        out[d].back().time_.t_ = to_ns(e.time_.approx_t_) / 1000;
      }
    }
    return out;
  }

#ifdef WEIR_HAS_ANNOTATIONS
  void annotate(int device, std::vector<std::pair<std::string, std::string>> const& words) {
    if (!is_recording())
      return;
    cca_annotation one(static_cast<c10::DeviceIndex>(device), c10::getApproximateTime());
    for (auto const& [name, value] : words)
      one.recordUserMetadata(name, value);
    std::lock_guard<std::mutex> const hold(lock_);
    if (annotations_.size() == most_)
      annotations_.pop_front();
    annotations_.push_back(std::move(one));
  }
  auto annotations() const {
    auto const to_ns = clock_.makeConverter();
    std::lock_guard<std::mutex> const hold(lock_);
    std::vector<cca_annotation> out(annotations_.begin(), annotations_.end());
    for (auto& one : out)
      one.time_.t_ = to_ns(one.time_.approx_t_) / 1000;
    return out;
  }
#endif
  // Of the calling thread.
  static std::vector<std::string>& compile_contexts() {
    thread_local std::vector<std::string> all;
    return all;
  }
  static std::string& user_metadata() {
    thread_local std::string text;
    return text;
  }

 private:
#ifdef WEIR_HAS_ANNOTATIONS
  using cca_annotation = cca::AnnotationEntry;
#endif
  struct live {
    context gathered;
    pool_id pool;
  };
  static constexpr std::array<char const*, 9> names{"alloc",         "free_requested", "free_completed",
                                                    "segment_alloc", "segment_free",   "segment_map",
                                                    "segment_unmap", "snapshot",       "oom"};
  static std::size_t number_of(std::string const& name) {
    auto const found = std::find(names.begin(), names.end(), name);
    TORCH_CHECK(found != names.end(), "weir.torch: skip_actions: no action ", name, " is recorded");
    return static_cast<std::size_t>(found - names.begin());
  }
  static pool_id pool_of([[maybe_unused]] cca::TraceEntry const& e) {
#ifdef WEIR_HAS_MEMPOOL_IN_TRACE
    return e.mempool_;
#else
    return {};
#endif
  }

  // Both require the lock.
  void forget() {
    entries_.clear();
    contexts_.clear();
#ifdef WEIR_HAS_ANNOTATIONS
    annotations_.clear();
#endif
  }
  void add(cca::TraceEntry::Action what, std::size_t address, std::size_t bytes, place const& at,
           context const& gathered_there) {
    bool const told = recording_.load() && !skips_[static_cast<std::size_t>(what)];
    if (!told && trackers_.empty())
      return;
    context const shown = when_.load() >= cca::RecordContext::ALLOC ? gathered_there : nullptr;
    cca::TraceEntry one(what, static_cast<c10::DeviceIndex>(at.device), address, bytes, at.stream,
#ifdef WEIR_HAS_MEMPOOL_IN_TRACE
                        at.pool,
#endif
                        c10::getApproximateTime(), shown
#ifdef WEIR_HAS_COMPILE_CONTEXT_IN_TRACE
                        ,
                        compile_contexts().empty() ? std::string() : compile_contexts().back()
#endif
#ifdef WEIR_HAS_USER_METADATA
                            ,
                        user_metadata()
#endif
    );
    for (auto const& tracker : trackers_)
      tracker(one);
    if (!told)
      return;
    if (entries_.size() <= static_cast<std::size_t>(at.device))
      entries_.resize(static_cast<std::size_t>(at.device) + 1);
    auto& its = entries_[static_cast<std::size_t>(at.device)];
    if (its.size() >= most_)
      its.pop_front();
    its.push_back(std::move(one));
  }

  c10::ApproximateClockToUnixTimeConverter mutable clock_;
  std::atomic<bool> watched_{false}, recording_{false};
  std::atomic<cca::CreateContextFn> gather_{nullptr};
  std::atomic<cca::RecordContext> when_{cca::RecordContext::NEVER};
  std::mutex mutable lock_;
  std::size_t most_ = 1;
  std::array<bool, names.size()> skips_{};
  std::vector<std::deque<cca::TraceEntry>> entries_;  // by device
  std::unordered_map<void*, live> contexts_;
  std::vector<cca::AllocatorTraceTracker> trackers_;
#ifdef WEIR_HAS_ANNOTATIONS
  std::deque<cca_annotation> annotations_;
#endif
};

}  // namespace weir_torch
