// Vector clocks of the checker. They share no code with runtime/clock, which the checker checks.
// Threads: values; a view is shared and immutable.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

namespace weir::driver::check {

using stream_id = std::uint32_t;  // from 1, in order of creation; never reused

struct epoch {  // the first n operations of that stream
  stream_id stream = 0;
  std::uint64_t n = 0;
};

class vector_clock {
 public:
  std::uint64_t of(stream_id s) const noexcept {
    auto const at = find(s);
    return at != all_.end() && at->stream == s ? at->n : 0;
  }
  void raise(epoch e) {
    auto const at = all_.begin() + (find(e.stream) - all_.begin());
    if (at != all_.end() && at->stream == e.stream)
      at->n = std::max(at->n, e.n);
    else
      all_.insert(at, e);
  }
  void merge(vector_clock const& other) {
    for (epoch const e : other.all_)
      raise(e);
  }
  template <class Drop>
  void prune(Drop drop) {
    std::erase_if(all_, drop);
  }
  std::vector<epoch> const& entries() const noexcept { return all_; }

 private:
  std::vector<epoch>::const_iterator find(stream_id s) const noexcept {
    return std::lower_bound(all_.begin(), all_.end(), s, [](epoch e, stream_id wanted) { return e.stream < wanted; });
  }
  std::vector<epoch> all_;  // by stream
};

using view = std::shared_ptr<vector_clock const>;

// promised: what the program requests (waits, synchronizes) holds in every run. Programs are judged by it, so
// that every seed gives the same report (exceptions: docs/how-to/test-without-a-gpu.md). known: what weir
// finds out or orders for itself holds in this run. weir is judged by it.
struct views {
  view promised, known;
};
enum class trust : std::uint8_t { promised, known };

}  // namespace weir::driver::check
