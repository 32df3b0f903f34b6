// Parses arguments and prints the help.
// Threads: one.
#include "command_line.h"

#include <cstdlib>
#include <iostream>
#include <optional>

#include "runtime/options/options.h"

namespace weir::tool {

namespace {
// Returns: the positional argument number `most`, counted from 0, if present.
std::optional<std::string> word_after(std::size_t most, std::vector<std::string> const& arguments,
                                      boost::program_options::options_description const& all) {
  auto const parsed = boost::program_options::command_line_parser(arguments).options(all).run();
  for (auto const& one : parsed.options) {
    if (one.position_key >= 0 && one.string_key.empty() && static_cast<std::size_t>(one.position_key) >= most &&
        !one.value.empty())
      return one.value.front();
  }
  return {};
}
}  // namespace

void use_devices(std::string const& text) {
  if (text.empty()) return;
  parse_devices(text, "--devices");
  setenv("WEIR_DEVICES", text.c_str(), 1);
}

bool understood(std::vector<std::string> const& arguments, boost::program_options::options_description const& all,
                char const* rest, int most) {
  namespace po = boost::program_options;
  po::positional_options_description unnamed;
  if (rest) unnamed.add(rest, most);
  po::variables_map values;
  if (most >= 0) {
    if (auto const extra = word_after(static_cast<std::size_t>(most), arguments, all)) {
      throw invalid_use("command line", "nothing is asked for by \"" + *extra + "\"", "Leave it out, or see --help",
                        source_location::current());
    }
  }
  po::store(po::command_line_parser(arguments).options(all).positional(unnamed).run(), values);
  po::notify(values);
  if (values.count("help")) std::cout << all;
  return !values.count("help");
}

}  // namespace weir::tool
