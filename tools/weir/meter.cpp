// Measures the time of driver calls, and models it by a table measured on an H200 (CUDA 13.0, driver 580).
// Threads: as in meter.h.
#include "meter.h"

#include <algorithm>

namespace weir::tool {
namespace {

// Microseconds per call.
constexpr double reserve_us = 14, create_us = 12, map_us = 1, unmap_us = 17;
constexpr double record_us = 0.164, query_us = 0.158, wait_us = 0.131, stream_query_us = 0.198, capturing_us = 0.079,
                 event_pair_us = 0.228;
constexpr double host_wait_us = 2;  // for work that is complete
constexpr double memory_us = 1;     // not measured; assumed to be a small call

double in_mib(std::size_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}
// 25 µs up to 64 MiB, 80 µs for 256 MiB.
double grant_us(std::size_t bytes) {
  return 25 + std::max(0.0, in_mib(bytes) - 64) * 55 / 192;
}
// 13 µs for 2 MiB, 143 µs for 512 MiB.
double release_us(std::size_t bytes) {
  return 13 + std::max(0.0, in_mib(bytes) - 2) * 130 / 510;
}
// cudaMalloc and cudaFree together: 59 µs for 2 MiB, 231 µs for 512 MiB. Each gets half.
double segment_us(std::size_t bytes) {
  return (59 + std::max(0.0, in_mib(bytes) - 2) * 172 / 510) / 2;
}

}  // namespace

template <class Call>
auto meter::timed(double modelled_us, Call call) {
  modelled_ns_.fetch_add(static_cast<std::int64_t>(modelled_us * 1e3), base::memory_order_relaxed);
  std::uint64_t const from = base::ticks();  // half the cost of reading the clock; the reader converts
  auto out = call();
  spent_ticks_.fetch_add(base::ticks() - from, base::memory_order_relaxed);
  return out;
}

meter::reading meter::read() const noexcept {
  auto const ticks = static_cast<double>(base::ticks() - first_ticks_),
             ns = static_cast<double>(base::now_ns() - first_ns_);
  double const ns_per_tick = ticks > 0 ? ns / ticks : 0;
  return {static_cast<std::int64_t>(static_cast<double>(spent_ticks_.load()) * ns_per_tick), modelled_ns_.load(),
          created_.load(), moved_.load()};
}

weir::driver::result<weir::driver::address> meter::reserve(std::size_t bytes, std::size_t alignment) {
  return timed(reserve_us, [&] { return fault_injector::reserve(bytes, alignment); });
}
weir::driver::result<weir::driver::memory_handle> meter::create(int device, std::size_t bytes) {
  return timed(create_us, [&] {
    auto const made = fault_injector::create(device, bytes);
    if (made.ok()) {
      created_.fetch_add(1);
      (*handles_.lock())[static_cast<std::uint64_t>(made.value)] = {bytes};
    }
    return made;
  });
}
weir::driver::status meter::release(weir::driver::memory_handle h) {
  std::size_t bytes = 0;
  auto const s = timed(0, [&] {
    {
      auto handles = handles_.lock();
      bytes = (*handles)[static_cast<std::uint64_t>(h)].bytes;
    }
    return fault_injector::release(h);
  });
  modelled_ns_.fetch_add(static_cast<std::int64_t>(release_us(bytes) * 1e3), base::memory_order_relaxed);
  return s;
}
weir::driver::status meter::map(weir::driver::address at, std::size_t bytes, weir::driver::memory_handle h) {
  return timed(map_us, [&] {
    auto const s = fault_injector::map(at, bytes, h);
    if (s.ok()) {
      auto handles = handles_.lock();
      moved_.fetch_add(std::exchange((*handles)[static_cast<std::uint64_t>(h)].mapped, true));
    }
    return s;
  });
}
weir::driver::status meter::unmap(weir::driver::address at, std::size_t bytes) {
  return timed(unmap_us, [&] { return fault_injector::unmap(at, bytes); });
}
weir::driver::status meter::grant(weir::driver::address at, std::size_t bytes, int device) {
  return timed(grant_us(bytes), [&] { return fault_injector::grant(at, bytes, device); });
}
weir::driver::result<weir::driver::address> meter::create_segment(int device, std::size_t bytes) {
  return timed(segment_us(bytes), [&] {
    auto const made = fault_injector::create_segment(device, bytes);
    if (made.ok())
      created_.fetch_add(1);
    return made;
  });
}
weir::driver::status meter::release_segment(int device, weir::driver::address at) {
  return timed(segment_us(0), [&] { return fault_injector::release_segment(device, at); });
}
weir::driver::result<weir::driver::memory_info> meter::memory(int device) {
  return timed(memory_us, [&] { return fault_injector::memory(device); });
}
weir::driver::status meter::query_stream(int device, weir::driver::stream_handle s) {
  return timed(stream_query_us, [&] { return fault_injector::query_stream(device, s); });
}
weir::driver::status meter::synchronize_stream(int device, weir::driver::stream_handle s) {
  return timed(host_wait_us, [&] { return fault_injector::synchronize_stream(device, s); });
}
weir::driver::result<bool> meter::capturing(int device, weir::driver::stream_handle s) {
  return timed(capturing_us, [&] { return fault_injector::capturing(device, s); });
}
weir::driver::result<weir::driver::event_handle> meter::create_event(int device, weir::driver::event_kind k) {
  return timed(event_pair_us / 2, [&] { return fault_injector::create_event(device, k); });
}
weir::driver::status meter::destroy_event(int device, weir::driver::event_handle e) {
  return timed(event_pair_us / 2, [&] { return fault_injector::destroy_event(device, e); });
}
weir::driver::status meter::record(int device, weir::driver::stream_handle s, weir::driver::event_handle e) {
  return timed(record_us, [&] { return fault_injector::record(device, s, e); });
}
weir::driver::status meter::wait(int device, weir::driver::stream_handle s, weir::driver::event_handle e) {
  return timed(wait_us, [&] { return fault_injector::wait(device, s, e); });
}
weir::driver::status meter::query_event(weir::driver::event_handle e) {
  return timed(query_us, [&] { return fault_injector::query_event(e); });
}
weir::driver::status meter::synchronize_event(weir::driver::event_handle e) {
  return timed(host_wait_us, [&] { return fault_injector::synchronize_event(e); });
}
weir::driver::status meter::synchronize_device(int device) {
  return timed(host_wait_us, [&] { return fault_injector::synchronize_device(device); });
}
weir::driver::result<weir::driver::gate_handle> meter::hold(int device, weir::driver::stream_handle s) {
  return timed(0, [&] { return fault_injector::hold(device, s); });
}
weir::driver::status meter::open_gate(weir::driver::gate_handle g) {
  return timed(0, [&] { return fault_injector::open_gate(g); });
}

}  // namespace weir::tool
