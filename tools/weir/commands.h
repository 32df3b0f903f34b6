// The subcommands of the tool: one function and one file each. Returns: the exit status.
// Threads: one.
#pragma once
#include <string>
#include <vector>

namespace weir::tool {

// Prints the machine: devices, memory, links. Throws: the library's errors, boost::program_options::error.
int info(std::vector<std::string> const& arguments);
// Prints libraries, devices, limits and options with their origin, and advice. Throws: as info
int doctor(std::vector<std::string> const& arguments);
// Replays allocation traces and prints memory use and time. Returns: 3 if one did not fit, with --json 1.
// Throws: as info
int replay(std::vector<std::string> const& arguments);
// Prints the contents of a memory snapshot, and writes them as an HTML page. Throws: as info
int snapshot(std::vector<std::string> const& arguments);
// Runs a program that does not use weir under the race checker: `check`. Becomes that program. Throws: usage_error
int check(std::vector<std::string> const& arguments);
// Compares allocators: `bench alloc`. Throws: as info
int bench_alloc(std::vector<std::string> const& arguments);
// Compares copies with the driver's own calls: `bench copy`. Throws: as info
int bench_copy(std::vector<std::string> const& arguments);
// Compares a pipeline of copies and work with its slowest stage: `bench pipeline`. Throws: as info
int bench_pipeline(std::vector<std::string> const& arguments);
// Compares memory shared with a second process with the driver's own calls: `bench share`.
// Returns: 1 if the second process failed. Throws: as info
int bench_share(std::vector<std::string> const& arguments);

// Measures steps of a data-parallel model: `bench train`. Throws: as info
int bench_train(std::vector<std::string> const& arguments);

}  // namespace weir::tool
