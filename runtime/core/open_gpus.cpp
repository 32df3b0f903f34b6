// Opens the GPUs that a program requests, in a build that leaves simulator/ out (WEIR_SIMULATOR=OFF).
// Threads: any.
#include "runtime/core/parts.h"
#include "runtime/options/options.h"

namespace weir {

driver::opened open_machine(machine_choice const& asked, source_location at) {
  if (asked.which == machine_choice::kind::simulated)
    throw not_supported(
        "runtime",
        base::text(asked.sim.devices, asked.sim.devices == 1 ? " simulated device of " : " simulated devices of ",
                   bytes_text(asked.sim.memory), ", which this build of weir leaves out"),
        "Build weir with WEIR_SIMULATOR=ON, or run on GPUs: WEIR_DEVICES=cuda", at, error_id{462});
  auto found = driver::open_cuda();
  if (!found.machine)
    throw not_supported("runtime", "no usable GPU: " + found.why + ", and this build of weir has no simulated devices",
                        "Make a GPU usable, or build weir with WEIR_SIMULATOR=ON", at, error_id{463});
  return found;
}

std::unique_ptr<driver::driver> with_checker(std::unique_ptr<driver::driver>, source_location at) {
  throw not_supported("runtime", "options::check_races, which this build of weir leaves out",
                      "Build weir with WEIR_SIMULATOR=ON, or run without WEIR_CHECK_RACES and options::check_races", at,
                      error_id{464});
}

}  // namespace weir
