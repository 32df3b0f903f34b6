// weir/tensor.h: tensors: a shared storage, a shape and strides. No autograd, no broadcasting.
// Threads: a tensor is a handle. Copies may be used on any thread, one object on one thread at a time.
//
// Work runs on the current stream of the tensor's device, whatever device is current. On cpu tensors it runs
// at once on the calling thread. Tensors of different devices do not mix, except in copy_ and to.
#pragma once
#include <algorithm>
#include <array>
#include <functional>
#include <initializer_list>
#include <iosfwd>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weir/copy.h"
#include "weir/launch.h"

namespace weir WEIR_API {

class shape {  // up to 8 extents, no heap memory. No extents: one element
 public:
  static constexpr int max_rank = 8;
  constexpr shape() noexcept = default;
  constexpr shape(std::initializer_list<std::int64_t> extents, source_location at = source_location::current())
      : shape(std::span(extents.begin(), extents.size()), at) {}
  // Throws: invalid_use for more than max_rank extents
  constexpr explicit shape(std::span<std::int64_t const> extents, source_location at = source_location::current()) {
    if (extents.size() > max_rank)
      too_many(extents.size(), at);
    for (std::int64_t const e : extents)
      at_[static_cast<size_t>(rank_++)] = e;
  }
  constexpr int rank() const noexcept { return rank_; }
  constexpr std::int64_t operator[](int i) const noexcept { return at_[static_cast<size_t>(i)]; }
  constexpr std::int64_t& operator[](int i) noexcept { return at_[static_cast<size_t>(i)]; }
  constexpr std::int64_t const* begin() const noexcept { return at_.data(); }
  constexpr std::int64_t const* end() const noexcept { return at_.data() + rank_; }
  // Throws: invalid_use on overflow or a negative extent
  std::int64_t numel(source_location = source_location::current()) const;
  std::string str() const;  // "[2, 3]"
  friend constexpr bool operator==(shape const& a, shape const& b) noexcept {
    return a.rank_ == b.rank_ && a.at_ == b.at_;
  }

 private:
  [[noreturn]] static void too_many(size_t, source_location);
  std::array<std::int64_t, max_rank> at_{};
  int rank_ = 0;
};
using strides = shape;  // in elements, never negative

struct tensor_options {
  weir::dtype dtype = float32;
  device on = gpu;
  memory_kind kind = memory_kind::device;  // on = cpu: pageable by default
};

template <class T>
inline constexpr bool has_dtype = false;
template <class T>
inline constexpr dtype dtype_of = float32;
#define WEIR_DTYPE(T, name)                  \
  template <>                                \
  inline constexpr bool has_dtype<T> = true; \
  template <>                                \
  inline constexpr dtype dtype_of<T> = name;
WEIR_DTYPE(float, float32)
WEIR_DTYPE(double, float64)
WEIR_DTYPE(std::int8_t, int8)
WEIR_DTYPE(std::uint8_t, uint8)
WEIR_DTYPE(std::int16_t, int16)
WEIR_DTYPE(std::int32_t, int32)
WEIR_DTYPE(std::int64_t, int64)
WEIR_DTYPE(bool, boolean)
// Of weir/half.h. data<float16_t>() accepts float16 only; data<std::uint16_t>() gives either type's bits.
WEIR_DTYPE(struct float16_t, float16)
WEIR_DTYPE(struct bfloat16_t, bfloat16)
#undef WEIR_DTYPE

class storage {  // a shared block with a use count. Threads: the count is atomic, the bytes are not guarded
 public:
  void* data() const noexcept;
  size_t nbytes() const noexcept;
  weir::device device() const noexcept;  // cpu for pinned and pageable
  memory_kind kind() const noexcept;
  long use_count() const noexcept;
  // A pinned copy of host memory; itself if pinned. Throws: invalid_use (none, device memory)
  storage pin_memory(source_location = source_location::current()) const;
  // Increases with each change through a tensor, so that a tape detects a changed saved value.
  std::uint64_t version() const noexcept;
  friend bool operator==(storage const&, storage const&) noexcept = default;  // the same block

  struct state;

 private:
  friend struct tensor_access;
  std::shared_ptr<state> state_;
};

// The end of memory that another library owns.
struct blob_owner {
  // Called once, when the last tensor over the memory ends, on that thread. What it throws is dropped. Not
  // called in a forked child, nor while the process ends.
  std::function<void()> release;
  // Of device memory: the stream on which its owner uses it after `release`. Before the call it waits for all
  // streams that record_stream named; launch and copy on other streams do not name them.
  // Blocks: the host too, if that stream has ended or is captured.
  std::optional<stream_ref> home = std::nullopt;
  std::vector<stream_ref> users = {};  // as record_stream names them
};

class tensor {
 public:
  tensor() noexcept = default;  // undefined
  // Takes ownership. Throws: invalid_use if the buffer is too small
  static tensor from_buffer(buffer, shape, dtype, source_location = source_location::current());
  // Shares the storage; offset in elements. Throws: invalid_use if the storage is too small
  static tensor from_storage(weir::storage, shape, dtype, std::int64_t offset = 0,
                             source_location = source_location::current());
  // Requires: the caller keeps the memory alive; device is cpu or the memory's device.
  static tensor from_blob(void*, shape, dtype, device, source_location = source_location::current());
  // The same with strides, for memory that its owner gives back when weir is done with it. On an error
  // `release` is not called.
  // Throws: invalid_use (another device's memory, negative strides, a size that overflows, a home that is a
  // stream of another device)
  static tensor from_blob(void*, shape, weir::strides, dtype, device, blob_owner,
                          source_location = source_location::current());
  bool defined() const noexcept { return state_ != nullptr; }
  // On an undefined tensor all members below throw invalid_use; the noexcept ones return empty values.
  weir::shape const& shape() const noexcept;
  weir::strides const& strides() const noexcept;
  weir::dtype dtype() const noexcept;
  weir::device device() const noexcept;  // cpu for pinned and pageable; never the unindexed gpu
  std::int64_t numel() const noexcept;
  size_t nbytes() const noexcept;                                                  // numel() elements
  std::int64_t size(int dim, source_location = source_location::current()) const;  // -1: the last
  int dim() const noexcept { return shape().rank(); }
  weir::storage const& storage() const noexcept;
  std::int64_t storage_offset() const noexcept;  // in elements
  void* data() const noexcept;                   // of the first element
  // Throws: invalid_use if T is not the dtype. std::uint16_t gives the bits of float16 and bfloat16
  template <class T>
  T* data(source_location at = source_location::current()) const {
    return static_cast<T*>(data_as(code_of<std::remove_cv_t<T>>(), at));
  }
  // The race checker treats this call as a host read: it reports a copy to this pinned memory that was not
  // waited for. For the address alone use data<T>().
  // Throws: invalid_use on device memory or a view with gaps
  template <class T>
  std::span<T> host(source_location at = source_location::current()) const {
    return {static_cast<T*>(host_as(code_of<std::remove_cv_t<T>>(), at)), static_cast<size_t>(numel())};
  }
  bool is_contiguous() const noexcept;  // row-major without gaps
  bool is_pinned() const noexcept;

  struct index {  // an operator[] takes one argument, so the caller's line comes with the index
    constexpr index(std::int64_t i, source_location line = source_location::current()) noexcept : at(i), from(line) {}
    std::int64_t at;
    source_location from;
  };
  // Views share the storage. One extent may be -1. Throws: invalid_use with the strides that forbid it
  tensor view(weir::shape, source_location = source_location::current()) const;
  // a view if possible, otherwise a copy
  tensor reshape(weir::shape, source_location = source_location::current()) const;
  tensor transpose(int a, int b, source_location = source_location::current()) const;
  tensor t(source_location = source_location::current()) const;  // of two dimensions
  // [from, to); negative: from the end
  tensor slice(int dim, std::int64_t from, std::int64_t to, source_location = source_location::current()) const;
  tensor operator[](index) const;  // removes the first dimension
  // The same elements; for parity with torch, because there is no graph.
  tensor detach(source_location = source_location::current()) const;
  tensor contiguous(source_location = source_location::current()) const;  // itself, or a copy
  tensor clone(source_location = source_location::current()) const;  // a contiguous copy in the same kind of memory

  // Itself if already there. To cpu with non_blocking: pinned, valid when the stream is done
  tensor to(weir::device, blocking = blocking::yes, source_location = source_location::current()) const;
  tensor to(weir::dtype, source_location = source_location::current()) const;  // itself if of that type
  // A view of the same memory as a tensor of `reader`, for memory of another device or pinned memory.
  // Operations run on `reader` and access the memory over the link, without a copy. The reader's current
  // stream waits for the work enqueued so far on the owner's current stream; the program orders all other
  // work. The view shares ownership, its operations count as uses, and it has its own version.
  // Throws: invalid_use (pageable, no block of weir, reader is cpu), not_supported (no link): see peer.h
  tensor peer_view(weir::device reader, source_location = source_location::current()) const;
  tensor gpu(blocking b = blocking::yes, source_location at = source_location::current()) const {
    return to(weir::gpu, b, at);
  }
  tensor cpu(source_location at = source_location::current()) const { return to(weir::cpu, blocking::yes, at); }
  // A pinned copy of a cpu tensor; itself if pinned.
  tensor pin_memory(source_location = source_location::current()) const;

  // Copies from a tensor of the same shape, with any strides, dtype and device. Runs on the target's current
  // stream (if the target is cpu, the source's). A copy between devices is ordered after the current streams
  // of both, and before their next work. non_blocking to or from contiguous pinned memory of the same dtype
  // does not block; the stamp tells when it is complete.
  stamp copy_(tensor const& src, blocking = blocking::yes, source_location = source_location::current());
  // Declares that the stream uses the memory, as weir::record_stream. launch does it for its uses.
  void record_stream(stream_ref, source_location = source_location::current()) const;
  // The value of a tensor of one element, converted. Blocks: host
  template <class T>
  T item(source_location at = source_location::current()) const {
    static_assert(std::is_arithmetic_v<T>);
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(item_as_integer(at));
    else
      return static_cast<T>(item_as_double(at));
  }

  tensor& fill_(double, source_location = source_location::current());  // any dtype
  tensor& zero_(source_location = source_location::current());          // any dtype
  // float32 only: drawn as by randn
  tensor& normal_(double mean = 0, double deviation = 1, source_location = source_location::current());
  // self + alpha * other. float32 only, as the other arithmetic
  tensor& add_(tensor const&, double alpha = 1, source_location = source_location::current());
  tensor& mul_(double, source_location = source_location::current());
  tensor& mul_(tensor const&, source_location = source_location::current());
  tensor& relu_(source_location = source_location::current());

  // New tensors of this dtype, device and kind of memory; contiguous. Values are converted.
  tensor new_empty(weir::shape, source_location = source_location::current()) const;
  tensor new_zeros(weir::shape, source_location = source_location::current()) const;
  tensor new_ones(weir::shape, source_location = source_location::current()) const;
  tensor new_full(weir::shape, double, source_location = source_location::current()) const;
  template <class T>
  tensor new_tensor(std::initializer_list<T> values, source_location at = source_location::current()) const;
  template <class T>
  tensor new_tensor(std::initializer_list<std::initializer_list<T>> rows,
                    source_location at = source_location::current()) const;

  // Formats as torch prints: width and precision follow the values, scientific if they are far apart, and
  // three elements at each edge beyond 1000. Device and dtype have weir's names. Blocks: until the shown
  // values have come from the device.
  std::string str(source_location = source_location::current()) const;

  struct state;

 private:
  friend struct tensor_access;
  tensor new_of(void const* values, weir::shape, weir::dtype, source_location) const;  // converted
  static constexpr int bits16 = -1;
  template <class T>
  static constexpr int code_of() {
    if constexpr (std::is_same_v<T, std::uint16_t>)
      return bits16;
    else {
      static_assert(has_dtype<T>, "no dtype has this C++ type");
      return static_cast<int>(dtype_of<T>);
    }
  }
  void* data_as(int code, source_location) const;
  void* host_as(int code, source_location) const;
  double item_as_double(source_location) const;
  std::int64_t item_as_integer(source_location) const;
  std::shared_ptr<state const> state_;
};

// A strided view uses all bytes from its first to its last element.
memory_use reads(tensor const&) noexcept;
memory_use writes(tensor const&) noexcept;
memory_use updates(tensor const&) noexcept;

// Factories. Throws: invalid_use (a negative extent, a size that overflows), out_of_memory.
tensor empty(shape, tensor_options = {}, source_location = source_location::current());
tensor zeros(shape, tensor_options = {}, source_location = source_location::current());
tensor ones(shape, tensor_options = {}, source_location = source_location::current());
tensor full(shape, double, tensor_options = {}, source_location = source_location::current());
tensor arange(std::int64_t n, tensor_options = {}, source_location = source_location::current());  // 0, 1, … n - 1
// float32 only. Values follow from the seed and from earlier draws on that device: equal draws give equal
// numbers on every device, simulated or not (randn: up to the last bit or two).
tensor rand(shape, tensor_options = {}, source_location = source_location::current());   // uniform in [0, 1)
tensor randn(shape, tensor_options = {}, source_location = source_location::current());  // normal, mean 0, variance 1
// The same on a stream: it becomes the home of the memory and writes the values. Throws also: invalid_use
// (options that name the cpu or another device)
tensor empty(stream_ref, shape, tensor_options = {}, source_location = source_location::current());
tensor zeros(stream_ref, shape, tensor_options = {}, source_location = source_location::current());
tensor ones(stream_ref, shape, tensor_options = {}, source_location = source_location::current());
tensor full(stream_ref, shape, double, tensor_options = {}, source_location = source_location::current());
tensor arange(stream_ref, std::int64_t n, tensor_options = {}, source_location = source_location::current());
tensor rand(stream_ref, shape, tensor_options = {}, source_location = source_location::current());
tensor randn(stream_ref, shape, tensor_options = {}, source_location = source_location::current());
// Seeds every device of the current runtime.
void manual_seed(std::uint64_t, source_location = source_location::current());
// Seeds one device, or the cpu: otherwise all ranks of a process draw the same numbers. Throws: invalid_use (no such
// device)
void manual_seed(std::uint64_t, device, source_location = source_location::current());
namespace detail {
tensor tensor_from(void const* values, shape, dtype, tensor_options, source_location);
tensor tensor_from(stream_ref, void const* values, shape, dtype, tensor_options, source_location);
[[noreturn]] void uneven_rows(size_t first, size_t other, source_location);
template <class T>
struct matrix {  // from a list of rows
  std::unique_ptr<T[]> values;
  shape extents;
  matrix(std::initializer_list<std::initializer_list<T>> rows, source_location at) {
    size_t const wide = rows.size() ? rows.begin()->size() : 0;
    for (auto const& row : rows)
      if (row.size() != wide)
        uneven_rows(wide, row.size(), at);
    values = std::make_unique<T[]>(rows.size() * wide);
    T* to = values.get();
    for (auto const& row : rows)
      to = std::copy(row.begin(), row.end(), to);
    extents = {static_cast<std::int64_t>(rows.size()), static_cast<std::int64_t>(wide)};
  }
};
}  // namespace detail
// One dimension, or rows of equal length. The dtype is that of the values, whatever the options say.
template <class T>
tensor tensor_of(std::initializer_list<T> values, tensor_options o = {},
                 source_location at = source_location::current()) {
  static_assert(has_dtype<T>, "no dtype has this C++ type");
  return detail::tensor_from(values.begin(), {static_cast<std::int64_t>(values.size())}, dtype_of<T>, o, at);
}
template <class T>
tensor tensor_of(std::initializer_list<std::initializer_list<T>> rows, tensor_options o = {},
                 source_location at = source_location::current()) {
  static_assert(has_dtype<T>, "no dtype has this C++ type");
  detail::matrix<T> const m(rows, at);
  return detail::tensor_from(m.values.get(), m.extents, dtype_of<T>, o, at);
}
template <class T>
tensor tensor_of(stream_ref s, std::initializer_list<T> values, tensor_options o = {},
                 source_location at = source_location::current()) {
  static_assert(has_dtype<T>, "no dtype has this C++ type");
  return detail::tensor_from(s, values.begin(), {static_cast<std::int64_t>(values.size())}, dtype_of<T>, o, at);
}
template <class T>
tensor tensor_of(stream_ref s, std::initializer_list<std::initializer_list<T>> rows, tensor_options o = {},
                 source_location at = source_location::current()) {
  static_assert(has_dtype<T>, "no dtype has this C++ type");
  detail::matrix<T> const m(rows, at);
  return detail::tensor_from(s, m.values.get(), m.extents, dtype_of<T>, o, at);
}
template <class T>
tensor tensor::new_tensor(std::initializer_list<T> values, source_location at) const {
  static_assert(has_dtype<T>, "no dtype has this C++ type");
  return new_of(values.begin(), {static_cast<std::int64_t>(values.size())}, dtype_of<T>, at);
}
template <class T>
tensor tensor::new_tensor(std::initializer_list<std::initializer_list<T>> rows, source_location at) const {
  static_assert(has_dtype<T>, "no dtype has this C++ type");
  detail::matrix<T> const m(rows, at);
  return new_of(m.values.get(), m.extents, dtype_of<T>, at);
}
// Same shape, dtype, device and kind of memory; contiguous.
tensor empty_like(tensor const&, source_location = source_location::current());
tensor zeros_like(tensor const&, source_location = source_location::current());
tensor ones_like(tensor const&, source_location = source_location::current());
tensor full_like(tensor const&, double, source_location = source_location::current());
tensor rand_like(tensor const&, source_location = source_location::current());   // float32
tensor randn_like(tensor const&, source_location = source_location::current());  // float32
tensor empty_like(stream_ref, tensor const&, source_location = source_location::current());
tensor zeros_like(stream_ref, tensor const&, source_location = source_location::current());
tensor ones_like(stream_ref, tensor const&, source_location = source_location::current());
tensor full_like(stream_ref, tensor const&, double, source_location = source_location::current());
tensor rand_like(stream_ref, tensor const&, source_location = source_location::current());   // float32
tensor randn_like(stream_ref, tensor const&, source_location = source_location::current());  // float32

// float32 only, same shapes. Throws: invalid_use naming both shapes, or both devices.
tensor add(tensor const&, tensor const&, source_location = source_location::current());
tensor mul(tensor const&, tensor const&, source_location = source_location::current());
tensor relu(tensor const&, source_location = source_location::current());
// the same on every machine, up to the last bit or two
tensor sin(tensor const&, source_location = source_location::current());
// Of all elements, float32 or float64; the result has no extents. Summed in float64 in an order that depends
// only on the number of elements: the same bits on every machine.
tensor sum(tensor const&, source_location = source_location::current());
tensor mean(tensor const&, source_location = source_location::current());

// Whether products of float32 tensors on GPUs may read their factors as TF32, with 10 bits of fraction. They
// are then several times as fast. Of the process; no by default. Simulated devices never do.
void allow_tf32(bool) noexcept;
bool tf32_is_allowed() noexcept;

// Products of two dimensions, or of three: one for each index of the first, at once. float32 in full
// precision, unless TF32 is allowed; float16 by float16 and bfloat16 by bfloat16, summed in float32.
// `transposed` names the operands read transposed. A t() view is read without a copy, too.
enum class transposed : std::uint8_t { none, left, right, both };
tensor matmul(tensor const&, tensor const&, transposed = transposed::none,
              source_location = source_location::current());
// Computes out = product + beta * out. With beta 0, out is not read. Allocates nothing, except the library's
// workspace on a GPU. out has the operands' dtype (with beta, a GPU may also round the product) or float32.
// Requires: out shares no element with the operands.
void matmul_out(tensor& out, tensor const&, tensor const&, transposed = transposed::none, double beta = 0,
                source_location = source_location::current());

std::ostream& operator<<(std::ostream&, tensor const&);  // str()

}  // namespace weir
