// The habits of a seeded machine: by what its streams move, and by what its host threads are switched.
// One mix for both.
// Threads: any.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>

namespace weir::driver::sim {

enum class habit : std::uint8_t {
  lazy,        // streams move when the host must have it; threads go on until they must wait
  chance,      // each answer to a host that looks too early, each switch of threads, by chance
  starved,     // one stream, one thread comes last
  ranked,      // the highest rank moves; a few times it becomes the lowest (PCT)
  uniform,     // anything that can
  eager,       // all that can move does; threads in turn
  enumerated,  // not by a seed: every choice in its turn
  undecided,   // no choice came up
};
inline constexpr std::size_t habit_count = 8;
std::string_view name_of(habit) noexcept;

inline constexpr habit mixed_habits[] = {habit::lazy,   habit::chance,  habit::starved,
                                         habit::ranked, habit::uniform, habit::eager};
inline constexpr std::uint32_t mix_of_habits[] = {20, 40, 15, 15, 5, 5};  // percent of runs

// How often each was met by this process's seeded machines that have ended.
struct habits_met {
  std::array<std::uint64_t, habit_count> streams{}, threads{};
};
void count_habits(habit streams, habit threads);
habits_met all_habits_met();

}  // namespace weir::driver::sim
