// Page-locked host memory that copy engines read and write: pooled, reused when the copies that used it are complete.
// Threads: any.
#pragma once
#include <memory>
#include <optional>

#include "runtime/memory/allocator.h"

namespace weir::streams {

class pinned_memory {  // a part of the runtime
 public:
  explicit pinned_memory(runtime::impl&);
  ~pinned_memory();
  // Throws: out_of_memory (report().on is cpu), invalid_use
  void* allocate(std::size_t bytes, std::size_t alignment, here);
  // The host may be given this memory again once every stream it was marked for has passed its stamp (completion, not order).
  void deallocate(void*, here);                         // Throws: invalid_use
  void mark(void const*, clock::timeline& user) noexcept;   // used by work given to that stream; interior addresses are fine
  void mark(void const*, clock::stamp) noexcept;            // the same for work up to an exact stamp
  std::optional<memory::block> find(void const*) const noexcept;
  bool owns(void const*, std::size_t bytes) const noexcept;  // all of the range lies in one live block
  std::size_t trim();                                   // gives what is complete and unused back to the system, bytes
  memory_statistics statistics() const;

  // The pool of whichever runtime of this process handed the address out, and live there; null: none.
  static pinned_memory* owner(void const*) noexcept;

 private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace weir::streams
