// What each subcommand makes of its arguments.
// Threads: one.
#pragma once
#include <boost/program_options.hpp>
#include <string>
#include <vector>

namespace weir::tool {

// WEIR_DEVICES of this process is what --devices says, if that says something. Throws:
// invalid_use, which names the option
void use_devices(std::string const& text);

// Reads the arguments into the variables of `all`; those without a name are values of the option `rest`, at
// most so many, -1: any number. Returns: false when help was asked for, which is printed then.
// Throws: boost::program_options::error; invalid_use, which names the word that is one too many
bool understood(std::vector<std::string> const& arguments, boost::program_options::options_description const& all,
                char const* rest = nullptr, int most = 0);

}  // namespace weir::tool
