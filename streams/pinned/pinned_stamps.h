// Small lists of stamps and streams of pinned blocks.
// Threads: one at a time per list.
#pragma once
#include <algorithm>

#include "runtime/clock/stream_clock.h"

namespace weir::streams {

template <class Stamps, class Goes>
void drop_if(Stamps& stamps, Goes goes) {
  stamps.erase(std::remove_if(stamps.begin(), stamps.end(), goes), stamps.end());
}

// Returns: false if there was no memory.
template <class All, class One>
bool note(All& all, One one) noexcept {
  try {
    all.push_back(one);
    return true;
  } catch (...) {
    return false;
  }
}

template <class Stamps>
void join(Stamps& stamps, clock::stamp s) {
  if (!s.stream) return;
  for (auto& one : stamps) {
    if (one.stream == s.stream) {
      one.n = std::max(one.n, s.n);
      return;
    }
  }
  stamps.push_back(s);
}

}  // namespace weir::streams
