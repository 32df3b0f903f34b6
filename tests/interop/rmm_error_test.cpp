// Where RMM's header is found, a memory resource throws RMM's errors. Compiled without nvcc.
// Threads: one.
#if __has_include(<rmm/error.hpp>)
#include <string>

#include "tests/interop/mr_concepts.h"
#include "tests/interop/where.h"
#include "tests/support/refused.h"

namespace weir {
namespace {

using rmm_errors = test::on_simulated;
cuda::stream_ref const legacy{cudaStream_t{}};

// RMM's users look for these words.
template <class Call>
void expect_out_of_memory(char const* where, Call call) {
  try {
    call();
    FAIL() << "it was there";
  } catch (rmm::out_of_memory const& e) {
    std::string const said = e.what();
    EXPECT_NE(said.find("out_of_memory"), std::string::npos);
    EXPECT_EQ(said.find("out_of_memory"), said.rfind("out_of_memory")) << "once: " << said;
    EXPECT_NE(said.find(where), std::string::npos) << "weir's own words: " << said;
  }
}

TEST_F(rmm_errors, out_of_memory_is_rmms_own) {
  mr::device_resource r;
  mr::pinned_resource pinned;
  for (size_t const bytes : {size_t{1} << 50, size_t{1} << 63, ~size_t{0}}) {  // 1 PiB, and what wraps
    expect_out_of_memory("gpu:0", [&] { (void)r.allocate(legacy, bytes); });
    expect_out_of_memory("gpu:0", [&] { (void)r.allocate_sync(bytes); });
    expect_out_of_memory("gpu:0", [&] { (void)test::take(r, bytes); });
    expect_out_of_memory("cpu", [&] { (void)pinned.allocate(legacy, bytes); });
    expect_out_of_memory("cpu", [&] { (void)pinned.allocate_sync(bytes); });
  }
  EXPECT_THROW((void)r.allocate_sync(size_t{1} << 50), std::bad_alloc);
}

// RMM's resources refuse an alignment by their bad_alloc, which its containers' users catch; weir's have more of them.
TEST_F(rmm_errors, an_alignment_is_refused_by_rmms_bad_alloc) {
  mr::device_resource r;
  mr::pinned_resource pinned;
  for (size_t const alignment : {size_t{3}, size_t{4} << 20}) {
    EXPECT_THROW((void)r.allocate(legacy, 100, alignment), rmm::bad_alloc) << alignment;
    EXPECT_THROW((void)r.allocate_sync(100, alignment), rmm::bad_alloc) << alignment;
  }
  EXPECT_THROW((void)pinned.allocate(legacy, 100, 3), rmm::bad_alloc);
  EXPECT_THROW((void)pinned.allocate_sync(100, 3), rmm::bad_alloc);
  void* const p = r.allocate(legacy, 100, 512);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % 512, 0u);
  r.deallocate(legacy, p, 100, 512);
}

// RMM's tests ask for null, which its adaptors count and free as a block of no bytes.
TEST_F(rmm_errors, no_bytes_are_null_and_null_is_freed) {
  mr::device_resource r;
  mr::pinned_resource pinned;
  EXPECT_EQ(r.allocate(legacy, 0), nullptr);
  EXPECT_EQ(r.allocate_sync(0), nullptr);
  EXPECT_EQ(pinned.allocate(legacy, 0), nullptr);
  EXPECT_EQ(pinned.allocate_sync(0), nullptr);
  r.deallocate(legacy, nullptr, 0);
  r.deallocate_sync(nullptr, 0);
  pinned.deallocate(legacy, nullptr, 0);
  pinned.deallocate_sync(nullptr, 0);
  EXPECT_EQ(memory_allocated(), 0u);
}

TEST_F(rmm_errors, bad_input_is_refused_by_weir) {
  mr::device_resource r;
  int mine = 0;
  test::refused([&] { r.deallocate_sync(&mine, 4); });
}

}  // namespace
}  // namespace weir
#endif
