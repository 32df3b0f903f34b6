// Argument parsing of all subcommands, and colours on a terminal.
// Threads: one.
#pragma once
#include <boost/program_options.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace weir::tool {

// The exit statuses of all of weir's programs (docs/reference/command-line.md).
enum exit_status : int { all_well = 0, finding = 1, wrong_usage = 2, does_not_fit = 3 };

// An argument that no command understands. what(): the command and the mistake, in one line.
struct usage_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Sets WEIR_DEVICES of this process to the value of --devices, unless that is empty.
// Throws: invalid_use, naming the option
void use_devices(std::string const& text);

// Parses the arguments into the variables of `all`. Positional arguments become values of the option `rest`:
// at most `most` of them, -1 for any number. The caption of `all` is "weir COMMAND [WORD…]: what it does".
// Returns: false if the arguments ask for help, which this call then prints. Throws: usage_error
bool understood(std::vector<std::string> const& arguments, boost::program_options::options_description const& all,
                char const* rest = nullptr, int most = 0);

// Colour for a terminal without NO_COLOR, else the text alone.
enum class colour : std::uint8_t { green, yellow, red };
std::string coloured(std::string const& text, colour);

// What is measured now, in one line of stderr that is written over; empty: takes it away. On a terminal only.
void show_progress(std::string const& what);

std::string json_text(std::string_view);  // in quotes, escaped
std::string version_line();               // "weir 0.1.0, CUDA toolkit 13.0.88"

}  // namespace weir::tool
