// The programs of the model tests, for the prover.
// Threads: as prover.h.
#include "tests/explore/programs.h"
#include "tests/model/aliases_program.h"
#include "tests/model/bound_program.h"
#include "tests/model/buckets_program.h"
#include "tests/model/checkpoint_program.h"
#include "tests/model/clock_program.h"
#include "tests/model/copy_program.h"
#include "tests/model/doors_program.h"
#include "tests/model/exchange_program.h"
#include "tests/model/groups_program.h"
#include "tests/model/idle_program.h"
#include "tests/model/legacy_program.h"
#include "tests/model/memory_program.h"
#include "tests/model/optimizer_program.h"
#include "tests/model/over_wait_program.h"
#include "tests/model/pipeline_program.h"
#include "tests/model/places_program.h"
#include "tests/model/pools_program.h"
#include "tests/model/ring_program.h"
#include "tests/model/share_program.h"
#include "tests/model/told_program.h"
#include "tests/model/traffic_program.h"
#include "tests/model/width_program.h"
#include "tests/planted/prover.h"

namespace weir::tests {
namespace {
verdict by_seed(std::uint64_t seed, std::string_view name) {
  driver::sim::tape tape(seed);
  return judged_run(explored_program(name), tape);
}
}  // namespace

std::span<kind_of_program const> programs() {
  static constexpr kind_of_program all[] = {
      {"memory", [](std::uint64_t seed) { return memory_program(seed).run(); }},
      {"clock", [](std::uint64_t seed) { return clock_program(seed).run(); }},
      {"traffic", [](std::uint64_t seed) { return traffic_program(seed).run(); }},
      {"given back among threads", [](std::uint64_t seed) { return by_seed(seed, "given_back"); }},
      {"knowledge among threads", [](std::uint64_t seed) { return by_seed(seed, "knowledge"); }},
      {"crew among threads", [](std::uint64_t seed) { return by_seed(seed, "crew"); }},
      {"caches among threads", [](std::uint64_t seed) { return by_seed(seed, "caches"); }},
      {"owned lock among threads", [](std::uint64_t seed) { return by_seed(seed, "owned_lock"); }},
      {"captures among threads", [](std::uint64_t seed) { return by_seed(seed, "captures_among_threads"); }},
      {"over-wait", [](std::uint64_t seed) { return run_over_wait(seed); }},
      {"places", [](std::uint64_t seed) { return run_places(seed); }},
      {"bound", [](std::uint64_t seed) { return seed % 8 ? bound_program(seed).run() : aliases_program(seed).run(); }},
      {"copies", [](std::uint64_t seed) { return run_copies(seed); }},
      {"exchanges", [](std::uint64_t seed) { return exchange_program(seed).run(); }},
      {"sharing", [](std::uint64_t seed) { return share_program(seed).run(); }},
      {"handed over among threads", [](std::uint64_t seed) { return by_seed(seed, "handed_over"); }},
      {"history among threads", [](std::uint64_t seed) { return by_seed(seed, "history"); }},
  };
  return all;
}

std::span<kind_of_program const> programs_by_name() {
  static constexpr kind_of_program all[] = {
      {"buckets", [](std::uint64_t seed) { return buckets_program(seed).run(); }},
      {"groups", [](std::uint64_t seed) { return groups_program(seed).run(); }},
      {"optimizers", [](std::uint64_t seed) { return optimizer_program(seed).run(); }},
      {"checkpoints", [](std::uint64_t seed) { return checkpoint_program(seed).run(); }},
      {"pipelines", [](std::uint64_t seed) { return pipeline_program(seed).run(); }},
      {"rings", [](std::uint64_t seed) { return ring_program(seed).run(); }},
      {"pools", [](std::uint64_t seed) { return pools_program(seed).run(); }},
      {"shared pages", [](std::uint64_t seed) { return memory_program(seed, about::small_blocks).run(); }},
      {"idle", [](std::uint64_t seed) { return idle_program(seed).run(); }},
      {"doors", [](std::uint64_t seed) { return doors_program(seed).run(); }},
      {"legacy", [](std::uint64_t seed) { return legacy_program(seed).run(); }},
      {"told", [](std::uint64_t seed) { return told_program(seed).run(); }},
      {"width", [](std::uint64_t seed) { return width_program(seed).run(); }},
      {"spill", [](std::uint64_t seed) { return by_seed(seed, "spill"); }},
  };
  return all;
}

}  // namespace weir::tests
