// Reading arguments; the help.
// Threads: one.
#include "command_line.h"

#include <iostream>

namespace weir::tool {

bool understood(std::vector<std::string> const& arguments, boost::program_options::options_description const& all, char const* rest, int most) {
  namespace po = boost::program_options;
  po::positional_options_description unnamed;
  if (rest) unnamed.add(rest, most);
  po::variables_map values;
  po::store(po::command_line_parser(arguments).options(all).positional(unnamed).run(), values);
  po::notify(values);
  if (values.count("help")) std::cout << all;
  return !values.count("help");
}

}  // namespace weir::tool
