// Adoptions: which of two buffers owns a block when one adopted it and the other did not release it.
// The later one owns it.
// Threads: any. Buffers that are never adopted pay for one load at their beginning and at their end.
//
// Invariant: a buffer keeps the count as it was when it got its block, so a block's last adoption is newer
// exactly when another buffer has adopted it since. Counts are even, the number of an adoption is odd.
#pragma once
#include <cstdint>

#include "runtime/base/sync.h"
#include "weir/types.h"

namespace weir::streams {

class adoptions {
 public:
  static std::uint64_t now() noexcept { return now_.get(); }
  // Returns: the adoption's number. Throws:
  // invalid_use (the buffer that adopted the block still owns it), bad_alloc
  static std::uint64_t add(void* block, source_location);
  // A buffer's end, or its release() of the block. false: another buffer owns the block; said on stderr.
  static bool owner_ends(void* block, std::uint64_t since) noexcept {
    return since == now() || owner_ends_slowly(block, since);
  }

 private:
  static bool owner_ends_slowly(void* block, std::uint64_t since) noexcept;
  static inline constinit base::single_writer<std::uint64_t> now_{0};  // written under the lock of the books
};

}  // namespace weir::streams
