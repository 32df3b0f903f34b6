// weir/launch.h: your own work on a weir stream, on both drivers. What a piece of work declares to use is
// kept alive until the work is complete, whatever stream the memory came from,
// and is what a race check and a timeline read.
// Threads: any; two threads that launch on one stream decide between them who comes first.
#pragma once
#include <concepts>
#include <functional>
#include <initializer_list>
#include <span>
#include <type_traits>
#include <utility>

#include "weir/memory.h"

namespace weir {

enum class access_mode : std::uint8_t { read, write, update };
struct memory_use {
  void const* address;  // null: nothing
  access_mode how;
  size_t bytes = 0;     // from address on; 0: to the end of its block. Needed for memory that weir does not know
};
inline memory_use reads(void const* p, size_t bytes = 0) noexcept { return {p, access_mode::read, bytes}; }
inline memory_use writes(void const* p, size_t bytes = 0) noexcept { return {p, access_mode::write, bytes}; }
inline memory_use updates(void const* p, size_t bytes = 0) noexcept { return {p, access_mode::update, bytes}; }
template <class T> concept has_data = requires(T const& t) { { t.data() } -> std::convertible_to<void const*>; };
template <class T>
concept has_elements = requires(T const& t) {
  t.begin();
  { t.size() } -> std::convertible_to<size_t>;
  sizeof(*t.data());
};
namespace detail {
template <class T> memory_use use_of(T const& t, access_mode how) noexcept {
  void const* const p = t.data();
  // a vector, span, array: as much as it says
  if constexpr (has_elements<T>) return {t.size() ? p : nullptr, how, t.size() * sizeof(*t.data())};
  else return {p, how};
}
}  // namespace detail
template <has_data T> memory_use reads(T const& t) noexcept { return detail::use_of(t, access_mode::read); }
template <has_data T> memory_use writes(T const& t) noexcept { return detail::use_of(t, access_mode::write); }
template <has_data T> memory_use updates(T const& t) noexcept { return detail::use_of(t, access_mode::update); }

class memory_uses {  // a braced list, or a span, vector or array of them. Borrows: a parameter, never a variable
 public:
  memory_uses(std::initializer_list<memory_use> list) noexcept : list_(list.begin(), list.size()) {}
  template <class Range> requires std::convertible_to<Range const&, std::span<memory_use const>>
  memory_uses(Range const& list) noexcept : list_(list) {}
  std::span<memory_use const> all() const noexcept { return list_; }

 private:
  std::span<memory_use const> list_;
};

namespace detail {
struct queued {
  void (*run)(void*);   // once for each time the stream gets there
  void (*drop)(void*);  // exactly once
  void* state;
};
// checks and records the uses. true: simulated
bool begin_work(stream_ref, std::span<memory_use const>, source_location);
// simulated: drops also when it throws
void queue_work(stream_ref, std::span<memory_use const>, queued, source_location);
// on_gpu threw: it may have given some work all the same
void abandon_work(stream_ref, std::span<memory_use const>) noexcept;
void end_work(stream_ref, std::span<memory_use const>, source_location);  // launch_blocking waits here
}  // namespace detail

// on_gpu(CUstream_st*): called now, once, with the stream's device current:
// <<<>>>, cuBLAS, NCCL, cuFFT. What it throws comes through.
// on_host(): runs when the simulated stream gets there, on a thread of the machine.
// Requires of on_host: captures by value, touches device addresses only through what `uses` declares, calls
// nothing of weir, throws nothing. An exception out of it ends the process:
// the message names this call's line, the stream and what().
// Uses: device blocks of this runtime and pinned blocks; what the caller keeps alive: shared and opened
// buffers, pinned ranges, and, with its bytes, memory that is not weir's.
// Throws: invalid_use (a freed block; more than a block holds;
// a block of another device without peer access; memory that weir does
//         not know, without bytes; an external stream whose registration ended), device_lost, driver_error.
//         Blocks: only with options::launch_blocking.
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
      on_gpu(s.native(at));
    } catch (...) {
      detail::abandon_work(s, u.all());
      throw;
    }
  }
  detail::end_work(s, u.all(), at);
}

// Host code in stream order, on both drivers; it holds its stream. After a device is lost it never runs.
// Requires: no weir and no CUDA call inside, and no exception out of it: one ends the process, on both
// drivers, and the message names this call's line, the stream and what(). Throws: invalid_use (an empty
// function), device_lost, driver_error.
void launch_host(stream_ref, std::function<void()>, source_location = source_location::current());

}  // namespace weir
