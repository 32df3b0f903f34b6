// weir/tensor.h: what the memory needs and no more: a shared storage and how to read it. No autograd, no broadcasting.
#pragma once
#include <array>
#include <initializer_list>
#include <iosfwd>
#include "weir/launch.h"

namespace weir {
class shape {  // up to 8 extents, no heap
 public:
  static constexpr int max_rank = 8;
  constexpr shape(std::initializer_list<std::int64_t> e) noexcept { for (auto x : e) at_[rank_++ & 7] = x; }
  constexpr int rank() const noexcept { return rank_; }
  constexpr std::int64_t operator[](int i) const noexcept { return at_[i]; }
  std::int64_t numel() const;                                // Throws: invalid_use on overflow or a negative extent
  friend constexpr bool operator==(shape const&, shape const&) noexcept = default;
 private:
  std::array<std::int64_t, max_rank> at_{}; int rank_ = 0;
};
using strides = shape;                                       // in elements

struct tensor_options { dtype type = float32; device on = gpu; memory_kind kind = memory_kind::device; };  // on = cpu: pageable unless kind says pinned

class storage {  // reference-counted block; several tensors may look at it. Threads: the count is atomic, the bytes are yours
 public:
  void* data() const noexcept; size_t nbytes() const noexcept; weir::device device() const noexcept; memory_kind kind() const noexcept;
  long use_count() const noexcept;
  std::uint64_t version() const noexcept;                    // up by one at each in-place operation: a tape can tell that a saved value has changed
  friend bool operator==(storage const&, storage const&) noexcept = default;
 private:
  struct state; state* state_ = nullptr;
};

class tensor {
 public:
  tensor() noexcept = default;                               // undefined; defined() is false
  static tensor view_of(buffer, shape, dtype);               // takes the buffer
  static tensor borrow(void*, shape, dtype, device);         // foreign memory; the caller keeps it alive
  bool defined() const noexcept;
  weir::shape const& shape() const noexcept; weir::strides const& strides() const noexcept; weir::dtype dtype() const noexcept; weir::device device() const noexcept;
  std::int64_t numel() const noexcept; size_t nbytes() const noexcept; std::int64_t size(int dim) const; int dim() const noexcept;
  weir::storage const& storage() const noexcept; std::int64_t storage_offset() const noexcept;
  void* data() const noexcept;
  template <class T> T* data() const;                        // Throws: invalid_use when T is not the dtype
  template <class T> std::span<T> host() const;              // Throws: invalid_use on device memory or a non-contiguous view
  bool is_contiguous() const noexcept; bool is_pinned() const noexcept;

  tensor view(weir::shape) const;                            // shares. Throws: invalid_use, with the stride that forbids it; one extent may be -1
  tensor reshape(weir::shape) const;                         // shares or copies
  tensor transpose(int a, int b) const; tensor t() const; tensor slice(int dim, std::int64_t from, std::int64_t to) const; tensor operator[](std::int64_t i) const;
  tensor contiguous() const; tensor clone() const; tensor detach() const;
  tensor to(weir::device, blocking = blocking::yes, here = here::current()) const; tensor to(weir::dtype, here = here::current()) const;
  tensor gpu(blocking = blocking::yes, here = here::current()) const; tensor cpu(here = here::current()) const; tensor pin_memory(here = here::current()) const;
  stamp copy_(tensor const& src, blocking = blocking::yes, here = here::current());
  void record_stream(stream_ref) const;
  template <class T> T item() const;                         // Blocks: host
  tensor new_empty(weir::shape, here = here::current()) const; tensor new_zeros(weir::shape, here = here::current()) const; tensor new_full(weir::shape, double, here = here::current()) const;

  tensor& fill_(double); tensor& zero_(); tensor& add_(tensor const&, double alpha = 1); tensor& mul_(double); tensor& relu_(); tensor& normal_(double mean = 0, double std = 1);
 private:
  struct state; std::shared_ptr<state> state_;
};
std::ostream& operator<<(std::ostream&, tensor const&);      // Blocks: host. As torch prints

tensor empty(shape, tensor_options = {}, here = here::current());
tensor zeros(shape, tensor_options = {}, here = here::current());
tensor ones(shape, tensor_options = {}, here = here::current());
tensor full(shape, double, tensor_options = {}, here = here::current());
tensor arange(std::int64_t n, tensor_options = {}, here = here::current());
tensor rand(shape, tensor_options = {}, here = here::current());
tensor randn(shape, tensor_options = {}, here = here::current());
template <class T> tensor tensor_of(std::initializer_list<T>, tensor_options = {}, here = here::current());
tensor empty_like(tensor const&, here = here::current()); tensor zeros_like(tensor const&, here = here::current()); tensor ones_like(tensor const&, here = here::current());
void manual_seed(std::uint64_t);

tensor add(tensor const&, tensor const&); tensor mul(tensor const&, tensor const&); tensor sin(tensor const&); tensor relu(tensor const&);
tensor sum(tensor const&); tensor mean(tensor const&);
enum class transposed : std::uint8_t { none, left, right, both };
tensor matmul(tensor const&, tensor const&, transposed = transposed::none);
void matmul_out(tensor& out, tensor const&, tensor const&, transposed = transposed::none, double beta = 0);  // a trainer allocates nothing in a step
}
