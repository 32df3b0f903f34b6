// The subcommands of the tool: one function and one file each.
// Threads: one.
#pragma once
#include <string>
#include <vector>

namespace weir::tool {

// Prints the machine: devices, memory, links. Throws: the library's errors, boost::program_options::error.
int info(std::vector<std::string> const& arguments);
// Prints what is here, which limits and options are in force and where they came from,
// and what to do. Throws: as info
int doctor(std::vector<std::string> const& arguments);
// Replays traces of allocations and prints what they took. Returns 1 when one did not fit. Throws: as info
int replay(std::vector<std::string> const& arguments);
// Prints what a memory snapshot holds, and makes a page of it. Throws: as info
int snapshot(std::vector<std::string> const& arguments);
// Measures allocators beside each other: `bench alloc`. Throws: as info
int bench_alloc(std::vector<std::string> const& arguments);
// Measures copies beside the driver's own calls: `bench copy`. Throws: as info
int bench_copy(std::vector<std::string> const& arguments);
// Measures a pipeline of copies and work against its slowest stage: `bench pipeline`. Throws: as info
int bench_pipeline(std::vector<std::string> const& arguments);
// Measures memory that a second process reads beside the driver's own calls: `bench share`. Returns 1 when
// the second process failed. Throws: as info
int bench_share(std::vector<std::string> const& arguments);

}  // namespace weir::tool
