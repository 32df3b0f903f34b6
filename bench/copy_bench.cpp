// Host cost and throughput of weir::copy for every pair of memory kinds, beside the driver's own call.
// Threads: one.
#include <benchmark/benchmark.h>

#include <memory>
#include <vector>

#include "runtime/core/parts.h"
#include "streams/pinned/pinned_memory.h"
#include "streams/stream/context.h"
#include "weir/copy.h"
#include "weir/peer.h"

namespace {

using namespace weir;
constexpr size_t large = 256_MiB;

bool two_devices() {
  return device_count() > 1;
}
void skip(benchmark::State& state) {
  state.SkipWithError("one device");
}

// Host time to enqueue one small copy.
template <class Enqueue>
void enqueue_many(benchmark::State& state, stream_ref s, Enqueue enqueue) {
  int given = 0;
  for (auto _ : state) {
    enqueue();
    if (++given % 256 == 0) {
      state.PauseTiming();
      s.synchronize();
      state.ResumeTiming();
    }
  }
  s.synchronize();
}

void small_pinned_to_device_raw(benchmark::State& state) {
  stream s{device(0)};
  buffer to(16_KiB, {.on = device(0)}), from = pinned(16_KiB);
  auto& line = streams::clock_of(s);
  auto& machine = line.owner().machine();
  enqueue_many(state, s, [&] { machine.copy(0, line.handle(), to.data(), from.data(), 16_KiB); });
}
void small_pinned_to_device(benchmark::State& state) {
  stream s{device(0)};
  buffer to(16_KiB, {.on = device(0)}), from = pinned(16_KiB);
  enqueue_many(state, s, [&] { copy(s, to.data(), from.data(), 16_KiB, non_blocking); });
}
void small_pageable_to_device(benchmark::State& state) {
  stream s{device(0)};
  buffer to(16_KiB, {.on = device(0)});
  std::vector<std::byte> from(16_KiB);
  enqueue_many(state, s, [&] { copy(s, to.data(), from.data(), from.size(), non_blocking); });
}
BENCHMARK(small_pinned_to_device_raw);
BENCHMARK(small_pinned_to_device);
BENCHMARK(small_pageable_to_device);

// Throughput of large copies, in bytes per second until completion.
template <class Copy>
void carry(benchmark::State& state, stream_ref s, Copy one) {
  one();
  s.synchronize();
  for (auto _ : state) {
    one();
    s.synchronize();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(large));
}

void pinned_to_device_raw(benchmark::State& state) {
  stream s{device(0)};
  buffer to(large, {.on = device(0)}), from = pinned(large);
  auto& line = streams::clock_of(s);
  carry(state, s, [&] { line.owner().machine().copy(0, line.handle(), to.data(), from.data(), large); });
}
void pinned_to_device(benchmark::State& state) {
  stream s{device(0)};
  buffer to(large, {.on = device(0)}), from = pinned(large);
  carry(state, s, [&] { copy(s, to.data(), from.data(), large, non_blocking); });
}
void device_to_pinned(benchmark::State& state) {
  stream s{device(0)};
  buffer from(large, {.on = device(0)}), to = pinned(large);
  carry(state, s, [&] { copy(s, to.data(), from.data(), large, non_blocking); });
}
void pageable_to_device(benchmark::State& state) {
  stream s{device(0)};
  buffer to(large, {.on = device(0)});
  std::vector<std::byte> from(large, std::byte{1});
  carry(state, s, [&] { copy(s, to.data(), from.data(), large, non_blocking); });
}
void device_to_pageable(benchmark::State& state) {  // the destination's pages have been touched
  stream s{device(0)};
  buffer from(large, {.on = device(0)});
  std::vector<std::byte> to(large, std::byte{1});
  carry(state, s, [&] { copy(s, to.data(), from.data(), large, non_blocking); });
}
void within_a_device(benchmark::State& state) {
  stream s{device(0)};
  buffer from(large, {.on = device(0)}), to(large, {.on = device(0)});
  carry(state, s, [&] { copy(s, to.data(), from.data(), large, non_blocking); });
}
void to_a_peer_not_granted(benchmark::State& state) {
  if (!two_devices())
    return skip(state);
  stream s{device(0)};
  buffer from(large, {.on = device(0)}), to(large, {.on = device(1)});
  auto& line = streams::clock_of(s);
  carry(state, s, [&] { line.owner().machine().copy_peer(0, line.handle(), to.data(), 1, from.data(), 0, large); });
}
void to_a_peer_granted(benchmark::State& state) {
  if (!two_devices())
    return skip(state);
  stream s{device(0)};
  buffer from(large, {.on = device(0)}), to(large, {.on = device(1)});
  enable_peer_access(to.data(), device(0));
  carry(state, s, [&] { copy(s, to.data(), from.data(), large, non_blocking); });
}
void to_a_peer_through_pinned_memory(benchmark::State& state) {
  if (!two_devices())
    return skip(state);
  stream s{device(0)};
  buffer from(large, {.on = device(0)}), to(large, {.on = device(1)});
  route_guard staged(copy_route::staged);
  carry(state, s, [&] { copy(s, to.data(), from.data(), large, non_blocking); });
}
BENCHMARK(pinned_to_device_raw)->UseRealTime();
BENCHMARK(pinned_to_device)->UseRealTime();
BENCHMARK(device_to_pinned)->UseRealTime();
BENCHMARK(pageable_to_device)->UseRealTime();
BENCHMARK(device_to_pageable)->UseRealTime();
BENCHMARK(within_a_device)->UseRealTime();
BENCHMARK(to_a_peer_not_granted)->UseRealTime();
BENCHMARK(to_a_peer_granted)->UseRealTime();
BENCHMARK(to_a_peer_through_pinned_memory)->UseRealTime();

// Allocates and frees 1 GiB of new pinned memory: mapping, touching and registration are included.
void new_pinned_memory(benchmark::State& state) {
  auto& pool = runtime::current().get().part<streams::pinned_memory>();
  for (auto _ : state) {
    pool.deallocate(pool.allocate(1_GiB, default_alignment, source_location::current()), source_location::current());
    state.PauseTiming();
    pool.trim();
    state.ResumeTiming();
  }
}
BENCHMARK(new_pinned_memory)->UseRealTime();

}  // namespace
