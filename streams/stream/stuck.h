// What the simulated machine says of a wait of the host that can never end.
// Threads: any.
#pragma once
#include "runtime/core/parts.h"
#include "simulator/machine/machine.h"

namespace weir::streams {

inline constexpr char const* stuck_remedy = "Let one of them not wait, or give what it waits for";

// After a wait that answered this: the circle, named as the machine names its streams.
// Empty: that is not why.
inline std::string circle_of(driver::driver& machine, driver::status s) {
  auto* const simulated = s.what == driver::code::failed ? driver::sim::controls_of(machine) : nullptr;
  if (!simulated) return {};
  constexpr std::string_view word = "stuck: ";
  auto const said = simulated->findings();
  return said.empty() || !said.back().starts_with(word)
             ? std::string()
             : "waited for what cannot come: " + said.back().substr(word.size());
}

// Throws as throw_refusal does; of a machine that is stuck, with its circle.
inline void require_not_stuck(driver::driver& machine, driver::status s, std::string_view operation,
                              source_location at) {
  if (s.ok()) [[likely]] return;
  if (std::string circle = circle_of(machine, s); !circle.empty())
    throw_refusal(s, operation, std::move(circle), stuck_remedy, at);
}

}  // namespace weir::streams
