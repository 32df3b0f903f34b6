// Demangled and shortened names of kernels.
// Threads: as kernel_names.h says.
#include "simulator/checker/kernel_names.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>

namespace weir::driver::check {
namespace {

// The first `wanted` outside of angle brackets; npos: none.
std::size_t first_outside(std::string_view text, char wanted) {
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    bool const is_operator = i >= 8 && text.substr(i - 8, 8) == "operator";
    if (depth == 0 && text[i] == wanted)
      return i;
    if (text[i] == '<' && !is_operator)
      ++depth;
    else if (text[i] == '>' && depth > 0)
      --depth;
  }
  return std::string_view::npos;
}

}  // namespace

std::string demangled(char const* name) {
  int failed = 0;
  std::unique_ptr<char, void (*)(void*)> const text(abi::__cxa_demangle(name, nullptr, nullptr, &failed), std::free);
  return failed == 0 && text ? text.get() : name;
}

std::string short_name(std::string_view name) {
  constexpr std::string_view anonymous = "(anonymous namespace)::";
  std::string whole(name);
  for (auto at = whole.find(anonymous); at != std::string::npos; at = whole.find(anonymous, at))
    whole.erase(at, anonymous.size());
  std::string_view rest = whole;
  rest = rest.substr(0, first_outside(rest, '('));
  if (auto const result = first_outside(rest, ' '); result != std::string_view::npos && result + 1 < rest.size())
    rest = rest.substr(result + 1);
  constexpr std::size_t most = 40;  // of template arguments
  auto const begin = rest.find('<');
  if (begin == std::string_view::npos || rest.back() != '>' || rest.size() - begin <= most)
    return std::string(rest);
  return std::string(rest.substr(0, begin)) + "<...>";
}

kernel_names::launch const& kernel_names::of(char const* name, suppressions const& rules) {
  if (auto const known = by_pointer_.find(name); known != by_pointer_.end()) [[likely]]
    return *known->second;
  std::string const whole = name ? demangled(name) : "a kernel without a name", brief = short_name(whole);
  launch const made{"launch of " + (name ? brief : whole), rules.name_kernel(whole) || rules.name_kernel(brief)};
  launch const& kept = by_name_.try_emplace(whole, made).first->second;
  by_pointer_.emplace(name, &kept);
  return kept;
}

}  // namespace weir::driver::check
