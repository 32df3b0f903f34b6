// The programs of real threads, by name, for their tests and for the prover under planted defects.
// Threads: several, of the system's own. Each program ends when its time is over, or with what was wrong.
#pragma once
#include <ostream>
#include <string>
#include <string_view>

#include "tests/stress/crowd.h"
#include "weir/runtime.h"

namespace weir::tests {

// Returns: the failure; empty: none.
std::string caches_in_threads(std::uint64_t seed, std::chrono::nanoseconds = stress_time());
std::string cells_in_threads(std::uint64_t seed, std::chrono::nanoseconds = stress_time());
std::string locks_in_threads(std::uint64_t seed, std::chrono::nanoseconds = stress_time());

std::string traffic_in_threads(std::uint64_t seed, std::chrono::nanoseconds = stress_time());
std::string fresh_streams_in_threads(std::uint64_t seed, std::chrono::nanoseconds = stress_time());
std::string stamps_in_threads(std::uint64_t seed, std::chrono::nanoseconds = stress_time());
std::string events_in_threads(std::uint64_t seed, std::chrono::nanoseconds = stress_time());
std::string pinned_in_threads(std::uint64_t seed, std::chrono::nanoseconds = stress_time());
std::string staging_in_threads(std::uint64_t seed, std::chrono::nanoseconds = stress_time());
std::string first_uses_in_threads(std::uint64_t seed, std::chrono::nanoseconds = stress_time());
std::string worlds_in_threads(std::uint64_t seed, std::chrono::nanoseconds = stress_time());
std::string history_in_threads(std::uint64_t seed, std::chrono::nanoseconds = stress_time());
std::string peers_in_threads(std::uint64_t seed, std::chrono::nanoseconds = stress_time());
std::string ranks_in_threads(std::uint64_t seed, std::chrono::nanoseconds = stress_time());
std::string sharing_in_threads(std::uint64_t seed, std::chrono::nanoseconds = stress_time());
std::string batons_in_threads(std::uint64_t seed, std::chrono::nanoseconds = stress_time());
std::string directory_in_threads(std::uint64_t seed, std::chrono::nanoseconds = stress_time());
std::string marks_in_threads(std::uint64_t seed, std::chrono::nanoseconds = stress_time());
std::string memories_in_threads(std::uint64_t seed, std::chrono::nanoseconds = stress_time());
std::string pools_in_threads(std::uint64_t seed, std::chrono::nanoseconds = stress_time());
std::string heirs_in_threads(std::uint64_t seed, std::chrono::nanoseconds = stress_time());

// Requires: all blocks of that device are freed and complete. Returns: as a program.
std::string books_after(runtime&, int device = 0);
// Runs the crowd, which frees all that it takes. Returns: its failure, or that of the books of device 0.
std::string wrong_in(crowd&, runtime&);

struct program_in_threads {
  char const* name;
  std::string (*run)(std::uint64_t seed, std::chrono::nanoseconds);
  friend std::ostream& operator<<(std::ostream& out, program_in_threads const& one) { return out << one.name; }
};
inline constexpr program_in_threads programs_in_threads[] = {
    // these two first: the directory of streams soon grows more rarely
    {"directory_in_threads", directory_in_threads},
    {"stamps_in_threads", stamps_in_threads},
    {"caches_in_threads", caches_in_threads},
    {"cells_in_threads", cells_in_threads},
    {"locks_in_threads", locks_in_threads},
    {"traffic_in_threads", traffic_in_threads},
    {"fresh_streams_in_threads", fresh_streams_in_threads},
    {"events_in_threads", events_in_threads},
    {"pinned_in_threads", pinned_in_threads},
    {"staging_in_threads", staging_in_threads},
    {"first_uses_in_threads", first_uses_in_threads},
    {"worlds_in_threads", worlds_in_threads},
    {"history_in_threads", history_in_threads},
    {"peers_in_threads", peers_in_threads},
    {"ranks_in_threads", ranks_in_threads},
    {"sharing_in_threads", sharing_in_threads},
    {"batons_in_threads", batons_in_threads},
    {"memories_in_threads", memories_in_threads},
    {"heirs_in_threads", heirs_in_threads},
    {"pools_in_threads", pools_in_threads},
    {"marks_in_threads", marks_in_threads},
};

}  // namespace weir::tests
