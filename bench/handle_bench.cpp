// What a pair of allocate and deallocate of 512 B costs by the stream's tier: weir's own, registered,
// borrowed; in C++ and in C. The handles are those of streams that weir does not know, as another library's.
// Threads: one.
#include <benchmark/benchmark.h>

#include "runtime/core/parts.h"
#include "weir/c.h"
#include "weir/memory.h"

namespace {

constexpr std::size_t bytes = 512;

// A stream of the program, and another one with memory, so that fences are of use.
struct streams {
  weir::stream own, other{weir::device(0)};
  weir::buffer of_other{other, 3 << 20};
  weir::driver::driver& machine = weir::runtime::current().get().machine();
  weir::driver::stream_handle const theirs = machine.create_stream(0, weir::driver::stream_kind::independent, 0).value;
  CUstream_st* handle = reinterpret_cast<CUstream_st*>(static_cast<std::uintptr_t>(theirs));
  ~streams() { (void)machine.destroy_stream(0, theirs); }
};

void own_stream(benchmark::State& state) {
  streams s;
  for (auto _ : state)
    weir::deallocate(weir::allocate(s.own, bytes));
}
BENCHMARK(own_stream);

void registered_stream(benchmark::State& state) {
  streams s;
  weir::external_stream const registered(0, s.handle);
  for (auto _ : state)
    weir::deallocate(weir::allocate(registered, bytes));
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
  if (weir_allocate(&p, bytes, WEIR_DEFAULT_ALIGNMENT, 0, handle) == WEIR_OK)
    (void)weir_free_on_stream(p, 0, handle);
}
void registered_stream_in_c(benchmark::State& state) {
  streams s;
  if (weir_register_stream(0, s.handle) != WEIR_OK)
    return state.SkipWithError(weir_last_error());
  for (auto _ : state)
    pair_in_c(s.handle);
  (void)weir_unregister_stream(0, s.handle);
}
BENCHMARK(registered_stream_in_c);

void borrowed_stream_in_c(benchmark::State& state) {
  streams s;
  for (auto _ : state)
    pair_in_c(s.handle);
}
BENCHMARK(borrowed_stream_in_c);

}  // namespace
