// The habits of a seeded machine: the policies for its streams and its host threads. Both use the same mix.
// Threads: any.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>

namespace weir::driver::sim {

enum class schedule_policy : std::uint8_t {
  lazy,        // streams move only when the host waits for them; a thread runs until it must wait
  chance,      // early queries and thread switches are decided at random
  starved,     // one stream, or one thread, comes last
  ranked,      // the highest rank moves; a few times in a run it becomes the lowest (PCT)
  uniform,     // any that can move, with equal chance
  eager,       // all that can move do; threads take turns
  enumerated,  // without a seed: all choices, one after the other
  undecided,   // nothing was drawn
};
inline constexpr std::size_t policy_count = 8;
std::string_view name_of(schedule_policy) noexcept;

inline constexpr schedule_policy mixed_policies[] = {schedule_policy::lazy,    schedule_policy::chance,
                                                     schedule_policy::starved, schedule_policy::ranked,
                                                     schedule_policy::uniform, schedule_policy::eager};
inline constexpr std::uint32_t mix_of_policies[] = {20, 40, 15, 15, 5, 5};  // percent of runs

// How often each habit was used by the ended seeded machines of this process.
struct policies_met {
  std::array<std::uint64_t, policy_count> streams{}, threads{};
};
void count_policies(schedule_policy streams, schedule_policy threads);
policies_met all_policies_met();

}  // namespace weir::driver::sim
