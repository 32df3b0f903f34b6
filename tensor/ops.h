// Kernels on tensors' memory: one source for GPUs, simulated devices and the calling thread.
// Requires: arguments that the caller has checked.
// Threads: any.
#pragma once
#include <optional>

#include "weir/launch.h"
#include "weir/tensor.h"

namespace weir::ops {

using place = std::optional<stream_ref>;              // empty: the calling thread, at once
void on_host(memory_uses, source_location) noexcept;  // declares uses by the calling thread to the race checker

struct operand {
  void* data;
  dtype type;
  shape extents;
  strides by;
};

void fill(place const&, operand const& out, double value, source_location);
// Any strides and dtypes, same extents.
void copy(place const&, operand const& out, operand const& in, source_location);
void count_up(place const&, operand const& out, source_location);  // contiguous: 0, 1, 2, …

enum class draw : std::uint8_t { uniform, normal };
// Four numbers a group.
inline std::int64_t groups_of(std::int64_t n) noexcept {
  return (n + 3) / 4;
}
struct distribution {
  draw how;
  double mean, deviation;  // of normal numbers: mean + deviation * number, each step rounded to float32
};
// Requires: contiguous float32.
void random(place const&, operand const& out, distribution, std::uint64_t seed, std::uint64_t first_group,
            source_location);

enum class elementwise : std::uint8_t {
  add,    // a + scalar * b
  mul,    // a * b
  scale,  // a * scalar (b is a)
  relu,   // max(a, 0), NaN stays (b is a)
  sine,   // sin(a) (b is a)
};
// float32, any strides.
void apply(place const&, elementwise, operand const& out, operand const& a, operand const& b, double scalar,
           source_location);

// Writes sum(in) / divisor to the one element of `out`. in: contiguous, float32 or float64. Workspace:
// sum_workspace(n) float64.
std::int64_t sum_workspace(std::int64_t n) noexcept;
void sum(place const&, operand const& out, operand const& in, void* workspace, double divisor, source_location);

// c (m x n) = op(a) (m x k) * op(b) (k x n) + beta * c. Row-major, ld in elements, m, n, k > 0. The operands of
// the next product of `count` lie `step` elements further.
struct product {
  std::int64_t m, n, k;
  dtype in;  // of a and b: float32, float16, bfloat16
  void const* a;
  std::int64_t lda;
  bool a_transposed;
  void const* b;
  std::int64_t ldb;
  bool b_transposed;
  dtype out;  // of c: the same, or float32
  void* c;
  std::int64_t ldc;
  float beta;
  std::int64_t count = 1, step_a = 0, step_b = 0, step_c = 0;
};
size_t product_workspace(place const&);  // bytes for the GPU's library; 0 on the simulated machine
void multiply(place const&, product const&, void* workspace, size_t workspace_bytes, source_location);

}  // namespace weir::ops
