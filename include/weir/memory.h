// weir/memory.h: blocks of device and host memory. `buffer` owns one; `allocate` returns a raw one.
// Threads: any; one block is changed by one thread at a time.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include "weir/stream.h"

namespace weir WEIR_API {
// 512 B for sizes from 16 KiB. Below: the largest power of two that divides the size rounded up to 16 B.
inline constexpr size_t default_alignment = 0;

// Allocates device memory of the stream's device. The stream becomes the block's home: its work may use the
// block at once. After a free, the home stream's next allocations may reuse the memory at once, even if work
// is still running. Zero bytes are valid and can be freed. Default stream: the current one.
// Throws: invalid_use (alignment no power of two or above 2 MiB), out_of_memory, device_lost,
// driver_error.
void* allocate(size_t bytes, size_t alignment = default_alignment, source_location = source_location::current());
inline void* allocate(stream_ref, size_t bytes, size_t alignment = default_alignment,
                      source_location = source_location::current());
// Frees a device or pinned block. Null does nothing.
// Throws: invalid_use (freed twice, foreign, interior), naming what the address is; driver_error (inside a
// capture, whose graph cannot keep the block; in a host function, while a capture may use it). Nothing has
// changed then.
inline void deallocate(void*, source_location = source_location::current());
// The same, after declaring that `last_use` has used the block up to this call.
void deallocate(stream_ref last_use, void*, source_location = source_location::current());
// Declares that the stream uses the block: after a free, its memory is reused only after the work enqueued on
// that stream by then. Interior addresses are valid. No driver call. Throws: invalid_use (no live block).
void record_stream(void const*, stream_ref, source_location = source_location::current());

// Fast path: small blocks from this thread's cache, while no history records the caller's line.
namespace detail {
void* allocate_quickly(stream_ref, size_t bytes, size_t alignment) noexcept;  // null: not served here
bool deallocate_quickly(void*) noexcept;                                      // false: not served here
void* allocate_slowly(stream_ref, size_t bytes, size_t alignment, source_location);
void deallocate_slowly(void*, source_location);
}  // namespace detail
inline void* allocate(stream_ref s, size_t bytes, size_t alignment, source_location at) {
  if (void* const p = detail::allocate_quickly(s, bytes, alignment)) [[likely]]
    return p;
  return detail::allocate_slowly(s, bytes, alignment, at);
}
inline void deallocate(void* p, source_location at) {
  if (!detail::deallocate_quickly(p)) [[unlikely]]
    detail::deallocate_slowly(p, at);
}

struct block_info {
  device on;  // cpu: host memory
  memory_kind kind;
  void* base;
  size_t bytes;                    // as requested
  std::optional<stream_ref> home;  // of device memory
};
// Finds any live device or pinned block of this process, by interior addresses too.
std::optional<block_info> find_block(void const*) noexcept;

struct buffer_options {
  device on = gpu;  // cpu: host memory, pageable by default
  memory_kind kind = memory_kind::device;
  size_t alignment = default_alignment;
};
class buffer {  // move-only owner of one block
 public:
  buffer() noexcept = default;
  // device memory: on that device's current stream
  explicit buffer(size_t bytes, buffer_options = {}, source_location = source_location::current());
  // Allocates on that stream. Throws: as allocate
  explicit buffer(stream_ref, size_t bytes, size_t alignment = default_alignment,
                  source_location = source_location::current());
  ~buffer() { reset(); }
  buffer(buffer&& other) noexcept : data_(other.data_), size_(other.size_), kind_(other.kind_), since_(other.since_) {
    other.forget();
  }
  buffer& operator=(buffer&& other) noexcept {
    if (this == &other)
      return *this;
    reset();
    data_ = other.data_, size_ = other.size_, kind_ = other.kind_, since_ = other.since_;
    other.forget();
    return *this;
  }
  void* data() const noexcept { return data_; }
  size_t size() const noexcept { return size_; }  // bytes, as requested
  memory_kind kind() const noexcept { return static_cast<memory_kind>(kind_); }
  template <class T>
  T* data() const noexcept {
    return static_cast<T*>(data());
  }
  // The race checker treats this call as a host read: it reports a copy to this pinned memory that was not
  // waited for. For the address alone use data<T>().
  // Throws: invalid_use unless pinned or pageable
  template <class T>
  std::span<T> host(source_location at = source_location::current()) const {
    return {static_cast<T*>(host_data("buffer::host", at)), size() / sizeof(T)};
  }
  block_info info() const noexcept;
  void record_stream(stream_ref, source_location = source_location::current()) const;
  // Makes `home` the block's home stream. All uses so far are ordered before the next work of `home`. Blocks:
  // the stream, not the host.
  void set_stream(stream_ref home, source_location = source_location::current());
  void reset() noexcept;                   // frees the block now
  [[nodiscard]] void* release() noexcept;  // free it with deallocate(), if pageable with std::free()
  // Takes ownership of a live device or pinned block. Call release() on the buffer that owns it first; a
  // buffer that still owned it frees nothing at its end and warns on stderr.
  // Throws: invalid_use (no such block, or a buffer adopted it before)
  static buffer adopt(void*, source_location = source_location::current());

 private:
  void* host_data(char const* operation, source_location) const;
  void forget() noexcept { data_ = nullptr, size_ = 0, kind_ = 0; }
  void* data_ = nullptr;
  size_t size_ : 62 = 0;
  size_t kind_ : 2 = 0;
  std::uint64_t since_ = 0;  // device and pinned: number of blocks adopted when this buffer got its block
};
// Page-locked, near the current device. A forked child has a copy, as of the heap; before Linux 5.12 none.
buffer pinned(size_t bytes, source_location = source_location::current());
buffer pin_memory(std::span<std::byte const>, source_location = source_location::current());  // a pinned copy
// Reserves pinned memory, so that the next blocks of this total size need no system call. Throws:
// out_of_memory; keeps what it reserved.
void reserve_pinned_memory(size_t bytes, source_location = source_location::current());
// Returns cached pinned memory to the system, in bytes. Blocks: possibly until all devices' work is done.
size_t empty_pinned_cache(source_location = source_location::current());
// Page-locks host memory of the caller during this object's lifetime, so that copy engines access it as
// pinned memory. Rounded out to whole pages.
class [[nodiscard]] registered_host_memory {
 public:
  // Throws: invalid_use (null, a page that is pinned already, not host memory), device_lost, driver_error
  // (the system locks no more)
  explicit registered_host_memory(std::span<std::byte>, source_location = source_location::current());
  // Unlocks the pages; on a refusal, or beside a capture, weir does it before the next range. A runtime that
  // ends first does it. Requires: the memory exists, also at its runtime's end. Blocks: until all devices' work
  // is done.
  ~registered_host_memory();
  registered_host_memory(registered_host_memory const&) = delete;
  registered_host_memory& operator=(registered_host_memory const&) = delete;

 private:
  struct state;
  std::unique_ptr<state> state_;  // null for zero bytes
};

// Container memory for full-speed copies: std::vector<float, weir::pinned_allocator<float>>.
namespace detail {
// Throws: out_of_memory, invalid_use (a size that overflows)
void* allocate_pinned(size_t count, size_t size, size_t alignment, source_location);
void deallocate_pinned(void*) noexcept;
}  // namespace detail
template <class T>
struct pinned_allocator {
  using value_type = T;
  pinned_allocator() noexcept = default;
  template <class U>
  pinned_allocator(pinned_allocator<U> const&) noexcept {}
  T* allocate(size_t n) {
    return static_cast<T*>(detail::allocate_pinned(n, sizeof(T), alignof(T), source_location::current()));
  }
  void deallocate(T* p, size_t) noexcept { detail::deallocate_pinned(p); }
  friend bool operator==(pinned_allocator, pinned_allocator) noexcept = default;
};

// Returns cached memory of the device to the driver, in bytes. Blocks: until freed memory is complete.
size_t empty_cache(device = gpu, source_location = source_location::current());
// Returns what the device's current stream could allocate now, after all recovery steps but callbacks and spills:
// a spill serves more. Memory that waits for work counts, so such an allocation may block for it. Under a limit of
// weir's, allocate(largest) then succeeds and a block of 512 B more is refused, unless another thread allocates
// meanwhile, a spill begins or the driver refuses a call. Without a limit, the answer relies on the device's free memory,
// which other processes may take. Changes nothing: no block is moved, no page mapped. Blocks: allocations of
// a stream while weir reads its memory.
headroom memory_headroom(device = gpu, source_location = source_location::current());
// Limits reserved bytes; 0: no limit. Cached memory above the limit goes back to the device at once, as far
// as the work that used it is complete. Live blocks above it stay, and so does their memory: what they leave
// serves other allocations, and nothing new is reserved. Blocks: as empty_cache on devices that map no
// memory; else no
void set_memory_limit(size_t bytes, device = gpu, source_location = source_location::current());
// The same by a share of the device's memory. Throws: invalid_use outside 0 < of_total <= 1
void set_per_process_memory_fraction(double of_total, device = gpu, source_location = source_location::current());

// Called once before each out_of_memory, whatever memory ran out, with no lock held: the program can free
// memory or raise a limit. report.on is cpu for host memory. Returns: true if it did so: the search is
// repeated. A request that runs out inside a callback calls none.
using out_of_memory_callback = std::function<bool(memory_report const&)>;
class [[nodiscard]] callback_registration {  // unregisters at its end; must end before its runtime
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
// Registers with the current runtime. Lower orders are called first. Throws: invalid_use (an empty function)
callback_registration on_out_of_memory(out_of_memory_callback, int order = 0,
                                       source_location = source_location::current());
}  // namespace weir
