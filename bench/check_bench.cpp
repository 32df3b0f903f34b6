// Overhead of the race checker: the same calls with and without it, on a simulated machine.
// Threads: one. Select with --benchmark_filter=check
#include <benchmark/benchmark.h>
#include <malloc.h>

#include "runtime/core/parts.h"
#include "simulator/checker/race_checker.h"
#include "simulator/machine/machine.h"
#include "weir/launch.h"
#include "weir/observe.h"

namespace {

using namespace weir;

// One step of a program: 9 launches with `uses` declared uses each, alternating over three streams. Each
// launch is followed by a wait. The machine runs its work inside the calls.
struct program {
  static constexpr size_t bytes = 4096;
  static constexpr int launches = 9;
  explicit program(bool checked)
      : machine(simulated{.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::stepped, .seed = 1},
                {.check_races = checked}),
        in(machine) {
    for (int i = 0; i < 8; ++i)
      blocks.emplace_back(bytes);
    for (int i = 0; i < 3; ++i)
      lines.emplace_back();
    if (checked)
      on_race([](race_report const& r) { std::fprintf(stderr, "%s\n", r.text.c_str()), std::abort(); });
  }
  void step(int uses) {
    std::array<memory_use, 8> declared{};
    for (int i = 0; i < launches; ++i) {
      stream& s = lines[static_cast<size_t>(i) % 3];
      for (int u = 0; u < uses; ++u)
        declared[static_cast<size_t>(u)] =
            u ? reads(blocks[static_cast<size_t>(u)].data(), bytes) : writes(blocks[0].data(), bytes);
      launch(
          s, std::span<memory_use const>(declared.data(), static_cast<size_t>(uses)), [](CUstream_st*) {}, [] {});
      lines[static_cast<size_t>(i + 1) % 3].wait(s);
    }
  }
  runtime machine;
  runtime_guard in;
  std::vector<buffer> blocks;
  std::vector<stream> lines;
};

// range(0): with the checker or without; range(1): declared uses per launch.
void launch_and_wait(benchmark::State& state) {
  setenv("WEIR_SIM_GUARD", "0", 1);  // guard pages cost system calls, which this benchmark excludes
  program p(state.range(0) != 0);
  int steps = 0;
  for (auto _ : state) {
    p.step(static_cast<int>(state.range(1)));
    if (++steps % 16 == 0) {
      state.PauseTiming();
      synchronize();
      state.ResumeTiming();
    }
  }
  double const calls = static_cast<double>(state.iterations()) * program::launches;
  state.counters["per launch and wait"] =
      benchmark::Counter(calls, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(launch_and_wait)
    ->Name("check/launch_and_wait")
    ->ArgNames({"checked", "uses"})
    ->ArgsProduct({{0, 1}, {1, 4, 8}});

void allocate_and_free(benchmark::State& state) {
  program p(state.range(0) != 0);
  for (auto _ : state)
    benchmark::DoNotOptimize(buffer(1000).data());
}
BENCHMARK(allocate_and_free)->Name("check/allocate_and_free")->ArgName("checked")->Arg(0)->Arg(1);

// A fill is one driver call with one declared range, so the difference is the cost of one checked operation.
void one_fill(benchmark::State& state) {
  setenv("WEIR_SIM_GUARD", "0", 1);
  program p(state.range(0) != 0);
  auto& machine = p.machine.get().machine();
  auto const s = machine.create_stream(0, driver::stream_kind::independent, 0).value;
  int given = 0;
  for (auto _ : state) {
    if (!machine.fill(0, s, p.blocks[0].data(), 1, 1, 64).ok())
      return state.SkipWithError("refused");
    if (++given % 256 == 0) {
      state.PauseTiming();
      (void)machine.synchronize_stream(0, s);
      state.ResumeTiming();
    }
  }
  (void)machine.synchronize_stream(0, s);
}
BENCHMARK(one_fill)->Name("check/fill")->ArgName("checked")->Arg(0)->Arg(1);

// Memory for uses that may be incomplete: heap bytes per range, with the checker minus without.
void kept_of_ranges(benchmark::State& state) {
  constexpr std::size_t operations = 4096, bytes = 512;
  auto const ranges = static_cast<std::size_t>(state.range(0));
  auto const heap = [] {
    auto const now = mallinfo2();
    return static_cast<double>(now.uordblks + now.hblkhd);
  };
  auto const kept = [&](bool checked) {
    auto made =
        driver::sim::make(simulated{.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::stepped});
    std::unique_ptr<driver::driver> machine =
        checked ? driver::check::wrap(std::move(made.machine)).machine : std::move(made.machine);
    (void)machine->open(0);
    auto const s = machine->create_stream(0, driver::stream_kind::independent, 0).value;
    driver::address at = machine->create_segment(0, 32_MiB).value;
    std::vector<driver::touch> uses(ranges);
    double const before = heap();
    for (std::size_t i = 0; i < operations; ++i) {
      for (auto& use : uses)
        use = {at, bytes, true}, at += bytes;
      (void)machine->enqueue(0, s, uses, {[](void*) {}, nullptr, nullptr});
    }
    double const grown = heap() - before;
    made.control->run();
    return grown / static_cast<double>(operations * ranges);
  };
  for (auto _ : state)
    state.counters["bytes a range"] = kept(true) - kept(false);
}
BENCHMARK(kept_of_ranges)->Name("check/kept")->ArgName("ranges")->Arg(1)->Arg(4)->Iterations(1);

}  // namespace
