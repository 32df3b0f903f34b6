// The arguments of an example: a table of options, which is its help, too.
// Threads: main.
#pragma once
#include <algorithm>
#include <charconv>
#include <functional>
#include <limits>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "examples/ending.h"

namespace examples {

inline void require(bool good, std::string const& otherwise) {
  if (!good)
    throw usage_error(otherwise);
}

class options {
 public:
  // words: what the usage line shows beside [OPTIONS]
  options(std::string program, std::string const& words, std::string const& about)
      : program_(std::move(program)),
        help_("usage: " + program_ + " " + words + "[OPTIONS]\n" + about +
              "\n\noptions, with defaults for the devices here:\n") {}

  void file(char const* name, std::string& to, char const* what) {
    add(name, "FILE", what, to, [&to](std::string const& given) { to = given; });
  }
  void flag(char const* name, bool& to, char const* what) {
    add(name, "", what, "", [&to](std::string const&) { to = true; });
  }
  template <class T>
  void choice(char const* name, T& to, std::vector<std::pair<std::string, T>> of, char const* what) {
    std::string words, standard;
    for (auto const& [word, value] : of) {
      words += (words.empty() ? "" : "|") + word;
      standard = value == to ? word : standard;
    }
    add(name, words, what, standard, [=, &to](std::string const& given) {
      auto const its = std::find_if(of.begin(), of.end(), [&](auto const& one) { return one.first == given; });
      require(its != of.end(), std::string(name) + " " + given + ": choose one of " + words);
      to = its->second;
    });
  }
  template <class T>
  void number(char const* name, T& to, char const* what, std::type_identity_t<T> least = {},
              std::type_identity_t<T> most = std::numeric_limits<T>::max()) {
    std::ostringstream standard, range;
    standard << to;
    range << name << ": must be a number from " << least << " to " << most << ", not ";
    add(name, "N", what, standard.str(), [=, &to, refusal = range.str()](std::string const& given) {
      auto const [end, failed] = std::from_chars(given.data(), given.data() + given.size(), to);
      require(failed == std::errc() && *end == 0 && to >= least && to <= most, refusal + given);
    });
  }

  // Returns: false if the arguments ask for help or the version, which is then printed.
  bool understood(int argc, char** argv, std::string const& end_of_help) const {
    for (int i = 1; i < argc; ++i) {
      std::string const name = argv[i];
      if (says_version(program_.c_str(), name))
        return false;
      if (name == "--help" || name == "-h")
        return std::printf("%s  -h, --help, --version\n\n%s", help_.c_str(), end_of_help.c_str()), false;
      auto const its = std::find_if(all_.begin(), all_.end(), [&](option const& o) { return o.name == name; });
      require(its != all_.end(), name + " is no option");
      require(!its->has_value || i + 1 < argc, name + " lacks its value");
      its->take(its->has_value ? argv[++i] : "");
    }
    return true;
  }

 private:
  struct option {
    std::string name;
    bool has_value;
    std::function<void(std::string const&)> take;
  };
  void add(std::string const& name, std::string const& unit, std::string const& what, std::string const& standard,
           std::function<void(std::string const&)> take) {
    std::string left = "  " + name + " " + unit;
    left.resize(std::max<std::size_t>(left.size() + 1, 24), ' ');
    help_ += left + what + (standard.empty() ? "" : " (default: " + standard + ")") + "\n";
    all_.push_back({name, !unit.empty(), std::move(take)});
  }
  std::string program_, help_;
  std::vector<option> all_;
};

}  // namespace examples
