// The allocator that is compiled against PyTorch's headers, asked as PyTorch asks it: run.sh builds it where
// a release's headers and libraries are. Without a GPU the devices are simulated, and no_gpu_runtime.cu answers
// PyTorch's own calls.
// Threads: as each test says.
#include "tests/interop/torch_native/cases.h"

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace weir_torch_test {
namespace {

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
