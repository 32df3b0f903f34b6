// What a pair of allocate and deallocate of 512 B costs by the stream's tier: weir's own, registered,
// borrowed; in C++ and in C. On GPUs the handles are those of streams that weir made, registered or borrowed
// like those of another library.
// Threads: one.
#include <benchmark/benchmark.h>

#include <memory>

#include "weir/c.h"
#include "weir/memory.h"
#include "weir/sim.h"

namespace {

constexpr std::size_t bytes = 512;

// A stream of the program, and another one with memory, so that fences are of use.
struct streams {
  weir::stream own, other{weir::device(0)};
  weir::buffer of_other{other, 3 << 20};
  std::unique_ptr<weir::simulated_stream> simulated;
  CUstream_st* handle = nullptr;
  streams() {
    if (weir::runtime::current().is_simulated()) {
      simulated = std::make_unique<weir::simulated_stream>(0);
      handle = simulated->handle();
    } else {
      handle = own.native();
    }
  }
};

void own_stream(benchmark::State& state) {
  streams s;
  for (auto _ : state) weir::deallocate(weir::allocate(s.own, bytes));
}
BENCHMARK(own_stream);

void registered_stream(benchmark::State& state) {
  streams s;
  weir::external_stream const registered(0, s.handle);
  for (auto _ : state) weir::deallocate(weir::allocate(registered, bytes));
}
BENCHMARK(registered_stream);

void borrowed_stream(benchmark::State& state) {
  streams s;
  for (auto _ : state)
    weir::deallocate(weir::borrow_stream(0, s.handle), weir::allocate(weir::borrow_stream(0, s.handle), bytes));
}
BENCHMARK(borrowed_stream);

void pair_in_c(CUstream_st* handle) {
  void* p = nullptr;
  if (weir_allocate(&p, bytes, WEIR_DEFAULT_ALIGNMENT, 0, handle) == WEIR_OK) (void)weir_free_on_stream(p, 0, handle);
}
void registered_stream_in_c(benchmark::State& state) {
  streams s;
  if (weir_register_stream(0, s.handle) != WEIR_OK) return state.SkipWithError(weir_last_error());
  for (auto _ : state) pair_in_c(s.handle);
  (void)weir_unregister_stream(0, s.handle);
}
BENCHMARK(registered_stream_in_c);

void borrowed_stream_in_c(benchmark::State& state) {
  streams s;
  for (auto _ : state) pair_in_c(s.handle);
}
BENCHMARK(borrowed_stream_in_c);

}  // namespace
