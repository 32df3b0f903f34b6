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

// RMM's users look for these words.
template <class Call>
void expect_out_of_memory(Call call) {
  try {
    call();
    FAIL() << "1 PiB was there";
  } catch (rmm::out_of_memory const& e) {
    EXPECT_NE(std::string(e.what()).find("out_of_memory"), std::string::npos);
    EXPECT_NE(std::string(e.what()).find("gpu:0"), std::string::npos) << "weir's own words: " << e.what();
  }
}

TEST_F(rmm_errors, out_of_memory_is_rmms_own) {
  mr::device_resource r;
  cuda::stream_ref const legacy{cudaStream_t{}};
  expect_out_of_memory([&] { (void)r.allocate(legacy, size_t{1} << 50); });
  expect_out_of_memory([&] { (void)r.allocate_sync(size_t{1} << 50); });
  expect_out_of_memory([&] { (void)test::take(r, size_t{1} << 50); });
  EXPECT_THROW((void)r.allocate_sync(size_t{1} << 50), std::bad_alloc);
}

TEST_F(rmm_errors, bad_input_is_refused_by_weir) {
  mr::device_resource r;
  int mine = 0;
  test::refused([&] { r.deallocate_sync(&mine, 4); });
}

}  // namespace
}  // namespace weir
#endif
