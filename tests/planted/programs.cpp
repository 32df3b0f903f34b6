// The programs of the model tests, as the prover takes them.
// Threads: as prover.h.
#include "tests/model/bound_program.h"
#include "tests/model/cache_program.h"
#include "tests/model/clock_program.h"
#include "tests/model/copy_program.h"
#include "tests/model/memory_program.h"
#include "tests/model/over_wait_program.h"
#include "tests/model/traffic_program.h"
#include "tests/planted/prover.h"
#include "tests/planted/thread_programs.h"

namespace weir::tests {

std::span<kind_of_program const> programs() {
  static constexpr kind_of_program all[] = {
      {"memory", [](std::uint64_t seed) { return memory_program(seed).run(); }},
      {"clock", [](std::uint64_t seed) { return clock_program(seed).run(); }},
      {"traffic", [](std::uint64_t seed) { return traffic_program(seed).run(); }},
      {"given back among threads", [](std::uint64_t seed) { return run_body(seed, "given_back", memory_given_back_among_threads); }},
      {"knowledge among threads", [](std::uint64_t seed) { return run_body(seed, "knowledge", knowledge_among_threads); }},
      {"crew among threads", [](std::uint64_t seed) { return run_body(seed, "crew", crew_among_threads); }},
      {"caches among threads", [](std::uint64_t seed) { return run_body(seed, "caches", small_blocks_among_threads); }},
      {"over-wait", [](std::uint64_t seed) { return run_over_wait(seed); }},
      {"bound", [](std::uint64_t seed) { return bound_program(seed).run(); }},
      {"copies", [](std::uint64_t seed) { return run_copies(seed); }},
  };
  return all;
}

}  // namespace weir::tests
