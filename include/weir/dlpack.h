// weir/dlpack.h: tensors to and from other libraries, by DLPack 1.x. Both sides share the memory.
// Threads: any; a deleter may be called on any.
//
// DLPack synchronizes nothing by itself. A producer names the stream that its memory is ready on, and a
// consumer the stream that it works on. One waits for the other on the device, both when the tensor is handed
// over and when it comes back; the host does not wait. Pinned memory has no stream: wait for copies into it.
#pragma once
#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "weir/array.h"
#include "weir/dlpack_abi.h"

namespace weir WEIR_API {

struct dlpack_deleter {
  template <class Managed>
  void operator()(Managed* m) const {
    if (m->deleter)
      m->deleter(m);
  }
};
// An owner of what to_dlpack made. Another library takes release(), and calls the deleter when it is done.
template <class Managed = DLManagedTensorVersioned>
using dlpack_pointer = std::unique_ptr<Managed, dlpack_deleter>;

enum class dlpack_read_only : std::uint8_t { refuse, accept };

namespace detail {

template <class Managed>
inline constexpr bool is_versioned = std::is_same_v<Managed, DLManagedTensorVersioned>;

inline DLDataType dlpack_type(dtype t) noexcept {
  auto const code = t == boolean                                   ? kDLBool
                    : t == bfloat16                                ? kDLBfloat
                    : t == float16 || t == float32 || t == float64 ? kDLFloat
                    : t == uint8                                   ? kDLUInt
                                                                   : kDLInt;
  return {static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(size_of(t) * 8), 1};
}

inline dtype dtype_from(DLDataType const& is, source_location at) {
  for (dtype t : {float32, float16, bfloat16, float64, int8, uint8, int16, int32, int64, boolean}) {
    DLDataType const its = dlpack_type(t);
    if (its.code == is.code && its.bits == is.bits && is.lanes == 1)
      return t;
  }
  throw not_supported("from_dlpack",
                      "elements of type code " + std::to_string(is.code) + ", " + std::to_string(is.bits) +
                          " bits and " + std::to_string(is.lanes) + " lanes",
                      "Convert them first to a type that weir has (weir::dtype)", at, error_id{130});
}

// kDLExtDev is a simulated device: no other library may take its memory for a GPU's.
inline DLDeviceType device_type(source_location at) {
  return runtime::current(at).is_simulated() ? kDLExtDev : kDLCUDA;
}

inline device device_from(DLDevice const& is, source_location at) {
  if (is.device_type == kDLCPU || is.device_type == kDLCUDAHost)
    return cpu;
  if (is.device_type == device_type(at)) {
    if (is.device_id >= 0 && is.device_id < device_count(at))
      return device(is.device_id);
    throw invalid_use("from_dlpack",
                      "device " + std::to_string(is.device_id) + " of " + std::to_string(device_count(at)),
                      "Hand over memory of a device that is there", at, error_id{131});
  }
  throw not_supported("from_dlpack",
                      "memory of DLPack's device type " + std::to_string(is.device_type) + "; this machine is " +
                          runtime::current(at).description(),
                      "weir takes memory of the host (1, 3) and of CUDA devices (2), in a program with simulated "
                      "devices theirs (12): copy it there first",
                      at, error_id{132});
}

inline shape extents_from(std::int64_t const* from, std::int32_t rank, source_location at) {
  return shape(std::span(from, static_cast<size_t>(rank)), at);
}

inline strides strides_of_rows(shape const& s) noexcept {
  strides by = s;
  std::uint64_t step = 1;  // wraps only if there is no element
  for (int i = s.rank() - 1; i >= 0; step *= static_cast<std::uint64_t>(s[i--]))
    by[i] = static_cast<std::int64_t>(step & (~std::uint64_t{0} >> 1));
  return by;
}

template <class Managed>
struct exported_tensor {
  Managed managed{};
  tensor of;
  shape extents;
  strides steps;
};

}  // namespace detail

// Where the tensor's memory is, for DLPack. Throws: invalid_use (undefined)
inline DLDevice dlpack_device(tensor const& t, source_location at = source_location::current()) {
  if (!t.defined())
    throw invalid_use("dlpack_device", "an undefined tensor", "Make it with a factory first, for example weir::empty",
                      at, error_id{133});
  if (t.device().is_gpu())
    return {detail::device_type(at), t.device().index()};
  return {t.is_pinned() && !runtime::current(at).is_simulated() ? kDLCUDAHost : kDLCPU, 0};
}

// A handle to the tensor's memory, which lives until the handle's deleter is called. `consumer`: the stream
// on which the other library uses it, by default the device's current stream. It waits for that current
// stream, and the memory serves others only after the consumer's work of before the deleter's call.
// to_dlpack<DLManagedTensor> makes the structure of DLPack before 1.0.
// Throws: invalid_use (an undefined tensor, a stream of another device, a peer_view)
template <class Managed = DLManagedTensorVersioned>
dlpack_pointer<Managed> to_dlpack(tensor const& t, std::optional<stream_ref> consumer = std::nullopt,
                                  source_location at = source_location::current()) {
  DLDevice const on = dlpack_device(t, at);
  if (t.device().is_gpu()) {
    stream_ref const producer = current_stream(t.device(), at);
    if (!consumer)
      consumer = producer;
    if (consumer->device() != t.device())
      throw invalid_use("to_dlpack", "a tensor on " + t.device().str() + " for a stream of " + consumer->device().str(),
                        "Name a stream of the tensor's device", at, error_id{134});
    if (auto const block = find_block(t.data()); block && block->on != t.device())
      throw invalid_use("to_dlpack", "a peer_view on " + t.device().str() + " of memory on " + block->on.str(),
                        "Export the tensor that it was made of: the other library does not know of the link", at,
                        error_id{135});
    consumer->wait(producer, at);
  }
  if (consumer)
    t.record_stream(*consumer, at);
  auto* const mine = new detail::exported_tensor<Managed>{{}, t, t.shape(), t.strides()};
  mine->managed.manager_ctx = mine;
  mine->managed.deleter = [](Managed* m) { delete static_cast<detail::exported_tensor<Managed>*>(m->manager_ctx); };
  if constexpr (detail::is_versioned<Managed>)
    mine->managed.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
  mine->managed.dl_tensor = {t.numel() ? t.data() : nullptr,
                             on,
                             t.dim(),
                             detail::dlpack_type(t.dtype()),
                             &mine->extents[0],
                             &mine->steps[0],
                             0};
  return dlpack_pointer<Managed>(&mine->managed);
}
// The same of an array, which is empty afterwards; the consumer waits for the array's stream too.
template <class Managed = DLManagedTensorVersioned, class T>
dlpack_pointer<Managed> to_dlpack(array<T>&& a, std::optional<stream_ref> consumer = std::nullopt,
                                  source_location at = source_location::current()) {
  if (consumer)
    consumer->wait(a.stream(), at);
  else
    consumer = a.stream();
  return to_dlpack<Managed>(std::move(a).to_tensor(at), consumer, at);
}

// A tensor over the memory of another library. On success weir owns the structure, and calls its deleter when
// the last tensor over the memory has ended; on an error the caller still owns it.
// `producer`: the stream that the memory is ready on, and that its owner uses it on afterwards. The device's
// current stream waits for it. Before the deleter is called it waits for that current stream and for every
// stream that tensor::record_stream named. By default it is the device's current stream.
// Throws: invalid_use (null, a negative or overflowing size, negative strides, more than 8 extents, no data,
// no such device, memory that is not on the named device, a stream of another device, read-only memory unless
// accepted), not_supported (another major version, an element type or kind of device that weir does not have)
template <class Managed>
tensor from_dlpack(Managed* m, std::optional<stream_ref> producer = std::nullopt,
                   dlpack_read_only how = dlpack_read_only::refuse, source_location at = source_location::current()) {
  auto const refuse = [at](std::string what, std::string remedy, error_id id) {
    throw invalid_use("from_dlpack", std::move(what), std::move(remedy), at, id);
  };
  if (!m)
    refuse("null", "Take the pointer out of the capsule, or from the other library's export", error_id{136});
  if constexpr (detail::is_versioned<Managed>) {
    if (m->version.major != DLPACK_MAJOR_VERSION)
      throw not_supported(
          "from_dlpack", "DLPack " + std::to_string(m->version.major) + "." + std::to_string(m->version.minor),
          "weir reads 1.x: ask the producer for max_version (1, 0), and call this one's deleter", at, error_id{137});
    if (m->flags & DLPACK_FLAG_BITMASK_READ_ONLY && how == dlpack_read_only::refuse)
      refuse("read-only memory", "Copy it first, or accept it (dlpack_read_only::accept) and do not write to it",
             error_id{138});
  }
  DLTensor const& is = m->dl_tensor;
  if (is.ndim < 0 || is.ndim > shape::max_rank)
    refuse(std::to_string(is.ndim) + " dimensions", "weir has 0 to 8: reshape it first", error_id{139});
  if (is.ndim && !is.shape)
    refuse("no shape", "A tensor with dimensions has extents", error_id{140});
  dtype const type = detail::dtype_from(is.dtype, at);
  device const on = detail::device_from(is.device, at);
  shape const s = detail::extents_from(is.shape, is.ndim, at);
  std::int64_t const count = s.numel(at);
  strides const by = is.strides ? detail::extents_from(is.strides, is.ndim, at) : detail::strides_of_rows(s);
  if (count && !is.data)
    refuse("no data for " + s.str(), "The producer has freed it, or never had it", error_id{141});
  auto const first = reinterpret_cast<std::uintptr_t>(is.data);
  if (is.data && is.byte_offset > std::min(~std::uintptr_t{0} - first, ~std::uintptr_t{0} >> 1))
    refuse("a byte_offset of " + std::to_string(is.byte_offset),
           "The producer's offset was negative, or has overflowed", error_id{454});
  auto* const data = static_cast<std::byte*>(is.data) + (is.data ? is.byte_offset : 0);
  if (reinterpret_cast<std::uintptr_t>(data) % size_of(type))
    refuse(std::string(name_of(type)) + " at an address that is no multiple of its size", "Copy it to aligned memory",
           error_id{142});
  blob_owner owner{[m] { dlpack_deleter()(m); }};
  if (on.is_gpu()) {
    stream_ref const consumer = current_stream(on, at);
    owner.home = producer ? *producer : consumer;
    if (owner.home->device() != on)
      refuse("memory of " + on.str() + " with a stream of " + owner.home->device().str(),
             "Name the stream of that device on which the memory is ready", error_id{143});
    owner.users = {consumer};
    consumer.wait(*owner.home, at);
  }
  return tensor::from_blob(data, s, by, type, on, std::move(owner), at);
}
// The same for an owner, which is empty afterwards.
template <class Managed>
tensor from_dlpack(dlpack_pointer<Managed> m, std::optional<stream_ref> producer = std::nullopt,
                   dlpack_read_only how = dlpack_read_only::refuse, source_location at = source_location::current()) {
  tensor t = from_dlpack(m.get(), producer, how, at);
  (void)m.release();
  return t;
}

}  // namespace weir
