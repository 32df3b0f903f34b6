// weir/array.h: array<T> owns elements of one type in device memory, and knows the stream that they are used
// on, as RMM's device_uvector does. Elements are uninitialized until they are written.
// Threads: one object on one thread at a time.
//
// Work on another stream first waits for stream(), and is declared: launch and copy do it for reads(a) and
// writes(a). Or set_stream hands the array over.
#pragma once
#include <bit>
#include <limits>

#include "weir/collective.h"
#include "weir/tensor.h"

namespace weir WEIR_API {

template <class T>
class array {
  static_assert(std::is_trivially_copyable_v<T> && !std::is_const_v<T>, "elements are copied as bytes");

 public:
  using value_type = T;
  using iterator = T*;  // of device memory: for kernels, and algorithms that run on the device
  using const_iterator = T const*;
  static constexpr size_t max_size() noexcept { return std::numeric_limits<std::ptrdiff_t>::max() / sizeof(T); }

  // Throws: invalid_use (more than max_size() elements), as allocate
  explicit array(stream_ref on, size_t size = 0, source_location at = source_location::current())
      : stream_(on), memory_(on, size, at), size_(size) {}
  explicit array(size_t size = 0, source_location at = source_location::current())
      : array(current_stream(gpu, at), size, at) {}
  // A copy of these elements, in host or device memory, made on the stream. Pageable memory has been read on
  // return.
  array(stream_ref on, std::span<T const> from, source_location at = source_location::current())
      : array(on, from.size(), at) {
    if (size_)
      copy(stream_, data(), from.data(), size_bytes(), non_blocking, at);
  }
  array(array&& other) noexcept
      : stream_(other.stream_), memory_(std::move(other.memory_)), size_(std::exchange(other.size_, 0)) {}
  array& operator=(array&& other) noexcept {  // also takes over its stream
    stream_ = other.stream_;
    memory_ = std::move(other.memory_);
    size_ = &other == this ? size_ : std::exchange(other.size_, 0);
    return *this;
  }
  // A copy on that stream, made after the work of this array's stream.
  array clone(stream_ref on, source_location at = source_location::current()) const {
    if (on.device() == stream_.device())
      on.wait(stream_, at);
    return array(on, std::span<T const>(*this), at);
  }
  array clone(source_location at = source_location::current()) const { return clone(stream_, at); }

  T* data() noexcept { return memory_.data(); }
  T const* data() const noexcept { return memory_.data(); }
  size_t size() const noexcept { return size_; }
  size_t size_bytes() const noexcept { return size_ * sizeof(T); }
  bool empty() const noexcept { return size_ == 0; }
  size_t capacity() const noexcept { return memory_.count(); }  // elements
  T* begin() noexcept { return data(); }
  T* end() noexcept { return data() + size_; }
  T const* begin() const noexcept { return data(); }
  T const* end() const noexcept { return data() + size_; }
  operator std::span<T>() noexcept { return {data(), size_}; }
  operator std::span<T const>() const noexcept { return {data(), size_}; }
  operator device_span() noexcept requires has_dtype<T> {  // for collectives
    return {data(), static_cast<std::int64_t>(size_), dtype_of<T>};
  }

  // The first min(size(), n) elements stay. More than capacity() allocates n and moves them, on the stream.
  // Throws: as the constructor; the array is then unchanged.
  void resize(size_t n, source_location at = source_location::current()) {
    if (n > capacity())
      move_to(n, at);
    size_ = n;
  }
  void reserve(size_t n, source_location at = source_location::current()) {
    if (n > capacity())
      move_to(n, at);
  }
  void shrink_to_fit(source_location at = source_location::current()) {
    if (size_ < capacity())
      move_to(size_, at);
  }

  // Blocks: host, until the stream has reached the copy. Throws: invalid_use (no such element)
  T element(size_t i, source_location at = source_location::current()) const {
    require_element(i, "array::element", at);
    std::array<std::byte, sizeof(T)> bytes;
    copy(stream_, bytes.data(), data() + i, sizeof(T), blocking::yes, at);
    return std::bit_cast<T>(bytes);
  }
  T front(source_location at = source_location::current()) const { return element(0, at); }
  T back(source_location at = source_location::current()) const { return element(size_ - 1, at); }
  // On the stream; the value has been read on return. Throws: invalid_use (no such element)
  void set_element(size_t i, T const& value, source_location at = source_location::current()) {
    require_element(i, "array::set_element", at);
    copy(stream_, data() + i, &value, sizeof(T), non_blocking, at);
  }

  stream_ref stream() const noexcept { return stream_; }
  // The next use is on this stream: all uses so far come before it. Blocks: the stream, not the host.
  // Throws: invalid_use (of another device)
  void set_stream(stream_ref next, source_location at = source_location::current()) {
    if (data())
      memory_.set_stream(next, at);
    stream_ = next;
  }

  // Gives the memory to a tensor, of this shape or of one dimension. The array is then empty.
  // Throws: invalid_use (more elements than size()); the array is then unchanged.
  tensor to_tensor(weir::shape s, source_location at = source_location::current()) && requires has_dtype<T> {
    if (s.numel(at) > static_cast<std::int64_t>(size_))
      throw invalid_use("array::to_tensor", std::to_string(size_) + " elements as " + s.str(),
                        "Ask for no more elements than the array has", at, error_id{127});
    size_ = 0;
    if (!data())
      return weir::empty(stream_, s, {.dtype = dtype_of<T>}, at);
    return tensor::from_buffer(memory_.take(), s, dtype_of<T>, at);
  }
  tensor to_tensor(source_location at = source_location::current()) && requires has_dtype<T> {
    return std::move(*this).to_tensor({static_cast<std::int64_t>(size_)}, at);
  }
  // A tensor over the array's memory. Requires: the array outlives it, and does not grow meanwhile
  tensor as_tensor(source_location at = source_location::current()) requires has_dtype<T> {
    static char none;  // a valid address for no elements
    return tensor::from_blob(data() ? static_cast<void*>(data()) : &none, {static_cast<std::int64_t>(size_)},
                             dtype_of<T>, stream_.device(), at);
  }

 private:
  class memory {  // a buffer of so many elements; none of no elements
   public:
    memory(stream_ref on, size_t n, source_location at) {
      if (n > max_size())
        throw invalid_use("array", std::to_string(n) + " elements of " + std::to_string(sizeof(T)) + " B",
                          "The size has overflowed, or was negative: check what it was made from", at, error_id{128});
      if (n)
        block_ = buffer(on, n * sizeof(T), default_alignment, at);
    }
    T* data() const noexcept { return block_.data<T>(); }
    size_t count() const noexcept { return block_.size() / sizeof(T); }
    void set_stream(stream_ref next, source_location at) { block_.set_stream(next, at); }
    buffer take() noexcept { return std::move(block_); }

   private:
    buffer block_;
  };

  void move_to(size_t n, source_location at) {
    memory next(stream_, n, at);
    if (size_ && n)
      copy(stream_, next.data(), data(), std::min(size_, n) * sizeof(T), non_blocking, at);
    memory_ = std::move(next);
  }
  void require_element(size_t i, char const* operation, source_location at) const {
    if (i < size_)
      return;
    throw invalid_use(operation, "element " + std::to_string(i) + " of " + std::to_string(size_),
                      "Elements count from 0 to size() - 1", at, error_id{129});
  }

  stream_ref stream_;
  memory memory_;
  size_t size_;
};

}  // namespace weir
