// weir/launch.h: runs the program's own work on a weir stream, on real and simulated GPUs. A launch declares
// the memory that it uses. weir does not reuse that memory before the work is complete, and the race checker
// and the timeline read the declaration.
// Threads: any. If two threads launch on one stream, their order is undefined unless they synchronize.
#pragma once
#include <concepts>
#include <functional>
#include <initializer_list>
#include <span>
#include <type_traits>
#include <utility>

#include "weir/memory.h"

// Marks a function or lambda that GPUs run too.
#if defined(__CUDACC__)
#define WEIR_HOST_DEVICE __host__ __device__
#else
#define WEIR_HOST_DEVICE
#endif

namespace weir WEIR_API {

enum class access_mode : std::uint8_t { read, write, update };
struct memory_use {
  void const* address;  // null: no use
  access_mode how;
  size_t bytes = 0;  // from `address`; 0: to the end of its block. Required for memory unknown to weir
};
inline memory_use reads(void const* p, size_t bytes = 0) noexcept {
  return {p, access_mode::read, bytes};
}
inline memory_use writes(void const* p, size_t bytes = 0) noexcept {
  return {p, access_mode::write, bytes};
}
inline memory_use updates(void const* p, size_t bytes = 0) noexcept {
  return {p, access_mode::update, bytes};
}
template <class T>
concept has_data = requires(T const& t) {
  { t.data() } -> std::convertible_to<void const*>;
};
template <class T>
concept has_elements = requires(T const& t) {
  t.begin();
  { t.size() } -> std::convertible_to<size_t>;
  sizeof(*t.data());
};
namespace detail {
template <class T>
memory_use use_of(T const& t, access_mode how) noexcept {
  void const* const p = t.data();
  // A vector, span or array declares all of its elements.
  if constexpr (has_elements<T>)
    return {t.size() ? p : nullptr, how, t.size() * sizeof(*t.data())};
  else
    return {p, how};
}
}  // namespace detail
template <has_data T>
memory_use reads(T const& t) noexcept {
  return detail::use_of(t, access_mode::read);
}
template <has_data T>
memory_use writes(T const& t) noexcept {
  return detail::use_of(t, access_mode::write);
}
template <has_data T>
memory_use updates(T const& t) noexcept {
  return detail::use_of(t, access_mode::update);
}

class memory_uses {  // a braced list, or a span, vector or array. Borrows its list: use it as a parameter only
 public:
  memory_uses(std::initializer_list<memory_use> list) noexcept : list_(list.begin(), list.size()) {}
  template <class Range>
  requires std::convertible_to<Range const&, std::span<memory_use const>> memory_uses(Range const& list)
  noexcept : list_(list) {}
  std::span<memory_use const> all() const noexcept { return list_; }

 private:
  std::span<memory_use const> list_;
};

namespace detail {
// Work of the simulated stream. `run` is called each time that the stream reaches it, `drop` exactly once.
struct queued {
  void (*run)(void*);
  void (*drop)(void*);
  void* state;
};
// Checks and records the uses. Returns: true on a simulated device.
bool begin_work(stream_ref, std::span<memory_use const>, source_location);
// Simulated devices only. Calls `drop` also when it throws.
void queue_work(stream_ref, std::span<memory_use const>, queued, source_location);
// The handle for on_gpu, whose work the launch declares. With the stream's device current in CUDA.
CUstream_st* handle_for_work(stream_ref, source_location);
// on_gpu threw; it may still have enqueued work.
void abandon_work(stream_ref, std::span<memory_use const>) noexcept;
void end_work(stream_ref, std::span<memory_use const>, source_location);  // waits here if launch_blocking is set
}  // namespace detail

// Runs work on the stream: on_gpu on a real device, on_host on a simulated one.
// on_gpu(CUstream_st*) is called once, before launch returns, with the stream's device current, to enqueue
// work: <<<>>>, cuBLAS, NCCL, cuFFT. Its exceptions pass through.
// on_host() runs on a thread of the simulated machine, in stream order. An exception from it ends the
// process; the message names this call's line, the stream and what().
// Requires of on_host: captures by value, accesses only declared device memory, makes no weir call, no throw.
// Uses: device blocks of this runtime and pinned blocks. Also memory that the caller keeps alive: exportable
// and imported buffers, registered host memory, and other memory if its size is given.
// Throws: invalid_use (a freed block; more than a block holds; a block of another device without peer access;
// unknown memory without a size; an external stream that is unregistered), device_lost, driver_error.
// Blocks: only with options::launch_blocking.
template <class OnGpu, class OnHost>
void launch(stream_ref s, memory_uses u, OnGpu&& on_gpu, OnHost&& on_host,
            source_location at = source_location::current()) {
  if (detail::begin_work(s, u.all(), at)) {
    using F = std::decay_t<OnHost>;
    detail::queue_work(s, u.all(),
                       {[](void* f) { (*static_cast<F*>(f))(); }, [](void* f) { delete static_cast<F*>(f); },
                        new F(std::forward<OnHost>(on_host))},
                       at);
  } else {
    try {
      on_gpu(detail::handle_for_work(s, at));
    } catch (...) {
      detail::abandon_work(s, u.all());
      throw;
    }
  }
  detail::end_work(s, u.all(), at);
}

// Runs a host function in stream order, on real and simulated devices. The stream waits for it. After a
// device is lost it never runs.
// Requires: the function makes no weir or CUDA call and throws nothing. An exception ends the process; the
// message names this call's line, the stream and what().
// Throws: invalid_use (an empty function), device_lost, driver_error.
void launch_host(stream_ref, std::function<void()>, source_location = source_location::current());

}  // namespace weir
