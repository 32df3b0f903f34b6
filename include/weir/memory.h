// weir/memory.h: blocks of device and host memory. `buffer` owns one; `allocate` and `deallocate` below it.
// Threads: any; one block is changed by one thread at a time.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include "weir/stream.h"

namespace weir {
// alignment by size: 512 B from 16 KiB up, below it the largest power of two that divides the size rounded up
// to 16 B
inline constexpr size_t default_alignment = 0;

// Device memory of the stream's device. The stream is the block's home: its work may use the block at once,
// and a block given back serves the home stream's next allocations at once, however much work is still under
// way. Zero bytes are valid and freeable. Throws: invalid_use (alignment no power of two or above 2 MiB, a
// size that overflowed), out_of_memory, device_lost, driver_error
// Without a stream: the current one.
void* allocate(size_t bytes, size_t alignment = default_alignment, source_location = source_location::current());
inline void* allocate(stream_ref, size_t bytes, size_t alignment = default_alignment,
                      source_location = source_location::current());
// Null does nothing. Device and pinned blocks. Throws: invalid_use (freed twice, foreign, interior), naming
// what it is instead; nothing has changed then
inline void deallocate(void*, source_location = source_location::current());
// The same, and that stream has used the block up to here.
void deallocate(stream_ref last_use, void*, source_location = source_location::current());
// Work of that stream uses the block too: its memory serves others only after what that stream has been given
// when it is freed. Interior addresses are fine. No driver call. Throws: invalid_use (no live block)
void record_stream(void const*, stream_ref, source_location = source_location::current());

// What this thread keeps of small blocks serves at once, without anybody's line, while no history is kept;
// all else is asked of the allocator.
namespace detail {
void* allocate_quickly(stream_ref, size_t bytes, size_t alignment) noexcept;  // null: not this way
bool deallocate_quickly(void*) noexcept;                                      // false: not this way
void* allocate_slowly(stream_ref, size_t bytes, size_t alignment, source_location);
void deallocate_slowly(void*, source_location);
}  // namespace detail
inline void* allocate(stream_ref s, size_t bytes, size_t alignment, source_location at) {
  if (void* const p = detail::allocate_quickly(s, bytes, alignment)) [[likely]] return p;
  return detail::allocate_slowly(s, bytes, alignment, at);
}
inline void deallocate(void* p, source_location at) {
  if (!detail::deallocate_quickly(p)) [[unlikely]] detail::deallocate_slowly(p, at);
}

struct block_info {
  device on;                       // cpu: host memory
  memory_kind kind;
  void* base;
  size_t bytes;                    // as requested
  std::optional<stream_ref> home;  // of device memory
};
// of any live device or pinned block of this process, interior addresses too
std::optional<block_info> find_block(void const*) noexcept;

struct buffer_options {
  device on = gpu;                               // cpu: host memory, pageable unless kind says pinned
  memory_kind kind = memory_kind::device;
  size_t alignment = default_alignment;
};
class buffer {  // move-only owner of one block
 public:
  buffer() noexcept = default;
  // device memory: on that device's current stream
  explicit buffer(size_t bytes, buffer_options = {}, source_location = source_location::current());
  // device memory of that stream. Throws: as allocate
  explicit buffer(stream_ref, size_t bytes, size_t alignment = default_alignment,
                  source_location = source_location::current());
  ~buffer() { reset(); }
  buffer(buffer&& other) noexcept : data_(other.data_), size_(other.size_), kind_(other.kind_), since_(other.since_) {
    other.forget();
  }
  buffer& operator=(buffer&& other) noexcept {
    if (this == &other) return *this;
    reset();
    data_ = other.data_, size_ = other.size_, kind_ = other.kind_, since_ = other.since_;
    other.forget();
    return *this;
  }
  void* data() const noexcept { return data_; }
  size_t size() const noexcept { return size_; }  // bytes, as requested
  memory_kind kind() const noexcept { return static_cast<memory_kind>(kind_); }
  template <class T> T* data() const noexcept { return static_cast<T*>(data()); }
  // A checker takes this call for a read where a copy to all of that pinned memory is not waited for.
  // For the address alone: data<T>().
  // Throws: invalid_use unless pinned or pageable
  template <class T>
  std::span<T> host(source_location at = source_location::current()) const {
    return {static_cast<T*>(host_data("buffer::host", at)), size() / sizeof(T)};
  }
  block_info info() const noexcept;
  void record_stream(stream_ref, source_location = source_location::current()) const;
  // Hands the block over to another stream:
  // what uses it so far is ordered before that stream's next work. Blocks: no, the stream waits
  void set_stream(stream_ref home, source_location = source_location::current());
  void reset() noexcept;                          // gives the block back now
  [[nodiscard]] void* release() noexcept;         // yours: deallocate() it; a pageable one: std::free()
  // A live device or pinned block, that no buffer owns: release() it first. A buffer that owned it all the
  // same gives nothing back when it ends, and says so on stderr. Throws: invalid_use (no such block;
  // a buffer that adopted it owns it)
  static buffer adopt(void*, source_location = source_location::current());

 private:
  void* host_data(char const* operation, source_location) const;
  void forget() noexcept { data_ = nullptr, size_ = 0, kind_ = 0; }
  void* data_ = nullptr;
  size_t size_ : 62 = 0;
  size_t kind_ : 2 = 0;
  std::uint64_t since_ = 0;  // device and pinned: how many blocks buffers had adopted when this one got its block
};
buffer pinned(size_t bytes, source_location = source_location::current());  // page-locked, near the current device
buffer pin_memory(std::span<std::byte const>, source_location = source_location::current());  // a pinned copy
// Takes that much now, so that the next blocks of as much in all cost no call of the system.
// Throws: out_of_memory; what could be had stays
void reserve_pinned_memory(size_t bytes, source_location = source_location::current());
// Gives cached pinned memory back to the system. Blocks:
// perhaps until all work of all devices is done. Returns: bytes given back
size_t empty_pinned_cache(source_location = source_location::current());
// Memory of yours, page-locked where it lies while this lives:
// copy engines read and write it as they do the pool's. Pages count whole.
class [[nodiscard]] registered_host_memory {
 public:
  // Throws: invalid_use (null, a page that is pinned already, no memory of the host), device_lost,
  // driver_error (the system locks no more)
  explicit registered_host_memory(std::span<std::byte>, source_location = source_location::current());
  // The pages are unlocked now; what the driver refuses is tried again before the next range is pinned. A
  // runtime that ends first unlocks them itself. Blocks: until all work of all devices is done. Requires: the
  // memory is still there, at its runtime's end too
  ~registered_host_memory();
  registered_host_memory(registered_host_memory const&) = delete;
  registered_host_memory& operator=(registered_host_memory const&) = delete;

 private:
  struct state;
  std::unique_ptr<state> state_;  // of no bytes: none
};

// A container's memory that copy engines read and write at full speed: std::vector<float,
// weir::pinned_allocator<float>>.
namespace detail {
// Throws: out_of_memory, invalid_use when the size overflows
void* allocate_pinned(size_t count, size_t size, size_t alignment, source_location);
void deallocate_pinned(void*) noexcept;
}  // namespace detail
template <class T> struct pinned_allocator {
  using value_type = T;
  pinned_allocator() noexcept = default;
  template <class U> pinned_allocator(pinned_allocator<U> const&) noexcept {}
  T* allocate(size_t n) {
    return static_cast<T*>(detail::allocate_pinned(n, sizeof(T), alignof(T), source_location::current()));
  }
  void deallocate(T* p, size_t) noexcept { detail::deallocate_pinned(p); }
  friend bool operator==(pinned_allocator, pinned_allocator) noexcept = default;
};

// Gives cached memory of the device back to the driver. Blocks:
// until what was freed is complete. Returns: bytes given back
size_t empty_cache(device = gpu, source_location = source_location::current());
// of reserved bytes; 0: none
void set_memory_limit(size_t bytes, device = gpu, source_location = source_location::current());
// Throws: invalid_use outside 0 < of_total <= 1
void set_per_process_memory_fraction(double of_total, device = gpu, source_location = source_location::current());

// Called before an allocation fails, with no lock held: free what you can spare. true:
// something was freed, search again.
using out_of_memory_callback = std::function<bool(memory_report const&)>;
class [[nodiscard]] callback_registration {  // the callback's life; ends before its runtime
 public:
  ~callback_registration();
  callback_registration(callback_registration&&) noexcept;
  callback_registration& operator=(callback_registration&&) = delete;

 private:
  friend callback_registration on_out_of_memory(out_of_memory_callback, int, source_location);
  struct state;
  explicit callback_registration(std::unique_ptr<state>) noexcept;
  std::unique_ptr<state> state_;
};
// Of the current runtime; lower orders are called first. Throws: invalid_use (an empty function)
callback_registration on_out_of_memory(out_of_memory_callback, int order = 0,
                                       source_location = source_location::current());
}  // namespace weir
