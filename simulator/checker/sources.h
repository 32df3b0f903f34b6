// Host memory that copies read, hashed when the copy is enqueued and when the host sees it complete.
// Threads: under the checker's lock.
//
// Not checked: sources that pending earlier work (a declared use, any host function) or later work may write.
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
  // Removes the sources whose copies are complete. Calls changed(source) if the hash differs.
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
