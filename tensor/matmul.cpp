// Products of matrices: converts shapes and strides to operands that a BLAS can read.
// Threads: as weir/tensor.h.
#include <algorithm>
#include <climits>

#include "tensor/state.h"

namespace weir {
namespace {

struct matrix {     // in a BLAS's terms
  bool transposed;  // columns are contiguous, not rows
  std::int64_t ld;
  std::int64_t step = 0;  // from one matrix of three dimensions to the next
};

std::optional<matrix> as_matrix(tensor const& t) {  // none: gaps in both dimensions, or strides too wide for a BLAS
  int const first = t.dim() - 2;
  std::int64_t const rows = t.shape()[first], columns = t.shape()[first + 1], down = t.strides()[first],
                     across = t.strides()[first + 1], step = first ? t.strides()[0] : 0;
  if (columns == 1 || across == 1) {
    if (rows == 1)
      return matrix{false, columns, step};
    if (down >= columns && down <= INT_MAX)
      return matrix{false, down, step};
  }
  if (rows == 1 || down == 1) {
    if (columns == 1)
      return matrix{true, rows, step};
    if (across >= rows && across <= INT_MAX)
      return matrix{true, across, step};
  }
  return {};
}

struct readable {
  tensor t;
  matrix as;
};  // a view if a BLAS can read it, otherwise a copy
readable readable_of(tensor const& t, source_location at) {
  if (auto const as = as_matrix(t))
    return {t, *as};
  tensor const copy = t.clone(at);
  return {copy, *as_matrix(copy)};
}

bool has_product(dtype type) {
  return type == float32 || type == float16 || type == bfloat16;
}

struct extents {
  std::int64_t m, n, k, count;
  shape of_out;
};

extents check(tensor const& a, tensor const& b, transposed how, source_location at) {
  tensors::require_defined(a, "matmul", "left", at);
  tensors::require_defined(b, "matmul", "right", at);
  bool const left = how == transposed::left || how == transposed::both,
             right = how == transposed::right || how == transposed::both;
  auto const operands = [&] {
    return "left " + a.shape().str() + (left ? " transposed" : "") + ", right " + b.shape().str() +
           (right ? " transposed" : "");
  };
  int const first = a.dim() - 2;
  if ((first != 0 && first != 1) || b.dim() != a.dim() || (first && a.shape()[0] != b.shape()[0]))
    throw invalid_use("matmul", operands(), "View both with two dimensions, or with three and as many matrices", at,
                      error_id{345});
  if (!has_product(a.dtype()) || a.dtype() != b.dtype())
    throw not_supported("matmul", std::string(name_of(a.dtype())) + " times " + std::string(name_of(b.dtype())),
                        "Convert both to float32, float16 or bfloat16 with to(dtype)", at, error_id{346});
  tensors::require_same_device(a, b, "matmul", "left", "right", at);
  auto const rows = [first](tensor const& t, bool turned) { return t.shape()[first + (turned ? 1 : 0)]; };
  extents e{rows(a, left), rows(b, !right), rows(a, !left), first ? a.shape()[0] : 1, {}};
  e.of_out = first ? weir::shape{e.count, e.m, e.n} : weir::shape{e.m, e.n};
  std::int64_t const of_right = rows(b, right);
  if (e.k != of_right)
    throw invalid_use("matmul",
                      operands() + ": " + std::to_string(e.k) + " columns meet " + std::to_string(of_right) + " rows",
                      "Pass operands where the left has as many columns as the right has rows", at, error_id{347});
  if (std::max({e.m, e.n, e.k, e.count}) > INT_MAX)
    throw not_supported("matmul", operands(), "Divide the product: extents are at most 2^31 - 1", at, error_id{348});
  return e;
}

}  // namespace

void matmul_out(tensor& out, tensor const& left, tensor const& right, transposed how, double beta, source_location at) {
  extents const e = check(left, right, how, at);
  tensors::require_defined(out, "matmul_out", "out", at);
  if (out.dtype() != float32 && out.dtype() != left.dtype())
    throw not_supported(
        "matmul_out",
        "out " + std::string(name_of(out.dtype())) + " for operands of " + std::string(name_of(left.dtype())),
        "Pass an out of their dtype, or of float32", at, error_id{349});
  tensors::require_same_device(out, left, "matmul_out", "out", "left", at);
  if (out.shape() != e.of_out)
    throw invalid_use("matmul_out",
                      "out " + out.shape().str() + " for left " + left.shape().str() + ", right " + right.shape().str(),
                      "out must be " + e.of_out.str(), at, error_id{350});
  if (e.m == 0 || e.n == 0 || e.count == 0)
    return;
  if (e.k == 0) {
    if (beta == 0)
      out.zero_(at);
    else if (out.dtype() == float32)
      out.mul_(beta, at);
    else
      out.copy_(out.to(float32).mul_(beta, at), blocking::yes, at);
    return;
  }
  if (tensors::may_share_elements(out, left) || tensors::may_share_elements(out, right))
    throw invalid_use("matmul_out", "out " + out.shape().str() + " shares memory with an operand",
                      "Pass an out with memory of its own", at, error_id{351});
  std::optional<matrix> const c = as_matrix(out);
  if (!c || (e.count > 1 && c->step == 0)) {  // no BLAS writes a result with gaps in both dimensions
    tensor whole = tensors::empty_at("matmul_out", out, out.shape(), out.dtype(), at);
    if (beta != 0)
      whole.copy_(out, blocking::yes, at);
    matmul_out(whole, left, right, how, beta, at);
    out.copy_(whole, blocking::yes, at);
    return;
  }
  readable const a = readable_of(left, at), b = readable_of(right, at);
  bool const a_turned = a.as.transposed != (how == transposed::left || how == transposed::both);
  bool const b_turned = b.as.transposed != (how == transposed::right || how == transposed::both);
  void const* const pa = a.t.data();
  void const* const pb = b.t.data();
  void* const pc = out.data();
  dtype const in = left.dtype(), to = out.dtype();
  auto const scale = static_cast<float>(beta);
  // If the columns of `out` are contiguous, its transpose, right' x left', has contiguous rows.
  ops::product const p = c->transposed
                             ? ops::product{e.n,       e.m, e.k, in,    pb,    b.as.ld, !b_turned, pa,        a.as.ld,
                                            !a_turned, to,  pc,  c->ld, scale, e.count, b.as.step, a.as.step, c->step}
                             : ops::product{e.m,      e.n, e.k, in,    pa,    a.as.ld, a_turned,  pb,        b.as.ld,
                                            b_turned, to,  pc,  c->ld, scale, e.count, a.as.step, b.as.step, c->step};
  ops::place const where = tensors::place_of(out, at);
  tensor workspace;
  if (size_t const bytes = ops::product_workspace(where)) {
    try {
      workspace = tensors::empty_at("matmul", out, {static_cast<std::int64_t>(bytes)}, uint8, at);
    } catch (out_of_memory const&) {}  // cuBLAS then chooses among the kernels that need none
  }
  bool const has = workspace.defined();
  ops::multiply(where, p, has ? workspace.data() : nullptr, has ? static_cast<size_t>(workspace.numel()) : 0, at);
  tensors::changed(out);
}

tensor matmul(tensor const& left, tensor const& right, transposed how, source_location at) {
  extents const e = check(left, right, how, at);
  tensor out = tensors::empty_at("matmul", left, e.of_out, left.dtype(), at);
  matmul_out(out, left, right, how, 0, at);
  return out;
}

}  // namespace weir
