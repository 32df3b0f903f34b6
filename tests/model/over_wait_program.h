// Random programs in which one stream needs memory of another that has a fence right after its last use, and
// work after that. weir's wait must be for that fence and cover nothing beyond.
// Threads: one. On the stepped machine work completes only when something waits for it.
#pragma once
#include <random>

#include "simulator/checker/race_checker.h"
#include "tests/model/verdict.h"
#include "tests/support/memory_bench.h"

namespace weir::tests {

inline verdict run_over_wait(std::uint64_t seed) {
  std::mt19937_64 random(seed * 0x9e3779b97f4a7c15u + 7);
  auto const below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  driver::check::test_control* checker = nullptr;
  memory_bench bench({.devices = 1, .memory = 4 << 20, .schedule = simulated::scheduling::stepped, .seed = seed + 1},
                     {}, [&](std::unique_ptr<driver::driver> m) {
                       auto both = driver::check::wrap(std::move(m));
                       checker = both.control;
                       return std::move(both.machine);
                     });
  verdict wrong;
  auto const must = [&](driver::status s) {
    if (!s.ok())
      wrong.note(check::answers, std::string(driver::name_of(s.what)));
  };
  auto const use = [&](clock::stream_clock& s, void* p, std::size_t bytes) {
    driver::touch const all{reinterpret_cast<driver::address>(p), bytes, true};
    must(bench.machine().enqueue(0, s.handle(), {&all, p ? std::size_t{1} : 0}, {[](void*) {}, nullptr, nullptr}));
  };
  // A borrowed stream gets its fence from the free that names it.
  bool const borrowed = seed % 3 == 0;
  clock::stream_clock& b = bench.stream(0);
  clock::stream_clock& a =
      borrowed ? bench.clocks().make(0, bench.machine().create_stream(0, driver::stream_kind::independent, 0).value,
                                     clock::life::borrowed)
               : bench.stream(0);
  auto& memory = bench.on(0);
  void* const others = borrowed ? memory.allocate(b, 1000, 0, source_location::current()) : nullptr;
  for (int rounds = 1 + below(3); rounds > 0 && wrong.ok(); --rounds) {
    std::size_t const bytes = (std::size_t{3} << 20) - static_cast<std::size_t>(below(1 << 18));
    void* const first = memory.allocate(a, bytes, 0, source_location::current());
    use(a, first, bytes);
    clock::named_in_call const named(a);
    memory.deallocate(first, nullptr, source_location::current());
    if (!borrowed)
      must(a.fence().is);
    for (int i = 0, n = below(6); i < n; ++i) {
      use(a, nullptr, 0);
      if (below(2))
        must(a.fence().is);
    }
    void* const second = memory.allocate(b, bytes, 0, source_location::current());
    use(b, second, bytes);
    auto const over = checker->counted();
    if (over.operations)
      wrong.note(check::over_wait, std::to_string(over.operations) + " operations beyond what " +
                                       std::to_string(over.waits) + " waits were for");
    memory.deallocate(second, nullptr, source_location::current());
    must(bench.clocks().synchronize(b.now()));
    bench.control->run();
    must(bench.clocks().synchronize(a.now()));
    memory.empty_cache();
  }
  memory.deallocate(others, nullptr, source_location::current());
  for (auto const& f : checker->findings())
    wrong.note(check_of(f.what), f.text);
  return wrong;
}

}  // namespace weir::tests
