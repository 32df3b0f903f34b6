// A scenario: a small program over weir that is run again and again, each time with another call failing.
// Threads: one runs it, unless it makes more itself.
//
// To add one: write a function in scenarios.cpp (or a file beside it) and a line in its table.
#pragma once
#include <ostream>
#include <span>
#include <string>

#include "weir/runtime.h"

namespace weir::faults {

struct scenario {
  char const* name;
  simulated machine;         // its seed is chosen by whoever runs it
  options with = {};
  // Ensures: all that it took is given back, however it ends. Returns: the bytes it saw, the same every time.
  std::string (*run)();
  bool to_the_end = false;   // calls fail while the runtime ends, too

  friend void PrintTo(scenario const& s, std::ostream* out) { *out << s.name; }
};

std::span<scenario const> scenarios();

}  // namespace weir::faults
