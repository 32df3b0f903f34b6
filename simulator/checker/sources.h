// Host memory that copies read, hashed when the copy is enqueued and when the host sees it complete.
// Threads: under the checker's lock.
//
// Not checked: sources that pending earlier work (a declared use, any host function) or later work may write.
#pragma once
#include <cstring>
#include <list>

#include "runtime/base/call_site.h"
#include "simulator/checker/order_graph.h"

namespace weir::driver::check {

// Four lanes of eight bytes, at about memory speed.
inline std::uint64_t hash_of(void const* from, std::size_t bytes) noexcept {
  constexpr std::uint64_t k = 0x9e3779b97f4a7c15u;
  auto const* at = static_cast<unsigned char const*>(from);
  std::uint64_t lane[4] = {bytes, k, ~bytes, ~k};
  for (; bytes >= 32; bytes -= 32, at += 32) {
    std::uint64_t word[4];
    std::memcpy(word, at, 32);
    for (int i = 0; i < 4; ++i)
      lane[i] = (lane[i] ^ word[i]) * k, lane[i] ^= lane[i] >> 29;
  }
  std::uint64_t h = 0;
  for (std::uint64_t const l : lane)
    h = (h ^ l) * k, h ^= h >> 31;
  for (; bytes > 0; --bytes, ++at)
    h = (h ^ *at) * k, h ^= h >> 31;
  return h;
}

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
      if (hash(s->at, s->bytes) != s->hash)
        changed(*s);
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
