// PyTorch's pools on the allocator that is compiled against its headers: their blocks, the states that graph trees save
// and go back to, and memory of other allocators.
// Threads: one.
#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include "interop/torch/python/weir/torch/native/foreign_memory.h"
#include "tests/interop/torch_native/cases.h"

namespace weir_torch_test {
namespace {

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

// It is no tensor's, so a snapshot shows it as free; free ranges that adjoin are one.
TEST(native_torch, a_block_that_a_state_alone_holds_is_shown_free) {
  weir();
  tree t(104);
  t.keep();
  void *kept = nullptr, *died = nullptr;
  t.record(
      [&] { kept = cca::raw_alloc(3 * mib), died = cca::raw_alloc(2 * mib), cca::raw_delete(cca::raw_alloc(mib)); });
  auto const state = t.save();
  cca::raw_delete(died);
  std::size_t live = 0;
  for (auto const& s : cca::snapshot().segments) {
    if (s.owner_private_pool_id != t.id)
      continue;
    std::size_t sum = 0;
    bool free_before = false;
    live += s.allocated_size;
    for (auto const& b : s.blocks) {
      sum += b.size;
      EXPECT_FALSE(free_before && !b.active) << "two free ranges adjoin";
      free_before = !b.active;
    }
    EXPECT_EQ(sum, s.total_size);
  }
  EXPECT_EQ(live, 3 * mib);
  cca::raw_delete(kept);
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

// What the other path alone holds serves again, as on PyTorch's own allocator.
TEST(native_torch, states_of_two_paths_share_memory) {
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
  EXPECT_EQ(left, right);
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

TEST(native_torch, many_branches_take_the_memory_of_one) {
  weir();
  tree t(105);
  t.keep();
  void* root = nullptr;
  t.record([&] { root = cca::raw_alloc(8 * mib); });
  auto const of_root = t.save();
  std::vector<std::shared_ptr<cca::AllocatorState>> branches;
  for (int i = 0; i < 10; ++i) {
    auto went = t.go_back(of_root);
    for (auto& p : went.dataptrs_allocd)
      p.release_context();
    t.record([&] { (void)cca::raw_alloc(64 * mib), (void)cca::raw_alloc(48 * mib); });
    branches.push_back(t.save());
  }
  for (auto& p : t.go_back(of_root).dataptrs_allocd)
    p.release_context();
  EXPECT_TRUE(t.has({root}));
  cca::raw_delete(root);
}

// A tensor that another stream used is not handed out again, but for a state that goes back to it.
TEST(native_torch, a_recorded_block_of_a_state_serves_nothing_else) {
  weir();
  tree t(106);
  t.keep();
  c10::DataPtr shared;
  t.record([&] { shared = cca::get()->allocate(4 * mib); });
  auto const state = t.save();
  void* const at = shared.get();
  cca::get()->recordStream(shared, c10::cuda::getDefaultCUDAStream(0));
  shared.clear();
  void* other = nullptr;
  t.record([&] { other = cca::raw_alloc(4 * mib); });
  EXPECT_NE(other, at);
  cca::raw_delete(other);
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

}  // namespace
}  // namespace weir_torch_test
