// Host memory that copies are reading: hashed when the copy was given,
// and again when the host has seen it complete.
// Threads: under the checker's lock.
//
// What work of a stream may have changed rightly is not judged: a source that is still to be written when the
// copy is given (by a declared use, or perhaps by a host function,
// which declares nothing), or that later work writes.
#pragma once
#include <list>

#include "runtime/base/call_site.h"
#include "simulator/checker/order_graph.h"

namespace weir::driver::check {

std::uint64_t hash_of(void const* from, std::size_t bytes) noexcept;

struct source {
  epoch copy;
  address at = 0;
  std::size_t bytes = 0;
  std::uint64_t hash = 0;
  base::site site;
};

class sources {
 public:
  void add(source s) { all_.push_back(s); }
  bool empty() const noexcept { return all_.empty(); }
  // Those whose copies are complete, once: changed(source) for each whose hash is not what it was.
  template <class Complete, class Hash, class Changed>
  void settle(Complete complete, Hash hash, Changed changed) {
    for (auto s = all_.begin(); s != all_.end();) {
      if (!complete(s->copy)) {
        ++s;
        continue;
      }
      if (hash(s->at, s->bytes) != s->hash) changed(*s);
      s = all_.erase(s);
    }
  }
  template <class Which>
  void forget(Which which) {
    all_.remove_if(which);
  }

 private:
  std::list<source> all_;
};

}  // namespace weir::driver::check
