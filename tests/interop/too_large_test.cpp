// A size that no memory can hold is out of memory at every door and of every kind. A program that answers
// out_of_memory, or std::bad_alloc, need not know how far beyond the machine its request was.
// Threads: one.
#include <array>
#include <limits>
#include <memory_resource>

#include "tests/interop/where.h"
#include "tests/support/refused.h"
#include "weir/c.h"
#include "weir/memory.h"
#include "weir/pmr.h"
#include "weir/share.h"
#include "weir/stats.h"

namespace weir {
namespace {

// 1 PiB; the largest that rounding by any page keeps; what a wrapped product gives
constexpr std::array<size_t, 5> sizes{size_t{1} << 50, std::numeric_limits<std::ptrdiff_t>::max(), size_t{1} << 63,
                                      ~size_t{0} - 255, ~size_t{0}};

using too_large = test::on_simulated;

template <class Call>
void each_is_out_of_memory(char const* what, Call call) {
  for (size_t const bytes : sizes) {
    SCOPED_TRACE(std::string(what) + ", " + std::to_string(bytes) + " B");
    try {
      call(bytes);
      ADD_FAILURE() << "was there";
    } catch (out_of_memory const& e) {
      EXPECT_EQ(e.report().requested, bytes);
      bool const wrapped = bytes > ~size_t{0} / 2;
      EXPECT_NE(e.report().text().find(wrapped ? "The size has overflowed" : "larger than the"), std::string::npos)
          << e.what();
    }
  }
}

TEST_F(too_large, every_kind_of_memory_is_out_of_memory) {
  each_is_out_of_memory("allocate", [](size_t n) { deallocate(allocate(n)); });
  each_is_out_of_memory("aligned", [](size_t n) { deallocate(allocate(n, 2_MiB)); });
  each_is_out_of_memory("pinned", [](size_t n) { (void)pinned(n); });
  each_is_out_of_memory("pageable", [](size_t n) { buffer(n, {.on = cpu, .kind = memory_kind::pageable}); });
  each_is_out_of_memory("exportable", [](size_t n) { exportable_buffer const b(n); });
  share_pool pool;
  each_is_out_of_memory("share_pool", [&](size_t n) { (void)pool.allocate(n); });
  stream s;
  each_is_out_of_memory("share_pool on a stream", [&](size_t n) { (void)pool.allocate(s, n); });
  each_is_out_of_memory("exportable on a stream", [&](size_t n) { exportable_buffer const b(s, n); });
}

TEST_F(too_large, every_resource_of_the_host_is_out_of_memory) {
  each_is_out_of_memory("pinned", [](size_t n) { (void)pmr::pinned_memory()->allocate(n); });
  each_is_out_of_memory("pageable", [](size_t n) { (void)pmr::pageable_memory()->allocate(n); });
}

// Addresses with such an alignment are as many bytes apart: no machine has two.
TEST_F(too_large, an_alignment_beyond_the_addresses_is_out_of_memory) {
  size_t const alignment = size_t{1} << 50;
  EXPECT_THROW(buffer(100, {.on = cpu, .kind = memory_kind::pinned, .alignment = alignment}), out_of_memory);
}

TEST_F(too_large, the_c_interface_says_out_of_memory) {
  for (size_t const bytes : sizes) {
    void* p = nullptr;
    EXPECT_EQ(weir_allocate(&p, bytes, 0, 0, nullptr), WEIR_OUT_OF_MEMORY) << bytes;
    EXPECT_EQ(weir_allocate_pinned(&p, bytes, 0), WEIR_OUT_OF_MEMORY) << bytes;
  }
}

// Nothing was taken and nothing is broken.
TEST_F(too_large, what_fits_is_served_afterwards) {
  for (size_t const bytes : sizes) {
    EXPECT_THROW(deallocate(allocate(bytes)), out_of_memory);
    EXPECT_THROW((void)pinned(bytes), out_of_memory);
  }
  void* const p = allocate(1_MiB);
  EXPECT_EQ(memory_allocated(), 1_MiB);
  deallocate(p);
}

}  // namespace
}  // namespace weir
