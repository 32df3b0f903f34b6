// Copies of tensors: in place, to other devices, dtypes and layouts, and to the host.
// Threads: as weir/tensor.h.
#include <cstring>

#include "streams/stream/context.h"
#include "tensor/number.h"
#include "tensor/state.h"

namespace weir {
namespace {

bool are_same_elements(tensor const& a, tensor const& b) {
  return a.storage() == b.storage() && a.storage_offset() == b.storage_offset() && a.strides() == b.strides() &&
         a.dtype() == b.dtype();
}

// Copies bytes without conversion. Requires: both contiguous, of one dtype.
stamp copy_bytes(tensor const& to, tensor const& from, blocking b, source_location at) {
  int const target = tensors::device_of(to), source = tensors::device_of(from);
  if (target < 0 && source < 0) {
    tensors::on_host({reads(from), writes(to)}, "tensor::copy_", at);
    std::memcpy(to.data(), from.data(), to.nbytes());
    return {};
  }
  // Between devices, copy() orders both current streams.
  return copy(*tensors::place_of(target >= 0 ? to : from, at), to.data(), from.data(), to.nbytes(), b, at);
}

}  // namespace

stamp tensor::copy_(tensor const& src, blocking b, source_location at) {
  tensors::require_defined(*this, "tensor::copy_", "target", at);
  tensors::require_defined(src, "tensor::copy_", "source", at);
  tensors::require_same_shape(*this, src, "tensor::copy_", "target", "source", at);
  if (numel() == 0 || are_same_elements(*this, src))
    return {};
  tensors::require_no_partial_overlap(*this, src, "tensor::copy_", at);
  bool const as_it_stands = dtype() == src.dtype() && is_contiguous() && src.is_contiguous();
  stamp done;
  if (as_it_stands) {
    done = copy_bytes(*this, src, b, at);
  } else if (device() == src.device()) {
    ops::place const where = tensors::place_of(*this, at);
    ops::copy(where, tensors::operand_of(*this), tensors::operand_of(src), at);
    if (where)
      done = where->stamp();
  } else if (src.is_contiguous() && !is_contiguous()) {  // transfer first, then lay out on the target
    tensor across = tensors::empty_at("tensor::copy_", *this, shape(), src.dtype(), at);
    across.copy_(src, device().is_cpu() ? blocking::yes : b, at);
    return copy_(across, b, at);
  } else {  // make contiguous on the source, then transfer
    tensor whole = tensors::empty_at("tensor::copy_", src, shape(), dtype(), at);
    whole.copy_(src, b, at);
    return copy_(whole, b, at);
  }
  tensors::changed(*this);
  return done;
}

tensor tensor::clone(source_location at) const {
  tensors::require_defined(*this, "tensor::clone", "tensor", at);
  tensor copy = tensors::empty_at("tensor::clone", *this, shape(), dtype(), at);
  copy.copy_(*this, blocking::yes, at);
  return copy;
}

tensor tensor::contiguous(source_location at) const {
  tensors::require_defined(*this, "tensor::contiguous", "tensor", at);
  return is_contiguous() ? *this : clone(at);
}

tensor tensor::to(weir::device on, blocking b, source_location at) const {
  tensors::require_defined(*this, "tensor::to", "tensor", at);
  if (on.is_cpu()) {
    if (device().is_cpu())
      return *this;
    // Memory that a pending copy may still write must come from a pool that waits before reuse.
    auto const kind = b == blocking::no ? memory_kind::pinned : memory_kind::pageable;
    tensor there =
        tensors::make_at("tensor::to", tensor_access::block_of(*this).owner.if_alive(), -1, kind, shape(), dtype(), at);
    there.copy_(*this, b, at);
    return there;
  }
  known_runtime const& own = tensor_access::block_of(*this).owner;
  runtime::impl& r = own.any() ? own.get("tensor::to", tensors::describe(*this), at) : streams::current_runtime(at);
  int const chosen = streams::resolve(on, r, "tensor::to", at);
  if (chosen == tensors::device_of(*this))
    return *this;
  tensor there = tensors::make_at("tensor::to", &r, chosen, memory_kind::device, shape(), dtype(), at);
  there.copy_(*this, b, at);
  return there;
}

tensor tensor::to(weir::dtype type, source_location at) const {
  tensors::require_defined(*this, "tensor::to", "tensor", at);
  if (type == dtype())
    return *this;
  tensor there = tensors::empty_at("tensor::to", *this, shape(), type, at);
  there.copy_(*this, blocking::yes, at);
  return there;
}

tensor tensor::pin_memory(source_location at) const {
  tensors::require_defined(*this, "tensor::pin_memory", "tensor", at);
  if (!device().is_cpu())
    throw invalid_use("tensor::pin_memory", tensors::describe(*this),
                      "Call cpu() first: only host memory can be pinned", at, error_id{332});
  if (is_pinned())
    return *this;
  tensor there = tensors::make_at("tensor::pin_memory", &streams::current_runtime(at), -1, memory_kind::pinned, shape(),
                                  dtype(), at);
  there.copy_(*this, blocking::yes, at);
  return there;
}

namespace {
struct element {
  alignas(8) unsigned char bytes[8];
};
element only_element(tensor const& t, source_location at) {
  tensors::require_defined(t, "tensor::item", "tensor", at);
  if (t.numel() != 1)
    throw invalid_use("tensor::item", t.shape().str() + " has " + std::to_string(t.numel()) + " elements",
                      "Index to one element first", at, error_id{333});
  element e{};
  if (t.device().is_cpu()) {
    tensors::on_host({reads(t)}, "tensor::item", at);
    std::memcpy(e.bytes, t.data(), size_of(t.dtype()));
  } else {  // directly to a pinned block: no staging for a few bytes
    tensor const landed = tensors::make_at("tensor::item", tensor_access::block_of(t).owner.if_alive(), -1,
                                           memory_kind::pinned, {}, t.dtype(), at);
    copy(*tensors::place_of(t, at), landed.data(), t.data(), size_of(t.dtype()), blocking::yes, at);
    std::memcpy(e.bytes, landed.data(), size_of(t.dtype()));
  }
  return e;
}
}  // namespace

double tensor::item_as_double(source_location at) const {
  element const e = only_element(*this, at);
  return ops::load(dtype(), e.bytes, 0);
}
std::int64_t tensor::item_as_integer(source_location at) const {
  element const e = only_element(*this, at);
  return ops::is_integer(dtype()) ? ops::load_integer(dtype(), e.bytes, 0)
                                  : ops::integer_of(ops::load(dtype(), e.bytes, 0));
}

}  // namespace weir
