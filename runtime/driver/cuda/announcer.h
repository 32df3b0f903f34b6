// Reports to NVTX tools, above all compute-sanitizer, which bytes of a mapped page belong to blocks.
// Threads: any; one short lock, under which only NVTX is called.
//
// Invariant: a live block is reported as regions, split where mappings end; a page, from its first block on.
#pragma once
#include <map>

#include "runtime/base/sync.h"
#include "runtime/driver/driver.h"

namespace weir::driver::cuda {

class announcer {
 public:
  static bool possible() noexcept;  // the build found NVTX's headers

  void usable(address, std::size_t bytes);  // a mapping or segment that kernels may use
  void unusable(address) noexcept;          // called before it is unmapped

  void taken(address, std::size_t bytes);
  void given_back(address) noexcept;

 private:
  struct page {
    std::size_t bytes = 0;
    void* heap = nullptr;  // of NVTX; null: not reported
  };
  struct pages {
    std::map<address, page> all;
    std::map<address, std::size_t> blocks;   // bytes
    std::map<address, std::size_t> regions;  // bytes of the parts of blocks
  };
  base::guarded<pages> pages_;
};

}  // namespace weir::driver::cuda
