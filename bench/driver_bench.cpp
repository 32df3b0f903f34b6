// Cost of the driver interface's calls, on GPUs if the machine has any, else on the simulated machine.
// Threads: one.
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <memory>

#include "runtime/driver/driver.h"
#include "simulator/machine/machine.h"

namespace {

using namespace weir::driver;

driver& machine() {
  static driver* const once = [] {
    auto found = open_cuda();
    auto own = found.machine ? std::move(found.machine) : sim::make({}).machine;
    for (int d = 0; d < own->device_count() && d < 2; ++d) {
      if (!own->open(d).ok())
        std::abort();
    }
    return own.release();  // never destroyed: destroying CUDA contexts is slow
  }();
  return *once;
}

struct stream_and_event {
  stream_handle s = machine().create_stream(0, stream_kind::independent, 0).value;
  event_handle e = machine().create_event(0, event_kind::order_only).value;
  ~stream_and_event() {
    machine().synchronize_stream(0, s);
    machine().destroy_event(0, e);
    machine().destroy_stream(0, s);
  }
};

struct mapped {
  std::size_t bytes = 0;
  address at = 0;
  memory_handle handle = memory_handle::none;
  explicit mapped(std::size_t size) : bytes(size) {
    at = machine().reserve(bytes, 0).value;
    handle = machine().create(0, bytes).value;
    machine().map(at, bytes, handle);
    machine().grant(at, bytes, 0);
  }
  ~mapped() {
    machine().unmap(at, bytes);
    machine().release(handle);
    machine().unreserve(at, bytes);
  }
};

// Enqueues in batches that fill no queue. The synchronization between the batches is not timed.
template <class Call>
void enqueue(benchmark::State& state, stream_handle s, Call call) {
  int given = 0;
  for (auto _ : state) {
    if (status const said = call(); !said.ok())
      return state.SkipWithError(name_of(said.what).data());
    if (++given % 400 == 0) {
      state.PauseTiming();
      machine().synchronize_stream(0, s);
      state.ResumeTiming();
    }
  }
}

void driver_record(benchmark::State& state) {
  stream_and_event x;
  enqueue(state, x.s, [&] { return machine().record(0, x.s, x.e); });
}
void driver_wait(benchmark::State& state) {
  stream_and_event x, y;
  machine().record(0, y.s, y.e);
  machine().synchronize_stream(0, y.s);
  enqueue(state, x.s, [&] { return machine().wait(0, x.s, y.e); });
}
void driver_query_event_complete(benchmark::State& state) {
  stream_and_event x;
  machine().record(0, x.s, x.e);
  machine().synchronize_event(x.e);
  for (auto _ : state)
    benchmark::DoNotOptimize(machine().query_event(x.e));
}
void driver_query_stream(benchmark::State& state) {
  stream_and_event x;
  for (auto _ : state)
    benchmark::DoNotOptimize(machine().query_stream(0, x.s));
}
void driver_capturing(benchmark::State& state) {
  stream_and_event x;
  for (auto _ : state)
    benchmark::DoNotOptimize(machine().capturing(0, x.s));
}
void driver_create_destroy_event(benchmark::State& state) {
  machine();
  for (auto _ : state)
    machine().destroy_event(0, machine().create_event(0, event_kind::order_only).value);
}
void driver_copy_64_bytes(benchmark::State& state) {
  mapped const m(machine().info(0).value.granularity);
  stream_and_event x;  // destroyed before m: its destructor waits for the work on m
  enqueue(state, x.s, [&] {
    return machine().copy(0, x.s, reinterpret_cast<void*>(m.at), reinterpret_cast<void*>(m.at + 4096), 64);
  });
}
void driver_fill_64_bytes(benchmark::State& state) {
  mapped const m(machine().info(0).value.granularity);
  stream_and_event x;  // destroyed before m: its destructor waits for the work on m
  enqueue(state, x.s, [&] { return machine().fill(0, x.s, reinterpret_cast<void*>(m.at), 0, 4, 16); });
}
void driver_host_function(benchmark::State& state) {
  stream_and_event x;
  work w;
  w.run = [](void*) {};
  enqueue(state, x.s, [&] { return machine().host_function(0, x.s, w); });
}
void driver_find(benchmark::State& state) {
  mapped const m(machine().info(0).value.granularity);
  for (auto _ : state)
    benchmark::DoNotOptimize(machine().find(reinterpret_cast<void*>(m.at + 100)));
}
void driver_find_pageable(benchmark::State& state) {
  int here = 0;
  machine();
  for (auto _ : state)
    benchmark::DoNotOptimize(machine().find(&here));
}
void driver_create_release(benchmark::State& state) {
  auto const bytes = static_cast<std::size_t>(state.range(0)) << 20;
  machine();
  for (auto _ : state)
    machine().release(machine().create(0, bytes).value);
}
void driver_map_grant_unmap(benchmark::State& state) {
  mapped const m(static_cast<std::size_t>(state.range(0)) << 20);
  machine().unmap(m.at, m.bytes);
  for (auto _ : state) {
    machine().map(m.at, m.bytes, m.handle);
    machine().grant(m.at, m.bytes, 0);
    machine().unmap(m.at, m.bytes);
  }
  machine().map(m.at, m.bytes, m.handle);
}
void driver_pin_unpin(benchmark::State& state) {
  auto const bytes = static_cast<std::size_t>(state.range(0)) << 20;
  machine();
  void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  for (auto _ : state) {
    machine().pin(at, bytes);
    machine().unpin(at);
  }
  ::munmap(at, bytes);
}

BENCHMARK(driver_record);
BENCHMARK(driver_wait);
BENCHMARK(driver_query_event_complete);
BENCHMARK(driver_query_stream);
BENCHMARK(driver_capturing);
BENCHMARK(driver_create_destroy_event);
BENCHMARK(driver_copy_64_bytes);
BENCHMARK(driver_fill_64_bytes);
BENCHMARK(driver_host_function);
BENCHMARK(driver_find);
BENCHMARK(driver_find_pageable);
BENCHMARK(driver_create_release)->Arg(2)->Arg(32);
BENCHMARK(driver_map_grant_unmap)->Arg(2)->Arg(32);
BENCHMARK(driver_pin_unpin)->Arg(4)->Arg(64);

}  // namespace
