// Tells tools that listen to NVTX, compute-sanitizer above all,
// which bytes of a mapped page are somebody's block.
// Threads: any; one short lock, under which only NVTX is called.
//
// Invariant: every live block lies in regions of its own, cut at the borders of what was mapped; a page with
// no block in it so far is not announced at all.
#pragma once
#include <map>

#include "runtime/base/sync.h"
#include "runtime/driver/driver.h"

namespace weir::driver::cuda {

class announcer {
 public:
  static bool possible() noexcept;  // this build had NVTX's headers

  void usable(address, std::size_t bytes);   // one mapping or segment that kernels may use from now on
  void unusable(address) noexcept;           // before it goes

  void taken(address, std::size_t bytes);
  void given_back(address) noexcept;

 private:
  struct page {
    std::size_t bytes = 0;
    void* heap = nullptr;  // NVTX's; null: not announced
  };
  struct pages {
    std::map<address, page> all;
    std::map<address, std::size_t> blocks;  // bytes
    std::map<address, std::size_t> regions;  // bytes: the pieces of blocks, as announced
  };
  base::guarded<pages> pages_;
};

}  // namespace weir::driver::cuda
