// Arithmetic on tensors: checks the operands, then runs the kernel on their device.
// Threads: as weir/tensor.h.
#include "tensor/state.h"

namespace weir {
namespace {

// out = op(a, b, scalar); `other` is b of a two-operand form, null for one operand.
void apply(tensor const& out, ops::elementwise op, tensor const& a, tensor const* other, double scalar,
           std::string_view operation, source_location at) {
  char const* const first = other ? "left" : "tensor";
  tensors::require_defined(a, operation, first, at);
  if (other)
    tensors::require_defined(*other, operation, "right", at);
  tensors::require_float32(a, operation, first, at);
  if (other) {
    tensors::require_float32(*other, operation, "right", at);
    tensors::require_same_device(a, *other, operation, first, "right", at);
    tensors::require_same_shape(a, *other, operation, first, "right", at);
    if (out.defined())
      tensors::require_no_partial_overlap(out, *other, operation, at);
  }
  ops::apply(tensors::place_of(out, at), op, tensors::operand_of(out), tensors::operand_of(a),
             tensors::operand_of(other ? *other : a), scalar, at);
  tensors::changed(out);
}

tensor applied(ops::elementwise op, tensor const& a, tensor const* b, std::string_view operation, source_location at) {
  tensors::require_defined(a, operation, b ? "left" : "tensor", at);
  if (b) {  // before memory is allocated
    tensors::require_defined(*b, operation, "right", at);
    tensors::require_same_device(a, *b, operation, "left", "right", at);
    tensors::require_same_shape(a, *b, operation, "left", "right", at);
  }
  tensors::require_float32(a, operation, b ? "left" : "tensor", at);
  tensor const out = tensors::empty_at(operation, a, a.shape(), a.dtype(), at);
  apply(out, op, a, b, 1, operation, at);
  return out;
}

tensor summed(tensor const& t, bool averaged, std::string_view operation, source_location at) {
  tensors::require_defined(t, operation, "tensor", at);
  if (t.dtype() != float32 && t.dtype() != float64)
    throw not_supported(std::string(operation), tensors::describe(t),
                        "Convert with to(dtype): sums support float32 and float64", at, error_id{324});
  tensor const whole = t.contiguous(at), out = tensors::empty_at(operation, t, {}, t.dtype(), at);
  tensor const workspace = tensors::empty_at(operation, t, {ops::sum_workspace(t.numel())}, float64, at);
  ops::sum(tensors::place_of(t, at), tensors::operand_of(out), tensors::operand_of(whole), workspace.data(),
           averaged ? static_cast<double>(t.numel()) : 1, at);
  return out;
}

}  // namespace

tensor& tensor::fill_(double value, source_location at) {
  tensors::require_defined(*this, "tensor::fill_", "tensor", at);
  ops::fill(tensors::place_of(*this, at), tensors::operand_of(*this), value, at);
  tensors::changed(*this);
  return *this;
}
tensor& tensor::zero_(source_location at) {
  return fill_(0, at);
}

tensor& tensor::add_(tensor const& other, double alpha, source_location at) {
  apply(*this, ops::elementwise::add, *this, &other, alpha, "tensor::add_", at);
  return *this;
}
tensor& tensor::mul_(double factor, source_location at) {
  apply(*this, ops::elementwise::scale, *this, nullptr, factor, "tensor::mul_", at);
  return *this;
}
tensor& tensor::mul_(tensor const& other, source_location at) {
  apply(*this, ops::elementwise::mul, *this, &other, 1, "tensor::mul_", at);
  return *this;
}
tensor& tensor::relu_(source_location at) {
  apply(*this, ops::elementwise::relu, *this, nullptr, 0, "tensor::relu_", at);
  return *this;
}

tensor add(tensor const& a, tensor const& b, source_location at) {
  return applied(ops::elementwise::add, a, &b, "add", at);
}
tensor mul(tensor const& a, tensor const& b, source_location at) {
  return applied(ops::elementwise::mul, a, &b, "mul", at);
}
tensor relu(tensor const& a, source_location at) {
  return applied(ops::elementwise::relu, a, nullptr, "relu", at);
}
tensor sin(tensor const& t, source_location at) {
  return applied(ops::elementwise::sine, t, nullptr, "sin", at);
}
tensor sum(tensor const& t, source_location at) {
  return summed(t, false, "sum", at);
}
tensor mean(tensor const& t, source_location at) {
  return summed(t, true, "mean", at);
}

}  // namespace weir
