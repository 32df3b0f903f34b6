// weir/memory.h: blocks of device and pinned memory. `buffer` owns one; pools are entered by guards.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include "weir/stream.h"

namespace weir {
inline constexpr size_t natural = 0;  // alignment by size: 512 B from 16 KiB up, below it the largest power of two that divides the size rounded up to 16 B

void* allocate(size_t bytes, size_t alignment = natural, here = here::current());              // current device and stream. Throws: out_of_memory
void* allocate(stream_ref, size_t bytes, size_t alignment = natural, here = here::current());
void deallocate(void*, here = here::current());                       // ordered on the stream it was made on. Throws: invalid_use (double, foreign, interior)
void deallocate(stream_ref last_use, void*, here = here::current());
void record_stream(void const*, stream_ref);                          // also used there. No driver call

struct block_info { device on; memory_kind kind; void* base; size_t bytes; std::optional<stream_ref> home; };
std::optional<block_info> find_block(void const*) noexcept;           // of any weir address, interior too

struct buffer_options { device on = gpu; memory_kind kind = memory_kind::device; size_t alignment = natural; };
class buffer {  // move-only owner of one block
 public:
  buffer() noexcept = default;
  explicit buffer(size_t bytes, buffer_options = {}, here = here::current());
  ~buffer();
  buffer(buffer&&) noexcept; buffer& operator=(buffer&&) noexcept;
  void* data() const noexcept;
  size_t size() const noexcept;                                       // bytes
  template <class T> T* data() const noexcept { return static_cast<T*>(data()); }
  template <class T> std::span<T> host() const;                       // Throws: invalid_use unless pinned or pageable
  block_info info() const noexcept;
  void record_stream(stream_ref) const;
  void rebind(stream_ref home, here = here::current());               // hand over to another stream: it waits on the device, the host does not
  void* release() noexcept;
  static buffer adopt(void*);                                         // of allocate()
 private:
  void* data_ = nullptr; size_t size_ = 0;
};
buffer pinned(size_t bytes, here = here::current());                  // page-locked, from the pool near the current device
buffer pin_memory(std::span<std::byte const>, here = here::current());// a pinned copy

template <class T> struct pinned_allocator {                          // std::vector<float, weir::pinned_allocator<float>>
  using value_type = T;
  T* allocate(size_t n); void deallocate(T*, size_t) noexcept;
  friend bool operator==(pinned_allocator, pinned_allocator) noexcept = default;
};

void empty_cache(device = gpu);
void set_per_process_memory_fraction(double, device = gpu);
void set_memory_limit(size_t bytes, device = gpu);

struct pool_options { device on = gpu; bool exportable = false, deterministic = false; size_t limit = 0; };
class pool {  // torch.cuda.MemPool
 public:
  explicit pool(pool_options = {}); ~pool();
  pool(pool&&) noexcept;
  memory_statistics stats() const; void trim();
};
class [[nodiscard]] pool_guard { public: explicit pool_guard(pool&); ~pool_guard(); pool_guard(pool_guard const&) = delete; };

using out_of_memory_callback = std::function<bool(memory_report const&)>;  // true: I freed something, search again. Called with no lock held
class [[nodiscard]] callback_registration { public: ~callback_registration(); callback_registration(callback_registration&&) noexcept; };
callback_registration on_out_of_memory(out_of_memory_callback, int order = 0);
}
