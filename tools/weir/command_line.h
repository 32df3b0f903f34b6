// Argument parsing of all subcommands.
// Threads: one.
#pragma once
#include <boost/program_options.hpp>
#include <string>
#include <vector>

namespace weir::tool {

// Sets WEIR_DEVICES of this process to the value of --devices, unless that is empty.
// Throws: invalid_use, naming the option
void use_devices(std::string const& text);

// Parses the arguments into the variables of `all`. Positional arguments become values of the option `rest`:
// at most `most` of them, -1 for any number.
// Returns: false if the arguments ask for help, which this call then prints.
// Throws: boost::program_options::error; invalid_use, naming a surplus argument
bool understood(std::vector<std::string> const& arguments, boost::program_options::options_description const& all,
                char const* rest = nullptr, int most = 0);

}  // namespace weir::tool
