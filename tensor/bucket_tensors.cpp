// Tensors over the parameters and gradients of gradient_buckets.
// Threads: as weir/tensor.h.
#include "tensor/state.h"
#include "weir/collective.h"

namespace weir {

tensor gradient_buckets::over(device_span what, std::string_view operation, shape const& s, source_location at) const {
  if (s.numel(at) != what.count)
    throw invalid_use(std::string(operation),
                      base::text("shape ", s.str(), " of ", s.numel(at), " elements for ", what.count),
                      "Pass a shape of as many elements as add() got", at, error_id{486});
  place const its = place_of(operation, at);
  runtime_guard const in(its.in);
  return tensor::from_blob(what.data, s, what.dtype, its.on, at);
}

int gradient_buckets::add(std::string name, shape const& s, dtype type, source_location at) {
  return add_shaped(std::move(name), {s.begin(), s.end()}, s.numel(at), type, at);
}
shape gradient_buckets::extents(int i, source_location at) const {
  return shape(extents_of(i, "gradient_buckets::extents", at), at);
}
tensor gradient_buckets::parameter_tensor(int i, source_location at) const {
  return parameter_tensor(i, extents(i, at), at);
}
tensor gradient_buckets::gradient_tensor(int i, source_location at) const {
  return gradient_tensor(i, extents(i, at), at);
}
tensor gradient_buckets::parameter_tensor(int i, shape const& s, source_location at) const {
  return over(parameter(i, at), "gradient_buckets::parameter_tensor", s, at);
}
tensor gradient_buckets::gradient_tensor(int i, shape const& s, source_location at) const {
  return over(gradient(i, at), "gradient_buckets::gradient_tensor", s, at);
}

}  // namespace weir
