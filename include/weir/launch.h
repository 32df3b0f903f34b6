// weir/launch.h: your own work on a weir stream, on both drivers. Declaring what it uses is what record_stream, the
// race check and the timeline read; a use on a stream that is not the block's home is recorded for you.
#pragma once
#include <initializer_list>
#include <type_traits>
#include <utility>
#include "weir/memory.h"

namespace weir {
enum class access : std::uint8_t { read, write, update };
struct use { void const* address; access how; };
inline use reads(void const* p) noexcept { return {p, access::read}; }
inline use writes(void const* p) noexcept { return {p, access::write}; }
inline use updates(void const* p) noexcept { return {p, access::update}; }
template <class T> requires requires(T const& t) { t.data(); } use reads(T const& t) noexcept { return reads(t.data()); }
template <class T> requires requires(T const& t) { t.data(); } use writes(T const& t) noexcept { return writes(t.data()); }
template <class T> requires requires(T const& t) { t.data(); } use updates(T const& t) noexcept { return updates(t.data()); }

namespace detail {
struct queued { void (*run)(void*); void (*drop)(void*); void* state; };       // run many times when captured
bool begin_work(stream_ref, std::initializer_list<use>, here);                 // true: simulated
void queue_work(stream_ref, queued);
void end_work(stream_ref, here);                                               // launch_blocking waits here; sticky errors surface
}

// on_gpu(cudaStream_t): called now, with the device current: <<<>>>, cuBLAS, NCCL, cuFFT.
// on_host(): runs when the simulated stream gets there. Requires: captures by value; touches device addresses only through `uses`.
template <class OnGpu, class OnHost>
void launch(stream_ref s, std::initializer_list<use> uses, OnGpu&& on_gpu, OnHost&& on_host, here at = here::current()) {
  if (detail::begin_work(s, uses, at)) {
    using F = std::decay_t<OnHost>;
    detail::queue_work(s, {[](void* f) { (*static_cast<F*>(f))(); }, [](void* f) { delete static_cast<F*>(f); }, new F(std::forward<OnHost>(on_host))});
  } else {
    on_gpu(s.native());
  }
  detail::end_work(s, at);
}
// host code in stream order, on both drivers (cudaLaunchHostFunc). Requires: no weir and no CUDA call inside
void launch_host(stream_ref, std::function<void()>, here = here::current());
}
