// The allocator that is compiled against PyTorch's headers, asked as PyTorch asks it: built where a release's headers
// and libraries are (WEIR_TORCH_INCLUDE, WEIR_TORCH_LIBRARIES). Without a GPU the devices are simulated, and a runtime
// of CUDA that stands for none answers PyTorch's own calls.
// Threads: as each test says.
#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "interop/torch/python/weir/torch/native/foreign_memory.h"

namespace weir_torch_test {
namespace {

namespace cca = c10::cuda::CUDACachingAllocator;
constexpr std::size_t mib = std::size_t{1} << 20, limit = 256 * mib;  // bytes of each device

cca::CUDAAllocator& weir() {
  static cca::CUDAAllocator& installed = []() -> cca::CUDAAllocator& {
    ::setenv("WEIR_CONF", "device_limit:256MiB", 1);
    void* const door = ::dlopen(WEIR_TORCH_LIBRARY, RTLD_NOW | RTLD_GLOBAL);
    TORCH_CHECK(door, ::dlerror());
    void* const native = ::dlopen(WEIR_TORCH_NATIVE, RTLD_NOW | RTLD_LOCAL);
    TORCH_CHECK(native, ::dlerror());
    auto* const install = reinterpret_cast<char const* (*)()>(::dlsym(native, "weir_torch_native_install"));
    char const* const too_late = install();
    TORCH_CHECK(!too_late, too_late);
    return *cca::get();
  }();
  return installed;
}

std::int64_t allocated() {
  return weir().getDeviceStats(0).allocated_bytes[0].current;
}

struct mark : c10::GatheredContext {
  explicit mark(int n) : number(n) {}
  int number;
};
std::atomic<int> gathered{0};
std::shared_ptr<c10::GatheredContext> gather() {
  return std::make_shared<mark>(++gathered);
}
int number_of(std::shared_ptr<c10::GatheredContext> const& c) {
  return c ? static_cast<mark const&>(*c).number : 0;
}
void record(bool enabled, cca::RecordContext when = cca::RecordContext::ALL, std::size_t most = 1000,
            [[maybe_unused]] std::vector<std::string> const& skipped = {}) {
  weir().recordHistory(enabled, gather, most, when
#ifdef WEIR_HAS_HISTORY_CLEARS
                       ,
                       true
#endif
#ifdef WEIR_HAS_SKIP_ACTIONS
                       ,
                       skipped
#endif
  );
}
std::vector<cca::TraceEntry> trace_of(void* block) {
  std::vector<cca::TraceEntry> out;
  auto const now = weir().snapshot();
  for (auto const& e : now.device_traces.at(0)) {
    if (e.addr_ == reinterpret_cast<std::size_t>(block))
      out.push_back(e);
  }
  return out;
}
// Whether the snapshot shows the block as allocated, and its context.
std::pair<bool, int> shown(void* block) {
  for (auto const& s : weir().snapshot().segments) {
    std::size_t at = s.address;
    for (auto const& b : s.blocks) {
      if (at == reinterpret_cast<std::size_t>(block) && b.allocated)
        return {true, number_of(b.context_when_allocated)};
      at += b.size;
    }
  }
  return {false, 0};
}

TEST(native_torch, tensors_memory_is_weirs) {
  weir();
  std::int64_t const before = allocated();
  {
    c10::DataPtr const p = cca::get()->allocate(3 * mib);
    ASSERT_NE(p.get(), nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p.get()) % 512, 0u);
    EXPECT_EQ(p.get_deleter(), cca::get()->raw_deleter());
    EXPECT_EQ(p.device(), c10::Device(c10::kCUDA, 0));
    EXPECT_EQ(allocated(), before + static_cast<std::int64_t>(3 * mib));
    std::size_t bytes = 0;
    EXPECT_EQ(cca::getBaseAllocation(static_cast<char*>(p.get()) + 4096, &bytes), p.get());
    EXPECT_EQ(bytes, 3 * mib);
  }
  EXPECT_EQ(allocated(), before);
}

TEST(native_torch, zero_bytes_take_nothing) {
  weir();
  std::int64_t const before = cca::getDeviceStats(0).allocation[0].current;
  c10::DataPtr const none = cca::get()->allocate(0);
  EXPECT_EQ(none.get(), nullptr);
  EXPECT_EQ(none.get_deleter(), cca::get()->raw_deleter());
  EXPECT_EQ(cca::raw_alloc(0), nullptr);
  EXPECT_EQ(cca::getDeviceStats(0).allocation[0].current, before);
}

TEST(native_torch, statistics_agree_with_a_snapshot) {
  weir();
  std::vector<c10::DataPtr> all;
  for (std::size_t const n : {std::size_t{512}, std::size_t{30000}, mib, 5 * mib})
    all.push_back(cca::get()->allocate(n));
  all.erase(all.begin() + 2);
  auto const n = cca::getDeviceStats(0);
  std::size_t live = 0, held = 0, in_segments = 0;
  std::int64_t blocks = 0;
  for (auto const& s : cca::snapshot().segments) {
    held += s.total_size, in_segments += s.allocated_size;
    std::size_t sum = 0;
    for (auto const& b : s.blocks) {
      sum += b.size;
      live += b.allocated ? b.size : 0;
      blocks += b.allocated;
    }
    EXPECT_EQ(sum, s.total_size);
  }
  EXPECT_EQ(static_cast<std::int64_t>(live), n.allocated_bytes[0].current);
  EXPECT_EQ(live, in_segments);
  EXPECT_EQ(static_cast<std::int64_t>(held), n.reserved_bytes[0].current);
  EXPECT_EQ(blocks, n.allocation[0].current);
  for (auto const& of : {n.allocated_bytes, n.requested_bytes, n.allocation})
    EXPECT_EQ(of[0].current, of[1].current + of[2].current) << "all = small + large";
  cca::resetPeakStats(0);
  EXPECT_EQ(cca::getDeviceStats(0).allocated_bytes[0].peak, n.allocated_bytes[0].current);
  cca::resetAccumulatedStats(0);
  EXPECT_EQ(cca::getDeviceStats(0).allocated_bytes[0].freed, 0);
}

TEST(native_torch, out_of_memory_is_pytorchs_error_and_is_told) {
  weir();
  std::size_t told = 0;
  static std::size_t* to = nullptr;
  to = &told;
  cca::attachOutOfMemoryObserver([](auto, std::size_t bytes, std::size_t, std::size_t) {
    if (to)
      *to = bytes;
  });
  record(true);
  std::int64_t const failures = cca::getDeviceStats(0).num_ooms;
  try {
    (void)cca::raw_alloc(limit + 1);
    FAIL() << "nothing was thrown";
  } catch (c10::OutOfMemoryError const& e) {
    std::string const said = e.what_without_backtrace();
    EXPECT_EQ(said.rfind("CUDA out of memory. Tried to allocate 256.00 MiB. GPU 0 has a total capacity of ", 0), 0u)
        << said;
    EXPECT_NE(said.find("limit"), std::string::npos) << said;
  }
  EXPECT_EQ(told, limit + 1);
  EXPECT_EQ(cca::getDeviceStats(0).num_ooms, failures + 1);
  bool traced = false;
  auto const now = cca::snapshot();
  for (auto const& e : now.device_traces.at(0))
    traced |= e.action_ == cca::TraceEntry::OOM && e.size_ == limit + 1 && number_of(e.context_);
  EXPECT_TRUE(traced);
  record(false);
  to = nullptr;
  cca::raw_delete(cca::raw_alloc(1000));  // works on
}

TEST(native_torch, a_history_has_contexts_of_both_ends) {
  weir();
  record(true);
  void* const p = cca::raw_alloc(mib);
  auto const [is_live, its_context] = shown(p);
  EXPECT_TRUE(is_live);
  EXPECT_GT(its_context, 0);
  cca::raw_delete(p);
  auto const events = trace_of(p);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].action_, cca::TraceEntry::ALLOC);
  EXPECT_EQ(events[1].action_, cca::TraceEntry::FREE_REQUESTED);
  EXPECT_EQ(events[2].action_, cca::TraceEntry::FREE_COMPLETED);
  EXPECT_EQ(number_of(events[0].context_), its_context);
  EXPECT_GT(number_of(events[1].context_), its_context) << "of the free";
  for (auto const& e : events)
    EXPECT_EQ(e.size_, mib);
  EXPECT_LE(events[0].time_.t_, events[1].time_.t_);
  record(false);
  EXPECT_FALSE(cca::isHistoryEnabled());
  void* const q = cca::raw_alloc(mib);
  cca::raw_delete(q);
  EXPECT_EQ(shown(p).first, false);
}

TEST(native_torch, contexts_follow_what_was_asked) {
  weir();
  for (auto const when :
       {cca::RecordContext::NEVER, cca::RecordContext::STATE, cca::RecordContext::ALLOC, cca::RecordContext::ALL}) {
    record(true, when);
    void* const p = cca::raw_alloc(mib);
    EXPECT_EQ(shown(p).second > 0, when >= cca::RecordContext::STATE) << static_cast<int>(when);
    cca::raw_delete(p);
    auto const events = trace_of(p);
    ASSERT_GE(events.size(), 3u);
    auto const* const last = &events[events.size() - 3];
    EXPECT_EQ(number_of(last[0].context_) > 0, when >= cca::RecordContext::ALLOC) << static_cast<int>(when);
    if (when == cca::RecordContext::ALL)
      EXPECT_GT(number_of(last[1].context_), number_of(last[0].context_));
    else
      EXPECT_EQ(number_of(last[1].context_), number_of(last[0].context_)) << "the allocation's";
    record(false);
  }
}

TEST(native_torch, the_oldest_entries_go_where_too_many_come) {
  weir();
  record(true, cca::RecordContext::NEVER, 30);
  for (int i = 0; i < 100; ++i)
    cca::raw_delete(cca::raw_alloc(mib));
  auto const all = cca::snapshot().device_traces.at(0);
  EXPECT_EQ(all.size(), 30u);
  EXPECT_EQ(all.back().action_, cca::TraceEntry::SNAPSHOT);
  record(false);
}

#ifdef WEIR_HAS_SKIP_ACTIONS
TEST(native_torch, skipped_actions_are_not_recorded) {
  weir();
  record(true, cca::RecordContext::ALL, 1000, {"free_requested", "snapshot"});
  void* const p = cca::raw_alloc(mib);
  cca::raw_delete(p);
  auto const events = trace_of(p);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1].action_, cca::TraceEntry::FREE_COMPLETED);
  EXPECT_THROW(record(true, cca::RecordContext::ALL, 1000, {"no such action"}), c10::Error);
  record(false);
}
#endif

TEST(native_torch, trackers_hear_of_each_event_without_a_history) {
  weir();
  static std::vector<cca::TraceEntry::Action> heard;
  static std::atomic<bool> listens{false};
  cca::attachAllocatorTraceTracker([](cca::TraceEntry const& e) {
    if (listens)
      heard.push_back(e.action_);
  });
  listens = true;
  cca::raw_delete(cca::raw_alloc(mib));
  listens = false;
  EXPECT_EQ(heard, (std::vector<cca::TraceEntry::Action>{cca::TraceEntry::ALLOC, cca::TraceEntry::FREE_REQUESTED,
                                                         cca::TraceEntry::FREE_COMPLETED}));
}

TEST(native_torch, a_fraction_limits_and_is_told) {
  weir();
  std::size_t free = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  double const half = static_cast<double>(limit / 2) / static_cast<double>(total);
  cca::setMemoryFraction(half, 0);
  void* const p = cca::raw_alloc(100 * mib);
  EXPECT_THROW((void)cca::raw_alloc(100 * mib), c10::OutOfMemoryError);
#ifdef WEIR_HAS_MEMORY_FRACTION
  EXPECT_EQ(cca::getMemoryFraction(0), half);
#endif
  cca::raw_delete(p);
  EXPECT_ANY_THROW(cca::setMemoryFraction(1.5, 0));
  EXPECT_ANY_THROW(cca::setMemoryFraction(0.5, 7));
  cca::setMemoryFraction(2 * half, 0);
}

TEST(native_torch, the_largest_block_can_be_had) {
  weir();
  std::size_t largest = 0;
  cca::cacheInfo(0, &largest);
  EXPECT_GT(largest, 100 * mib);
  EXPECT_LE(largest, limit);
  cca::raw_delete(cca::raw_alloc(largest));
}

TEST(native_torch, a_pool_knows_its_live_blocks_and_holders) {
  weir();
  c10::cuda::MempoolId_t const id{0, 77};
  cca::get()->beginAllocateToPool(0, id, [](cudaStream_t) { return true; });
  void* const a = cca::raw_alloc(3 * mib);
  void* const b = cca::raw_alloc(mib);
  cca::get()->endAllocateToPool(0, id);
  void* const outside = cca::raw_alloc(mib);
  EXPECT_TRUE(cca::checkPoolLiveAllocations(0, id, {a, b}));
  EXPECT_FALSE(cca::checkPoolLiveAllocations(0, id, {a}));
  EXPECT_FALSE(cca::checkPoolLiveAllocations(0, id, {a, b, outside}));
  cca::raw_delete(b);
  EXPECT_TRUE(cca::checkPoolLiveAllocations(0, id, {a}));
  std::size_t of_pool = 0;
  for (auto const& s : cca::snapshot().segments)
    of_pool += s.owner_private_pool_id == id ? s.allocated_size : 0;
  EXPECT_EQ(of_pool, 3 * mib);
#ifdef WEIR_HAS_POOL_COUNTS
  EXPECT_EQ(cca::getPoolUseCount(0, id), 1);
#endif
  cca::raw_delete(a);
  cca::raw_delete(outside);
  cca::releasePool(0, id);
  EXPECT_TRUE(cca::checkPoolLiveAllocations(0, id, {}));
}

// A pool as graph trees use it.
class tree {
 public:
  explicit tree(unsigned long long number) : id{0, number} {}
  ~tree() { cca::releasePool(0, id); }
  template <class Do>
  void record(Do allocates) {
    cca::get()->beginAllocateToPool(0, id, [](cudaStream_t) { return true; });
    allocates();
    cca::get()->endAllocateToPool(0, id);
    cca::releasePool(0, id);  // the first record() holds it on
  }
  void keep() {
    cca::get()->beginAllocateToPool(0, id, [](cudaStream_t) { return false; }), cca::get()->endAllocateToPool(0, id);
  }
  auto save() { return cca::get()->getCheckpointState(0, id); }
  auto go_back(std::shared_ptr<cca::AllocatorState> to) { return cca::get()->setCheckpointPoolState(0, std::move(to)); }
  bool has(std::unordered_set<void*> const& live) { return cca::checkPoolLiveAllocations(0, id, live); }
  std::vector<std::vector<std::pair<std::size_t, bool>>> segments() {
    std::vector<std::vector<std::pair<std::size_t, bool>>> out;
    for (auto const& s : cca::snapshot().segments) {
      if (s.owner_private_pool_id != id)
        continue;
      out.emplace_back();
      for (auto const& b : s.blocks)
        out.back().emplace_back(b.size, b.allocated);
    }
    return out;
  }

  c10::cuda::MempoolId_t const id;
};

TEST(native_torch, a_pool_goes_back_to_what_was_live) {
  weir();
  std::int64_t const before = allocated();
  {
    tree t(101);
    t.keep();
    void *kept = nullptr, *died = nullptr, *later = nullptr;
    t.record(
        [&] { kept = cca::raw_alloc(3 * mib), died = cca::raw_alloc(700), cca::raw_delete(cca::raw_alloc(2 * mib)); });
    auto state = t.save();
    auto const shape = t.segments();
    cca::raw_delete(died);
    EXPECT_TRUE(t.has({kept}));
    t.record([&] { later = cca::raw_alloc(2 * mib); });
    EXPECT_NE(later, died);
    EXPECT_TRUE(t.has({kept, later}));
    {
      auto went = t.go_back(state);
      EXPECT_EQ(std::unordered_set<void*>(went.ptrs_freed.begin(), went.ptrs_freed.end()),
                (std::unordered_set<void*>{kept, later}));
      std::unordered_set<void*> live;
      for (auto const& p : went.dataptrs_allocd)
        live.insert(p.get());
      EXPECT_EQ(live, (std::unordered_set<void*>{kept, died}));
      EXPECT_TRUE(t.has({kept, died}));
      EXPECT_EQ(t.segments(), shape);
    }
    EXPECT_TRUE(t.has({})) << "the pointers that were handed out have ended";
    EXPECT_GT(allocated(), before) << "the state holds its blocks";
    state.reset();
    EXPECT_EQ(allocated(), before);
  }
}

TEST(native_torch, memory_that_no_state_holds_serves_again) {
  weir();
  tree t(102);
  t.keep();
  void *kept = nullptr, *first = nullptr, *second = nullptr;
  t.record([&] { kept = cca::raw_alloc(5 * mib); });
  auto const state = t.save();
  t.record([&] { first = cca::raw_alloc(9 * mib); });
  auto went = t.go_back(state);
  t.record([&] { second = cca::raw_alloc(9 * mib); });
  EXPECT_EQ(first, second);
  cca::raw_delete(second);
}

TEST(native_torch, states_of_two_paths_hold_their_own_blocks) {
  weir();
  std::int64_t const before = allocated();
  tree t(103);
  t.keep();
  void *root = nullptr, *left = nullptr, *right = nullptr;
  t.record([&] { root = cca::raw_alloc(mib); });
  auto of_root = t.save();
  t.record([&] { left = cca::raw_alloc(2 * mib); });
  auto of_left = t.save();
  auto went = t.go_back(of_root);
  t.record([&] { right = cca::raw_alloc(2 * mib); });
  EXPECT_NE(left, right);
  auto of_right = t.save();
  for (int i = 0; i < 3; ++i) {
    auto at_left = t.go_back(of_left);
    EXPECT_TRUE(t.has({root, left}));
    auto at_right = t.go_back(of_right);
    EXPECT_TRUE(t.has({root, right}));
    for (auto& p : at_left.dataptrs_allocd)
      p.release_context();  // as PyTorch does with what no tensor takes
    for (auto& p : at_right.dataptrs_allocd)
      p.release_context();
  }
  for (auto& p : went.dataptrs_allocd)
    p.release_context();
  (void)t.go_back(of_root);
  of_root.reset(), of_left.reset(), of_right.reset();
  EXPECT_EQ(allocated(), before);
}

// Another allocator's memory: so many bytes.
struct other_allocator {
  std::size_t room;
  std::vector<std::pair<void*, std::size_t>> blocks;
  int taken = 0;
  weir_torch::foreign_memory memory{0,
                                    [this](std::size_t bytes, cudaStream_t) -> void* {
                                      if (bytes > room)
                                        return nullptr;
                                      room -= bytes, ++taken;
                                      blocks.emplace_back(std::malloc(bytes), bytes);
                                      return blocks.back().first;
                                    },
                                    [this](void* at) {
                                      for (auto i = blocks.begin(); i != blocks.end(); ++i) {
                                        if (i->first != at)
                                          continue;
                                        room += i->second;
                                        std::free(at);
                                        blocks.erase(i);
                                        return;
                                      }
                                      ADD_FAILURE() << "a block comes back twice, or is foreign";
                                    }};
};

TEST(native_torch, foreign_memory_is_kept_for_its_stream) {
  other_allocator of{10 * mib, {}, 0};
  auto* const other_stream = reinterpret_cast<cudaStream_t>(&of);
  void* const a = of.memory.take(mib - 100, nullptr);
  EXPECT_EQ(of.memory.find(a).bytes, mib) << "in units of 512 B, so that it is a whole MiB";
  EXPECT_EQ(of.memory.find(a).requested, mib - 100);
  of.memory.give_back(a);
  void* const b = of.memory.take(mib, other_stream);
  EXPECT_NE(a, b) << "another stream";
  EXPECT_EQ(of.memory.take(mib - 1000, nullptr), a);
  EXPECT_EQ(of.taken, 2);
  of.memory.give_back(a);
  void* const small = of.memory.take(mib / 2, nullptr);
  EXPECT_NE(small, a) << "half of it would be wasted";
  of.memory.give_back(small);
  of.memory.give_back(b);
  EXPECT_TRUE(of.memory.release_unused());
  EXPECT_TRUE(of.blocks.empty());
  EXPECT_FALSE(of.memory.release_unused());
}

TEST(native_torch, unused_foreign_memory_goes_back_first) {
  other_allocator of{3 * mib, {}, 0};
  void* const a = of.memory.take(2 * mib, nullptr);
  void* const lives = of.memory.take(mib, nullptr);
  EXPECT_EQ(of.memory.take(mib, nullptr), nullptr);
  of.memory.give_back(a);
  void* const b = of.memory.take(mib, nullptr);
  EXPECT_NE(b, nullptr) << "what was kept went back first";
  EXPECT_EQ(of.memory.find(lives).bytes, mib);
  of.memory.give_back(b), of.memory.give_back(lives);
}

TEST(native_torch, what_weir_does_not_do_is_refused_by_name) {
  weir();
  void* const p = cca::raw_alloc(mib);
  EXPECT_THROW((void)cca::getIpcDevPtr("none"), c10::Error);
#ifdef WEIR_HAS_SHARE_IPC
  EXPECT_THROW((void)cca::shareIpcHandle(p), c10::Error);
#endif
  EXPECT_THROW((void)cca::get()->setCheckpointPoolState(0, std::make_shared<cca::AllocatorState>()), c10::Error);
  EXPECT_THROW((void)cca::getDeviceStats(5), c10::Error);
  cca::raw_delete(p);
  EXPECT_EQ(cca::name(), "weir");
}

// Many threads allocate while one records, tracks and asks.
TEST(native_torch, threads_allocate_beside_a_history) {
  weir();
  std::int64_t const before = allocated();
  std::atomic<bool> over{false};
  std::vector<std::thread> all;
  for (int t = 0; t < 3; ++t) {
    all.emplace_back([&, t] {
      std::vector<void*> mine;
      for (int i = 0; i < 2000; ++i) {
        mine.push_back(cca::raw_alloc(512u * static_cast<unsigned>(1 + (i * 7 + t) % 90)));
        if (mine.size() > 20) {
          cca::raw_delete(mine.front());
          mine.erase(mine.begin());
        }
      }
      for (void* const p : mine)
        cca::raw_delete(p);
    });
  }
  std::thread asks([&] {
    while (!over) {
      record(true, cca::RecordContext::ALL, 100);
      (void)cca::snapshot();
      record(false);
    }
  });
  for (auto& t : all)
    t.join();
  over = true;
  asks.join();
  EXPECT_EQ(allocated(), before);
}

}  // namespace
}  // namespace weir_torch_test
