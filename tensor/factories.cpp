// New tensors: allocates their memory and sets their first values.
// Threads: any. Draws on one device follow the order of the calls.
#include <vector>

#include "runtime/base/sync.h"
#include "runtime/memory/device/device_memory.h"
#include "runtime/memory/device/shortage.h"
#include "runtime/observe/history.h"
#include "streams/api/pageable.h"
#include "streams/pinned/pinned_memory.h"
#include "streams/stream/context.h"
#include "tensor/state.h"

namespace weir {
namespace tensors {

tensor make_at(std::string_view operation, runtime::impl* owner, int device, memory_kind kind, shape const& s,
               dtype type, source_location at) {
  size_t bytes = 0;
  if (__builtin_mul_overflow(static_cast<size_t>(s.numel(at)), size_of(type), &bytes))
    throw invalid_use(std::string(operation), std::string(name_of(type)) + " " + s.str() + " has more than 2^64 bytes",
                      "Use fewer elements", at, error_id{334});
  auto block = std::make_shared<storage::state>();
  block->nbytes = bytes;
  block->kind = kind;
  if (owner)
    block->owner = known_runtime(*owner);
  if (kind == memory_kind::pageable) {
    runtime* const current = owner ? nullptr : runtime_if_made();
    block->data =
        streams::allocate_pageable(current ? &current->get() : owner, operation, bytes, default_alignment, at);
    block->how = storage::state::held::pageable;
    block->owner = {};
  } else if (kind == memory_kind::pinned) {
    auto& pool = owner->part<streams::pinned_memory>();
    block->data = pool.allocate_for(operation, pool.current_device, bytes, default_alignment, at);
    observe::note(observe::action::alloc, block->data, bytes, 0, owner->id(), observe::pinned_memory_place, at);
    block->how = storage::state::held::block;
  } else {
    block->device = weir::device(device);
    block->data = memory::as_called(operation, [&] {
      return allocate(streams::ref_of(streams::current_clock(*owner, device, at)), bytes, default_alignment, at);
    });
    block->how = storage::state::held::block;
  }
  return tensor_access::make(std::move(block), s, row_major(s), 0, type);
}

tensor empty_at(std::string_view operation, tensor const& like, shape const& s, dtype type, source_location at) {
  storage::state const& block = tensor_access::block_of(like);
  // Borrowed pinned memory has no owner.
  auto const kind = block.kind == memory_kind::pinned && !block.owner.any() ? memory_kind::pageable : block.kind;
  runtime::impl* const owner =
      block.owner.any() ? &block.owner.get(operation, "memory like that of " + describe(like), at) : nullptr;
  return make_at(operation, owner, device_of(like), kind, s, type, at);
}

}  // namespace tensors

namespace {

tensor make(shape const& s, tensor_options const& o, std::string_view operation, source_location at) {
  if (o.on.is_cpu()) {
    if (o.kind == memory_kind::pinned)
      return tensors::make_at(operation, &streams::current_runtime(at), -1, memory_kind::pinned, s, o.dtype, at);
    return tensors::make_at(operation, nullptr, -1, memory_kind::pageable, s, o.dtype, at);
  }
  if (o.kind != memory_kind::device)
    throw invalid_use(std::string(operation), "host memory (kind) on " + o.on.str(),
                      "Pass .on = weir::cpu for pinned and pageable tensors", at, error_id{335});
  runtime::impl& r = streams::current_runtime(at);
  return tensors::make_at(operation, &r, streams::resolve(o.on, r, operation, at), memory_kind::device, s, o.dtype, at);
}

tensor filled(tensor t, double value, source_location at) {
  ops::fill(tensors::place_of(t, at), tensors::operand_of(t), value, at);
  return t;
}

class generators {  // a part of the runtime: position of each device in its random sequence
 public:
  explicit generators(runtime::impl& r) : at_(std::in_place, static_cast<size_t>(r.device_count()) + 1) {}
  struct position {
    std::uint64_t seed = 0, group = 0;
  };
  position advance(int device, std::int64_t groups) {
    auto const all = at_.lock();
    position& its = (*all)[static_cast<size_t>(device + 1)];
    position const before = its;
    its.group += static_cast<std::uint64_t>(groups);
    return before;
  }
  void seed(std::uint64_t value) {
    for (auto const all = at_.lock(); position & its : *all)
      its = {value, 0};
  }
  void seed(std::uint64_t value, int device) { (*at_.lock())[static_cast<size_t>(device + 1)] = {value, 0}; }

 private:
  base::guarded<std::vector<position>> at_;
};

// Requires: contiguous float32.
void draw_into(tensor const& t, ops::draw how, double mean, double deviation, source_location at) {
  known_runtime const& owner = tensor_access::block_of(t).owner;
  auto const from =
      (owner.any() ? owner.get("tensor::normal_", tensors::describe(t), at) : streams::current_runtime(at))
          .part<generators>()
          .advance(tensors::device_of(t), ops::groups_of(t.numel()));
  ops::random(tensors::place_of(t, at), tensors::operand_of(t), {how, mean, deviation}, from.seed, from.group, at);
}

void require_random(dtype type, std::string_view operation, source_location at) {
  if (type != float32)
    throw not_supported(std::string(operation), std::string(name_of(type)), "Use float32, and convert with to(dtype)",
                        at, error_id{336});
}

tensor drawn(shape const& s, tensor_options const& o, ops::draw how, std::string_view operation, source_location at) {
  require_random(o.dtype, operation, at);
  tensor t = make(s, o, operation, at);
  draw_into(t, how, 0, 1, at);
  return t;
}

tensor empty_like(tensor const& t, std::string_view operation, source_location at) {
  tensors::require_defined(t, operation, "tensor", at);
  return tensors::empty_at(operation, t, t.shape(), t.dtype(), at);
}

tensor drawn_like(tensor const& like, ops::draw how, std::string_view operation, source_location at) {
  tensors::require_defined(like, operation, "tensor", at);
  require_random(like.dtype(), operation, at);
  tensor t = empty_like(like, operation, at);
  draw_into(t, how, 0, 1, at);
  return t;
}

}  // namespace

tensor empty(shape s, tensor_options o, source_location at) {
  return make(s, o, "empty", at);
}
tensor zeros(shape s, tensor_options o, source_location at) {
  return filled(make(s, o, "zeros", at), 0, at);
}
tensor ones(shape s, tensor_options o, source_location at) {
  return filled(make(s, o, "ones", at), 1, at);
}
tensor full(shape s, double value, tensor_options o, source_location at) {
  return filled(make(s, o, "full", at), value, at);
}

tensor arange(std::int64_t n, tensor_options o, source_location at) {
  if (n < 0)
    throw invalid_use("arange", std::to_string(n) + " elements", "Pass 0 or more", at, error_id{337});
  tensor t = make({n}, o, "arange", at);
  ops::count_up(tensors::place_of(t, at), tensors::operand_of(t), at);
  return t;
}

tensor rand(shape s, tensor_options o, source_location at) {
  return drawn(s, o, ops::draw::uniform, "rand", at);
}
tensor randn(shape s, tensor_options o, source_location at) {
  return drawn(s, o, ops::draw::normal, "randn", at);
}
void manual_seed(std::uint64_t value, source_location at) {
  streams::current_runtime(at).part<generators>().seed(value);
}
void manual_seed(std::uint64_t value, device on, source_location at) {
  runtime::impl& owner = streams::current_runtime(at);
  int const ordinal = on.is_cpu() ? -1 : streams::resolve(on, owner, "manual_seed", at);
  owner.part<generators>().seed(value, ordinal);
}

namespace {
// Makes the stream current during its lifetime: to the end of the return statement that makes it.
class on_stream {
 public:
  on_stream(stream_ref s, weir::device where, std::string_view operation, source_location at)
      : in_(checked(s, where, operation, at), at) {}

 private:
  static stream_ref checked(stream_ref s, weir::device where, std::string_view operation, source_location at) {
    clock::stream_clock const& stream = streams::clock_or_throw(s, operation, at);
    if (where.is_gpu() && (where.index() < 0 || where.index() == stream.device()))
      return s;
    throw invalid_use(std::string(operation), where.str() + ", and " + streams::describe(stream),
                      "Omit .on: the stream determines the device", at, error_id{338});
  }
  stream_guard in_;
};
// The same for a tensor like the given one.
class on_stream_like : on_stream {
 public:
  on_stream_like(stream_ref s, tensor const& like, std::string_view operation, source_location at)
      : on_stream(s, (tensors::require_defined(like, operation, "tensor", at), like.device()), operation, at) {}
};
}  // namespace

tensor empty(stream_ref s, shape e, tensor_options o, source_location at) {
  return on_stream(s, o.on, "empty", at), empty(e, o, at);
}
tensor zeros(stream_ref s, shape e, tensor_options o, source_location at) {
  return on_stream(s, o.on, "zeros", at), zeros(e, o, at);
}
tensor ones(stream_ref s, shape e, tensor_options o, source_location at) {
  return on_stream(s, o.on, "ones", at), ones(e, o, at);
}
tensor full(stream_ref s, shape e, double value, tensor_options o, source_location at) {
  return on_stream(s, o.on, "full", at), full(e, value, o, at);
}
tensor arange(stream_ref s, std::int64_t n, tensor_options o, source_location at) {
  return on_stream(s, o.on, "arange", at), arange(n, o, at);
}
tensor rand(stream_ref s, shape e, tensor_options o, source_location at) {
  return on_stream(s, o.on, "rand", at), rand(e, o, at);
}
tensor randn(stream_ref s, shape e, tensor_options o, source_location at) {
  return on_stream(s, o.on, "randn", at), randn(e, o, at);
}

tensor& tensor::normal_(double mean, double deviation, source_location at) {
  tensors::require_defined(*this, "tensor::normal_", "tensor", at);
  require_random(dtype(), "tensor::normal_", at);
  if (!(deviation >= 0))
    throw invalid_use("tensor::normal_", "a deviation of " + std::to_string(deviation), "Pass a deviation of 0 or more",
                      at, error_id{339});
  if (is_contiguous()) {
    draw_into(*this, ops::draw::normal, mean, deviation, at);
    tensors::changed(*this);
  } else {  // draw in row-major order, whatever the strides
    tensor const numbers = empty_like(*this, "tensor::normal_", at);
    draw_into(numbers, ops::draw::normal, mean, deviation, at);
    copy_(numbers, blocking::yes, at);
  }
  return *this;
}

namespace {
tensor borrowed(void const* values, shape const& s, dtype type, source_location at) {
  static char none;  // a valid address for empty lists
  return tensor::from_blob(values ? const_cast<void*>(values) : &none, s, type, cpu, at);
}
}  // namespace

tensor detail::tensor_from(void const* values, shape s, dtype type, tensor_options o, source_location at) {
  o.dtype = type;
  tensor t = make(s, o, "tensor_of", at);
  t.copy_(borrowed(values, s, type, at), blocking::yes, at);
  return t;
}

tensor detail::tensor_from(stream_ref s, void const* values, shape e, dtype type, tensor_options o,
                           source_location at) {
  return on_stream(s, o.on, "tensor_of", at), tensor_from(values, e, type, o, at);
}

void detail::uneven_rows(size_t first, size_t other, source_location at) {
  throw invalid_use("tensor_of", "rows of " + std::to_string(first) + " and of " + std::to_string(other) + " values",
                    "Pass rows of equal length", at, error_id{340});
}

namespace {
tensor new_like(tensor const& t, std::string_view operation, weir::shape const& s, source_location at) {
  tensors::require_defined(t, operation, "tensor", at);
  return tensors::empty_at(operation, t, s, t.dtype(), at);
}
}  // namespace

tensor tensor::new_of(void const* values, weir::shape s, weir::dtype type, source_location at) const {
  tensor t = new_like(*this, "tensor::new_tensor", s, at);
  t.copy_(borrowed(values, s, type, at), blocking::yes, at);
  return t;
}

tensor tensor::new_empty(weir::shape s, source_location at) const {
  return new_like(*this, "tensor::new_empty", s, at);
}
tensor tensor::new_zeros(weir::shape s, source_location at) const {
  return filled(new_like(*this, "tensor::new_zeros", s, at), 0, at);
}
tensor tensor::new_ones(weir::shape s, source_location at) const {
  return filled(new_like(*this, "tensor::new_ones", s, at), 1, at);
}
tensor tensor::new_full(weir::shape s, double value, source_location at) const {
  return filled(new_like(*this, "tensor::new_full", s, at), value, at);
}

tensor empty_like(tensor const& t, source_location at) {
  return empty_like(t, "empty_like", at);
}
tensor zeros_like(tensor const& t, source_location at) {
  return filled(empty_like(t, "zeros_like", at), 0, at);
}
tensor ones_like(tensor const& t, source_location at) {
  return filled(empty_like(t, "ones_like", at), 1, at);
}
tensor full_like(tensor const& t, double value, source_location at) {
  return filled(empty_like(t, "full_like", at), value, at);
}
tensor rand_like(tensor const& t, source_location at) {
  return drawn_like(t, ops::draw::uniform, "rand_like", at);
}
tensor randn_like(tensor const& t, source_location at) {
  return drawn_like(t, ops::draw::normal, "randn_like", at);
}

tensor empty_like(stream_ref s, tensor const& t, source_location at) {
  return on_stream_like(s, t, "empty_like", at), empty_like(t, at);
}
tensor zeros_like(stream_ref s, tensor const& t, source_location at) {
  return on_stream_like(s, t, "zeros_like", at), zeros_like(t, at);
}
tensor ones_like(stream_ref s, tensor const& t, source_location at) {
  return on_stream_like(s, t, "ones_like", at), ones_like(t, at);
}
tensor full_like(stream_ref s, tensor const& t, double value, source_location at) {
  return on_stream_like(s, t, "full_like", at), full_like(t, value, at);
}
tensor rand_like(stream_ref s, tensor const& t, source_location at) {
  return on_stream_like(s, t, "rand_like", at), rand_like(t, at);
}
tensor randn_like(stream_ref s, tensor const& t, source_location at) {
  return on_stream_like(s, t, "randn_like", at), randn_like(t, at);
}

}  // namespace weir
