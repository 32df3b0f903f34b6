// The streams behind handles that other libraries name.
// Threads: one.
#include "weir/stream_of.h"

#include "tests/interop/where.h"
#include "tests/support/refused.h"

namespace weir {
namespace {

using stream_by_handle = test::on_simulated;

TEST_F(stream_by_handle, a_handle_is_one_stream_of_its_device) {
  stream_ref const legacy = detail::stream_of(gpu, nullptr);
  EXPECT_EQ(detail::stream_of(0, nullptr), legacy);
  EXPECT_EQ(detail::stream_of(0, reinterpret_cast<CUstream_st*>(1)), legacy) << "cudaStreamLegacy";
  stream_ref const there = detail::stream_of(1, nullptr);
  EXPECT_NE(there, legacy);
  EXPECT_EQ(there.device(), device(1));
  device_guard const on(1);
  EXPECT_EQ(detail::stream_of(gpu, nullptr), there);
}

TEST_F(stream_by_handle, each_runtime_has_its_own) {
  stream_ref const here = detail::stream_of(0, nullptr);
  {
    runtime other{simulated{.devices = 1}};
    runtime_guard const in(other);
    EXPECT_NE(detail::stream_of(0, nullptr), here);
  }
  EXPECT_EQ(detail::stream_of(0, nullptr), here);
  here.synchronize();
}

TEST_F(stream_by_handle, what_is_no_stream_is_refused_each_time) {
  for (int i = 0; i < 2; ++i) {
    EXPECT_THROW((void)detail::stream_of(0, reinterpret_cast<CUstream_st*>(64)), invalid_use);
    test::refused([] { (void)detail::stream_of(7, nullptr); });
    test::refused([] { (void)detail::stream_of(cpu, nullptr); });
  }
}

}  // namespace
}  // namespace weir
