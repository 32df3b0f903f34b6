// Adoptions: of two buffers with one block, without a release() between them, the later one owns it.
// Threads: any. A buffer that is never adopted costs one load at its start and one at its end.
//
// Invariant: a buffer keeps the count of the time when it got its block. A newer adoption of the block means
// that another buffer owns it. Counts are even, numbers of adoptions odd.
#pragma once
#include <cstdint>

#include "runtime/base/sync.h"
#include "weir/types.h"

namespace weir::streams {

class adoptions {
 public:
  static std::uint64_t now() noexcept { return now_.get(); }
  // Returns: the adoption's number. Throws: invalid_use (the adopting buffer still owns the block), bad_alloc
  static std::uint64_t add(void* block, source_location);
  // For a buffer's end, or its release() of the block. false: another buffer owns it; reported on stderr.
  static bool owner_ends(void* block, std::uint64_t since) noexcept {
    return since == now() || owner_ends_slowly(block, since);
  }

 private:
  static bool owner_ends_slowly(void* block, std::uint64_t since) noexcept;
  static inline constinit base::single_writer<std::uint64_t> now_{0};  // written under the lock of the books
};

}  // namespace weir::streams
