// What sharing memory with another process costs, both sides in this one: making, sending, opening, telling.
// Threads: one. --benchmark_filter=share
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

// A buffer that nobody had before, and its end: create, map, grant; unmap, release. range(0): bytes.
void share_make(benchmark::State& state) {
  auto& lent = runtime::current().get().part<peer::exports>();
  for (auto _ : state) {
    exportable_buffer(static_cast<size_t>(state.range(0))).reset();
    benchmark::DoNotOptimize(lent.forget_idle());
  }
}
BENCHMARK(share_make)->Arg(2 << 20)->Arg(256 << 20)->Unit(benchmark::kMicrosecond)->UseRealTime();

// One that was given back before.
void share_make_again(benchmark::State& state) {
  exportable_buffer(2_MiB).reset();
  for (auto _ : state) exportable_buffer(2_MiB).reset();
}
BENCHMARK(share_make_again)->Unit(benchmark::kMicrosecond)->UseRealTime();

// Sent, opened for the first time, released; the mapping goes. range(0): bytes.
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

// Sent, opened where it is mapped already, released.
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

// A number, said and heard, behind a stream that is done.
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
