// A vector clock: for each other stream, the latest fence that is ordered before this stream's next work.
// Threads: a value; shared ones are immutable.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

namespace weir::clock {

class frontier {
 public:
  struct entry {
    std::uint64_t stream, n;
  };

  // Everything stamped (stream, n) is ordered before; 0: nothing is known of that stream.
  std::uint64_t of(std::uint64_t stream) const noexcept {
    auto const at = std::lower_bound(entries_.begin(), entries_.end(), stream,
                                     [](entry const& e, std::uint64_t s) { return e.stream < s; });
    return at != entries_.end() && at->stream == stream ? at->n : 0;
  }

  // The larger entry of this, `other` and (stream, n) for each stream, without those that `forget` accepts.
  template <class Forget>
  frontier merged(frontier const& other, std::uint64_t stream, std::uint64_t n, Forget forget) const {
    frontier out;
    out.entries_.reserve(entries_.size() + other.entries_.size() + 1);
    // The entry of `stream` is left out here, and inserted after the loop with the largest of its numbers.
    auto put = [&](entry e) {
      if (e.stream == stream)
        n = std::max(n, e.n);
      else if (!forget(e))
        out.entries_.push_back(e);
    };
    auto a = entries_.begin();
    auto b = other.entries_.begin();
    while (a != entries_.end() || b != other.entries_.end()) {
      if (b == other.entries_.end() || (a != entries_.end() && a->stream < b->stream))
        put(*a++);
      else if (a == entries_.end() || b->stream < a->stream)
        put(*b++);
      else {
        put({a->stream, std::max(a->n, b->n)});
        ++a, ++b;
      }
    }
    if (entry const own{stream, n}; !forget(own)) {
      auto const at = std::lower_bound(out.entries_.begin(), out.entries_.end(), stream,
                                       [](entry const& e, std::uint64_t s) { return e.stream < s; });
      out.entries_.insert(at, own);
    }
    return out;
  }

  std::vector<entry> const& entries() const noexcept { return entries_; }

 private:
  std::vector<entry> entries_;  // ascending streams
};

using snapshot = std::shared_ptr<frontier const>;  // null: empty

}  // namespace weir::clock
