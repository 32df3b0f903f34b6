// A region's pages.
// Threads: as region.h.
#include "runtime/memory/blocks/region.h"

#include <bit>

#include "runtime/memory/blocks/lowest_fit.h"
#include "runtime/memory/blocks/opening_index.h"

namespace weir::memory {

region::region(address b, std::size_t n, std::size_t page, stream_heap* o)
    : base(b),
      bytes(n),
      page_bytes(page),
      owner(o),
      runs(b + n),
      table(b, n),
      page_shift_(std::countr_zero(page)),
      pages_(n / page + 1) {}

region::~region() = default;

void region::set_pages(handle const& where, handle* value) noexcept {
  std::size_t const begin = page_index(where.at);
  // A segment ends anywhere in its last page.
  std::size_t const pages = (where.bytes + page_bytes - 1) / page_bytes;
  for (std::size_t i = begin; i < begin + pages; ++i)
    pages_[i] = value;
}

}  // namespace weir::memory
