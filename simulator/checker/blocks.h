// The blocks of an allocator by address: those that are held,
// and those given back whose place nobody has taken yet.
// Threads: under the checker's lock.
#pragma once
#include <map>
#include <optional>

#include "runtime/base/byte_range.h"
#include "simulator/checker/order_graph.h"
#include "weir/types.h"

namespace weir::driver::check {

struct block {
  std::size_t bytes = 0;
  int device = -1;           // -1: of the host
  stream_id home = 0;        // 0: of the host
  std::uint64_t number = 0;  // counts from 1 on each device, and on the host
  bool live = true;
  source_location allocated{nullptr, nullptr, 0}, freed{nullptr, nullptr, 0};
};

class blocks {
 public:
  using map = std::map<address, block>;
  // The first block that meets [at, at + bytes), or end().
  map::iterator find(address at, std::size_t bytes) {
    if (auto const holder = base::holder_of(all_, at); holder != all_.end()) return holder;
    auto const after = all_.upper_bound(at);
    return after != all_.end() && after->first - at < bytes ? after : all_.end();
  }
  map::iterator end() noexcept { return all_.end(); }
  // A new block; those that were given back there are forgotten.
  // A held one there is answered: it should not be.
  std::pair<map::iterator, std::optional<block>> add(address at, block b) {
    std::optional<block> held;
    for (auto old = find(at, b.bytes); old != all_.end(); old = find(at, b.bytes)) {
      if (old->second.live) held = old->second;
      all_.erase(old);
    }
    auto& counter = numbers_[b.device];
    b.number = ++counter;
    return {all_.insert_or_assign(at, b).first, held};
  }
  void forget(address at, std::size_t bytes) {  // those given back: the place itself goes
    for (auto old = find(at, bytes); old != all_.end() && old->first < at + bytes;) {
      old = old->second.live ? std::next(old) : all_.erase(old);
    }
  }

 private:
  map all_;
  std::map<int, std::uint64_t> numbers_;
};

}  // namespace weir::driver::check
