// Cost of sharing memory with another process: create, send, open, signal. This process plays both ends.
// Threads: one. Select with --benchmark_filter=share
#include <benchmark/benchmark.h>

#include "peer/share/exports.h"
#include "runtime/base/os_socket.h"
#include "runtime/core/parts.h"
#include "weir/device.h"

namespace {

using namespace weir;

struct both_ends {
  std::pair<int, int> sockets = os::make_sockets();
  share_channel here{sockets.first}, there{sockets.second};
};

// Creates, maps and grants new memory, then unmaps and releases it. range(0): bytes.
void share_make(benchmark::State& state) {
  auto& lent = runtime::current().get().part<peer::exports>();
  for (auto _ : state) {
    exportable_buffer(static_cast<size_t>(state.range(0))).reset();
    benchmark::DoNotOptimize(lent.forget_idle());
  }
}
BENCHMARK(share_make)->Arg(2 << 20)->Arg(256 << 20)->Unit(benchmark::kMicrosecond)->UseRealTime();

// Reuses memory that an earlier buffer returned.
void share_make_again(benchmark::State& state) {
  exportable_buffer(2_MiB).reset();
  for (auto _ : state)
    exportable_buffer(2_MiB).reset();
}
BENCHMARK(share_make_again)->Unit(benchmark::kMicrosecond)->UseRealTime();

// Sends a buffer, opens it for the first time and releases it, which unmaps it. range(0): bytes.
void share_open(benchmark::State& state) {
  both_ends line;
  auto const s = default_stream();
  auto& lent = runtime::current().get().part<peer::exports>();
  for (auto _ : state) {
    state.PauseTiming();
    exportable_buffer b(static_cast<size_t>(state.range(0)));
    state.ResumeTiming();
    line.here.send(b, s);
    line.there.receive().release(s);
    state.PauseTiming();
    b.reset();
    benchmark::DoNotOptimize(lent.forget_idle());
    state.ResumeTiming();
  }
}
BENCHMARK(share_open)->Arg(2 << 20)->Arg(256 << 20)->Unit(benchmark::kMicrosecond)->UseRealTime()->Iterations(100);

// Sends a buffer that the receiver has mapped already; opens and releases it.
void share_open_again(benchmark::State& state) {
  both_ends line;
  auto const s = default_stream();
  exportable_buffer const b(2_MiB);
  for (auto _ : state) {
    line.here.send(b, s);
    line.there.receive().release(s);
  }
}
BENCHMARK(share_open_again)->Unit(benchmark::kMicrosecond)->UseRealTime();

// Latency of one signal, from call to receipt, on an idle stream.
void share_signal(benchmark::State& state) {
  both_ends line;
  auto const s = default_stream();
  synchronize();
  for (auto _ : state) {
    line.here.signal(1, s);
    benchmark::DoNotOptimize(line.there.wait());
  }
}
BENCHMARK(share_signal)->Unit(benchmark::kMicrosecond)->UseRealTime();

}  // namespace
