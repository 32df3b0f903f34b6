// The blocks of PyTorch's pools, and the saved states of pools that graph trees go back to.
// Invariant: a block that a saved state holds is not weir's to reuse, although its tensor may be gone. So a pool goes
// back to a state without a move: what was live then lies where it lay.
// Threads: any; one lock. weir is called without it.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "door.h"
#include "foreign_memory.h"
#include "history.h"

namespace weir_torch {

class pools {
 public:
  bool has_blocks() const noexcept { return count_.load(std::memory_order_relaxed) != 0; }

  using memory = std::shared_ptr<foreign_memory>;
  // The pool's blocks come from there from now on, if it is a new one.
  void serve_from(int device, pool_id pool, std::shared_ptr<cca::CUDAAllocator> from, foreign_memory::teller tell) {
    std::lock_guard<std::mutex> const hold(lock_);
    memory& its = others_[{device, pool}];
    if (its)
      return;
    its = std::make_shared<foreign_memory>(
        device, [from](std::size_t bytes, cudaStream_t stream) { return from->raw_alloc_with_stream(bytes, stream); },
        [from](void* block) { from->raw_delete(block); }, std::move(tell));
  }
  // Null: weir's.
  memory other_of(int device, pool_id pool) const {
    std::lock_guard<std::mutex> const hold(lock_);
    auto const found = others_.find({device, pool});
    return found == others_.end() ? nullptr : found->second;
  }
  std::vector<std::pair<pool_id, memory>> others_on(int device) const {
    std::vector<std::pair<pool_id, memory>> out;
    std::lock_guard<std::mutex> const hold(lock_);
    for (auto const& [place, its] : others_) {
      if (place.first == device)
        out.emplace_back(place.second, its);
    }
    return out;
  }
  // Its memory goes back once its last block is free.
  void end(int device, pool_id pool) {
    memory gone;  // ends without the lock
    std::lock_guard<std::mutex> const hold(lock_);
    auto const found = others_.find({device, pool});
    if (found != others_.end()) {
      gone = std::move(found->second);
      others_.erase(found);
    }
  }

  // Of an allocation that a pool served. of: null of weir's memory
  void add(void* block, std::size_t bytes, place const& at, memory of) {
    std::lock_guard<std::mutex> const hold(lock_);
    blocks_[block] = {at, bytes, true, false, 0, std::move(of)};
    count_.store(blocks_.size(), std::memory_order_relaxed);
  }
  // A block of weir's that saved states alone hold serves the pool again, as a free one does on PyTorch's own
  // allocator: a later state finds in it what its graph wrote there. An eighth of it is wasted at most. Null: none fits.
  void* take_again(std::size_t bytes, place const& at) {
    std::lock_guard<std::mutex> const hold(lock_);
    void* best = nullptr;
    std::size_t least = bytes + bytes / 8 + 1;
    for (auto const& [block, its] : blocks_) {
      bool const is_free = !its.is_live && !its.of && !its.is_shared && its.is_at(at);
      if (is_free && its.bytes >= bytes && its.bytes < least)
        best = block, least = its.bytes;
    }
    if (best)
      blocks_.at(best).is_live = true;
    return best;
  }
  // Another stream uses the block: it serves nothing else until weir has it back.
  void share(void* block) {
    std::lock_guard<std::mutex> const hold(lock_);
    auto const found = blocks_.find(block);
    if (found != blocks_.end())
      found->second.is_shared = true;
  }
  // The memory of a block; null: weir's, or of no pool.
  memory memory_of(void* block) const {
    std::lock_guard<std::mutex> const hold(lock_);
    auto const found = blocks_.find(block);
    return found == blocks_.end() ? nullptr : found->second.of;
  }
  // A tensor of a pool is gone. True: the block is of no pool, and the caller frees it
  bool is_none_of_mine(void* block) {
    memory of;
    {
      std::lock_guard<std::mutex> const hold(lock_);
      auto const found = blocks_.find(block);
      if (found == blocks_.end())
        return true;
      found->second.is_live = false;
      of = found->second.of;
      if (!drop(found))
        return false;
    }
    free(block, of);
    return false;
  }
  // Whether its tensor is gone, and a saved state alone holds it.
  bool is_only_saved(void* block) const {
    std::lock_guard<std::mutex> const hold(lock_);
    auto const found = blocks_.find(block);
    return found != blocks_.end() && !found->second.is_live;
  }
  std::unordered_set<void*> live(int device, pool_id pool) const {
    std::unordered_set<void*> all;
    std::lock_guard<std::mutex> const hold(lock_);
    for (auto const& [block, its] : blocks_) {
      if (its.where.device == device && its.where.pool == pool && its.is_live)
        all.insert(block);
    }
    return all;
  }

  // What was live in a pool at one moment, until it ends.
  class saved final : public cca::AllocatorState {
   public:
    saved(pools& of, int device, pool_id pool)
        : of_(of), device_(device), pool_(pool), blocks_(of.hold(device, pool)) {}
    ~saved() override { of_.let_go(blocks_); }
    saved(saved const&) = delete;
    pool_id pool() const noexcept { return pool_; }

   private:
    friend class pools;
    pools& of_;
    int const device_;
    pool_id const pool_;
    std::vector<void*> const blocks_;  // by address
  };

  struct went_back {
    std::vector<void*> freed, live;  // live before; live now
  };
  // Afterwards the blocks of the state are live, and no others of its pool. Their contents are as they were left.
  went_back go_back(saved const& to) {
    went_back out;
    std::vector<std::pair<void*, memory>> free_now;
    {
      std::lock_guard<std::mutex> const hold(lock_);
      for (auto at = blocks_.begin(); at != blocks_.end();) {
        auto const here = at++;
        place const& where = here->second.where;
        if (where.device != to.device_ || where.pool != to.pool_ || !here->second.is_live)
          continue;
        void* const block = here->first;
        out.freed.push_back(block);
        here->second.is_live = false;
        memory const of = here->second.of;
        if (drop(here))
          free_now.emplace_back(block, of);
      }
      for (void* const block : to.blocks_)
        blocks_.at(block).is_live = true;
    }
    out.live = to.blocks_;
    free_all(free_now);
    return out;
  }

 private:
  struct block {
    bool is_at(place const& at) const {
      return where.device == at.device && where.pool == at.pool && where.stream == at.stream;
    }
    place where;
    std::size_t bytes = 0;
    bool is_live = true, is_shared = false;
    int holders = 0;  // saved states
    memory of;
  };
  using blocks = std::unordered_map<void*, block>;

  // Requires: the lock. True: nothing holds it any more, and its entry is gone
  bool drop(blocks::iterator at) {
    if (at->second.is_live || at->second.holders > 0)
      return false;
    blocks_.erase(at);
    count_.store(blocks_.size(), std::memory_order_relaxed);
    return true;
  }
  std::vector<void*> hold(int device, pool_id pool) {
    std::vector<void*> all;
    std::lock_guard<std::mutex> const hold(lock_);
    for (auto& [at, its] : blocks_) {
      if (its.where.device == device && its.where.pool == pool && its.is_live)
        all.push_back(at);
    }
    std::sort(all.begin(), all.end());
    for (void* const at : all)
      ++blocks_.at(at).holders;
    return all;
  }
  void let_go(std::vector<void*> const& all) {
    std::vector<std::pair<void*, memory>> free_now;
    {
      std::lock_guard<std::mutex> const hold(lock_);
      for (void* const at : all) {
        auto const found = blocks_.find(at);
        if (found == blocks_.end())
          continue;
        memory const of = found->second.of;
        --found->second.holders;
        if (drop(found))
          free_now.emplace_back(at, of);
      }
    }
    free_all(free_now);
  }
  static void free(void* at, memory const& of) noexcept {
    if (of)
      of->give_back(at);
    else
      weir_torch_free(at, 0, 0, nullptr);
  }
  static void free_all(std::vector<std::pair<void*, memory>> const& all) noexcept {
    for (auto const& [at, of] : all)
      free(at, of);
  }

  std::mutex mutable lock_;
  blocks blocks_;
  std::map<std::pair<int, pool_id>, memory> others_;
  std::atomic<std::size_t> count_{0};
};

}  // namespace weir_torch
