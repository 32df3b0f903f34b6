// An allocator's blocks by address: live blocks, and freed blocks whose addresses are not reused yet.
// Threads: under the checker's lock.
#pragma once
#include <algorithm>
#include <boost/container/flat_set.hpp>
#include <map>
#include <memory>
#include <optional>

#include "runtime/base/byte_range.h"
#include "simulator/checker/block_uses.h"
#include "simulator/checker/order_graph.h"
#include "weir/types.h"

namespace weir::driver::check {

struct managed_block;

struct block {
  std::size_t bytes = 0;
  int device = -1;           // -1: host memory
  stream_id home = 0;        // 0: host memory
  std::uint64_t number = 0;  // from 1, per device and for the host
  bool live = true;
  bool of_graph = false;  // a graph's memory: its launches may use it, whether it is freed or not
  source_location allocated{nullptr, nullptr, 0}, freed{nullptr, nullptr, 0};
  // Its streams so far. weir itself forgets those whose work is over or is waited for with all work of the device.
  boost::container::flat_set<stream_id> marked{};
  stream_id user = 0;                              // weir's stream that uses the parts of a managed block
  std::shared_ptr<managed_block const> manages{};  // null: the program alone uses it
  bool told = false;                               // the program took it from CUDA
  bool quiet = false;                              // a file of suppressions names the place of its allocation
  block_uses uses{};                               // kept once a watcher tells launches
};

class blocks {
 public:
  using map = std::map<address, block>;
  // Returns the first block that overlaps the range, or end().
  map::iterator find(address at, std::size_t bytes) {
    if (auto const holder = base::holder_of(all_, at); holder != all_.end())
      return holder;
    auto const after = all_.upper_bound(at);
    return after != all_.end() && after->first - at < bytes ? after : all_.end();
  }
  bool is_of_graph(address at, std::size_t bytes) {  // a part of it was the memory of a graph
    for (auto b = find(at, bytes); b != all_.end() && b->first < at + bytes; ++b)
      if (b->second.of_graph)
        return true;
    return false;
  }
  // The part of a range whose first and last page hold no live bytes beside it. A system call with such bytes fails on
  // a page that is guarded, and cannot be let through.
  std::pair<address, std::size_t> alone_on_pages(address at, std::size_t bytes, std::size_t page) {
    address const end = at + bytes, first = at / page * page, last = (end - 1) / page * page;
    auto const has_others = [&](address p) {
      for (auto b = find(p, page); b != all_.end() && b->first < p + page; ++b)
        if (b->second.live && (std::max(b->first, p) < at || std::min(b->first + b->second.bytes, p + page) > end))
          return true;
      return false;
    };
    address const from = has_others(first) ? std::min(end, first + page) : at,
                  to = has_others(last) ? std::max(from, last) : end;
    return {from, to - from};
  }
  map::iterator end() noexcept { return all_.end(); }
  template <class F>
  void each(F visit) {
    for (auto& [at, b] : all_)
      visit(b);
  }
  // Forgets the freed blocks it overlaps. Returns: its entry, and a live block that it overlaps, a defect.
  std::pair<map::iterator, std::optional<block>> add(address at, block b) {
    std::optional<block> held;
    for (auto old = find(at, b.bytes); old != all_.end(); old = find(at, b.bytes)) {
      if (old->second.live && !old->second.told)  // weir may serve blocks from memory of the program
        held = old->second;
      all_.erase(old);
    }
    auto& counter = numbers_[b.device];
    b.number = ++counter;
    return {all_.insert_or_assign(at, std::move(b)).first, held};
  }
  void forget(address at, std::size_t bytes) {  // only freed blocks: the memory itself goes
    for (auto old = find(at, bytes); old != all_.end() && old->first < at + bytes;)
      old = old->second.live ? std::next(old) : all_.erase(old);
  }
  void forget_freed_of_program() {
    std::erase_if(all_, [](auto const& one) { return one.second.told && !one.second.live; });
  }

 private:
  map all_;
  std::map<int, std::uint64_t> numbers_;
};

}  // namespace weir::driver::check
