// Reads the parameter list of a demangled name.
// Threads: any.
#include "runtime/driver/kernel_signature.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>

namespace weir::driver {
namespace {

constexpr std::string_view spaces = " ";

std::string_view trimmed(std::string_view text) {
  std::size_t const first = text.find_first_not_of(spaces);
  if (first == text.npos)
    return {};
  return text.substr(first, text.find_last_not_of(spaces) - first + 1);
}

bool opens(char c) {
  return c == '(' || c == '<' || c == '[' || c == '{';
}
bool closes(char c) {
  return c == ')' || c == '>' || c == ']' || c == '}';
}

// The position of the bracket that the last ')' closes. npos: there is none
std::size_t start_of_list(std::string_view text, std::size_t end) {
  int nested = 0;
  for (std::size_t i = end + 1; i-- > 0;) {
    if (text[i] == ')')
      ++nested;
    else if (text[i] == '(' && --nested == 0)
      return i;
  }
  return text.npos;
}

std::vector<std::string_view> parts_of(std::string_view list) {
  std::vector<std::string_view> parts;
  int nested = 0;
  std::size_t from = 0;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (opens(list[i]))
      ++nested;
    else if (closes(list[i]))
      --nested;
    if (list[i] != ',' || nested != 0)
      continue;
    parts.push_back(trimmed(list.substr(from, i - from)));
    from = i + 1;
  }
  parts.push_back(trimmed(list.substr(from)));
  return parts;
}

parameter_kind kind_of(std::string_view type) {
  constexpr std::string_view restricted = "__restrict__", constant = "const";
  if (type.ends_with(restricted))
    type = trimmed(type.substr(0, type.size() - restricted.size()));
  if (!type.ends_with('*') && !type.ends_with('&'))
    return parameter_kind::value;
  return trimmed(type.substr(0, type.size() - 1)).ends_with(constant) ? parameter_kind::reads
                                                                      : parameter_kind::may_write;
}

// A template's name begins with its return type, which kernels have as "void".
std::string_view without_return_type(std::string_view name) {
  constexpr std::string_view nothing = "void ";
  return name.starts_with(nothing) ? name.substr(nothing.size()) : name;
}

}  // namespace

kernel_signature signature_of_text(std::string_view text) {
  kernel_signature is;
  std::size_t const end = text.rfind(')');
  std::size_t const start = end == text.npos ? text.npos : start_of_list(text, end);
  is.name = std::string(without_return_type(text.substr(0, start)));
  if (start == text.npos)
    return is;
  is.is_known = true;
  std::string_view const list = trimmed(text.substr(start + 1, end - start - 1));
  if (list.empty() || list == "void")
    return is;
  for (std::string_view const part : parts_of(list))
    is.parameters.push_back(kind_of(part));
  return is;
}

kernel_signature signature_of(char const* mangled) {
  int failed = 0;
  std::unique_ptr<char, void (*)(void*)> const text(abi::__cxa_demangle(mangled, nullptr, nullptr, &failed), std::free);
  if (text)
    return signature_of_text(text.get());
  kernel_signature unread;
  unread.name = mangled;
  return unread;
}

}  // namespace weir::driver
