// RMM's headers lie on the path of many programs that do not link it: with WEIR_WITHOUT_RMM, which this file is
// compiled with, weir/cuda_mr.h names nothing of RMM. Compiled without nvcc.
// Threads: one.
#if defined(WEIR_WITHOUT_RMM)
#include "tests/interop/mr_concepts.h"
#include "tests/interop/where.h"
#include "tests/support/refused.h"

namespace rmm {
class out_of_memory;  // as incomplete as in a program without RMM
}

namespace weir {
namespace {

using rmm_unlinked = test::on_simulated;

template <class T>
concept complete = requires {
  sizeof(T);
};

TEST_F(rmm_unlinked, errors_are_weirs_own) {
  static_assert(!complete<rmm::out_of_memory>, "RMM's header was read");
  mr::device_resource r;
  EXPECT_THROW((void)r.allocate_sync(size_t{1} << 50), out_of_memory);
  test::refused([&] { (void)r.allocate_sync(100, 3); });
  void* const p = r.allocate_sync(0);
  EXPECT_NE(p, nullptr) << "weir's blocks of no bytes have addresses";
  r.deallocate_sync(p, 0);
}

}  // namespace
}  // namespace weir
#endif
