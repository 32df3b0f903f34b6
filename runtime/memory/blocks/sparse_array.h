// A zeroed array whose pages the system provides only where they are touched.
// Threads: as a plain array.
#pragma once
#include <cstdlib>
#include <memory>
#include <new>
#include <type_traits>

namespace weir::memory {

template <class T>
class sparse_array {
 public:
  sparse_array() noexcept = default;
  explicit sparse_array(std::size_t n) : data_(static_cast<T*>(std::calloc(n ? n : 1, sizeof(T)))) {
    if (!data_)
      throw std::bad_alloc();
  }
  T& operator[](std::size_t i) const noexcept { return data_.get()[i]; }

 private:
  struct release {
    void operator()(T* p) const noexcept { std::free(p); }
  };
  static_assert(std::is_trivially_destructible_v<T>);
  std::unique_ptr<T, release> data_;
};

}  // namespace weir::memory
