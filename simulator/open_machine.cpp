// Opens the GPUs or simulated devices that a program requests, and adds the race checker.
// Threads: any.
#include "runtime/core/parts.h"
#include "runtime/driver/call_watch.h"
#include "runtime/options/options.h"
#include "simulator/checker/race_checker.h"
#include "simulator/machine/machine.h"

namespace weir {
namespace {

driver::opened open_simulated(simulated const& like, std::vector<int> visible, std::string because,
                              source_location at) {
  constexpr size_t most = size_t{1} << 46;  // a device reserves address space for all its memory
  if (like.memory > most)
    throw invalid_use("runtime", "simulated{.memory = " + std::to_string(like.memory) + "}",
                      "Ask for at most " + bytes_text(most) + " a device", at, error_id{377});
  auto made = driver::sim::make(like, std::move(visible));
  int const n = made.machine->device_count();
  return {std::move(made.machine),
          std::to_string(n) + " simulated device" + (n == 1 ? "" : "s") + " of " + bytes_text(like.memory) + because};
}

}  // namespace

driver::opened open_machine(machine_choice const& asked, source_location at) {
  if (asked.which == machine_choice::kind::simulated)
    return open_simulated(asked.sim, asked.visible, "", at);
  auto found = driver::open_cuda();
  if (found.machine)
    return {std::move(found.machine), std::move(found.why)};
  if (asked.which == machine_choice::kind::cuda)
    throw not_supported("runtime", "WEIR_DEVICES=cuda without a usable GPU: " + found.why,
                        "Use WEIR_DEVICES=auto or sim:4 to run on simulated devices", {}, error_id{378});
  return open_simulated(asked.sim, asked.visible, " (no GPU: " + found.why + ")", at);
}

std::unique_ptr<driver::driver> with_checker(std::unique_ptr<driver::driver> machine, source_location) {
  if (machine->checker())
    return machine;
  bool const is_real = !machine->simulated();
  auto checked = driver::check::wrap(std::move(machine)).machine;
  return is_real ? driver::with_watch(std::move(checked)) : std::move(checked);
}

}  // namespace weir
