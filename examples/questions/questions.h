// Small programs about questions of memory use, on simulated devices. docs/how-to/where-did-my-memory-go.md shows
// their output.
// Threads: one.
#pragma once
#include <ostream>
#include <span>
#include <string_view>

namespace questions {

struct question {
  std::string_view name;
  std::string_view asks;  // the heading of its answer on the page
  void (*answer)(std::ostream&);
};
std::span<question const> all();

}  // namespace questions
