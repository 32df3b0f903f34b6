// The rules of a file of suppressions, line by line.
// Threads: as suppressions.h says.
#include "simulator/checker/suppressions.h"

#include <charconv>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "runtime/base/text.h"
#include "weir/error.h"

namespace weir::driver::check {
namespace {

std::string_view trimmed(std::string_view text) {
  auto const first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos)
    return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

[[noreturn]] void refuse(std::string_view where, std::size_t line, std::string_view is, char const* remedy) {
  throw invalid_use("WEIR_CHECK_SUPPRESS", base::text(where, " line ", line, ": ", base::in_quotes(is)), remedy, {},
                    error_id{586});
}

}  // namespace

bool matches(std::string_view glob, std::string_view text) noexcept {
  constexpr auto none = std::string_view::npos;
  std::size_t g = 0, t = 0, star = none, tried = 0;
  while (t < text.size()) {
    if (g < glob.size() && glob[g] == '*') {
      star = g++;
      tried = t;
    } else if (g < glob.size() && (glob[g] == '?' || glob[g] == text[t])) {
      ++g;
      ++t;
    } else if (star != none) {  // the last star takes one character more
      g = star + 1;
      t = ++tried;
    } else {
      return false;
    }
  }
  return glob.find_first_not_of('*', g) == none;
}

void suppressions::add(std::string_view line, std::string_view where, std::size_t number) {
  line = trimmed(line);
  if (line.empty() || line.front() == '#')
    return;
  auto const colon = line.find(':');
  std::string_view const key = trimmed(line.substr(0, colon));
  std::string_view const value = colon == std::string_view::npos ? std::string_view() : trimmed(line.substr(colon + 1));
  constexpr char const* remedy = "Write kernel: GLOB, or block: FILE:LINE";
  if (value.empty() || (key != "kernel" && key != "block"))
    refuse(where, number, line, remedy);
  if (key == "kernel") {
    kernels_.emplace_back(value);
    return;
  }
  auto const last = value.rfind(':');
  place p;
  if (last != std::string_view::npos)
    p.file = value.substr(0, last);
  std::string_view const digits = last == std::string_view::npos ? std::string_view() : value.substr(last + 1);
  auto const [end, failed] = std::from_chars(digits.data(), digits.data() + digits.size(), p.line);
  if (p.file.empty() || digits.empty() || failed != std::errc{} || end != digits.data() + digits.size())
    refuse(where, number, line, remedy);
  blocks_.push_back(std::move(p));
}

suppressions suppressions::parse(std::string_view text, std::string_view where) {
  suppressions all;
  for (std::size_t number = 1; !text.empty(); ++number) {
    auto const end = text.find('\n');
    all.add(text.substr(0, end), where, number);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return all;
}

suppressions suppressions::of_process() {
  char const* const path = std::getenv("WEIR_CHECK_SUPPRESS");
  if (!path || !*path)
    return {};
  std::ifstream file(path);
  std::string const text{std::istreambuf_iterator<char>(file), {}};
  if (!file)
    throw invalid_use("WEIR_CHECK_SUPPRESS", base::in_quotes(path) + " cannot be read",
                      "Name a file with lines kernel: GLOB and block: FILE:LINE", {}, error_id{585});
  return parse(text, path);
}

bool suppressions::name_kernel(std::string_view name) const {
  for (std::string const& glob : kernels_)
    if (matches(glob, name))
      return true;
  return false;
}

bool suppressions::name_block(source_location allocated) const {
  if (blocks_.empty() || !allocated.file_name())
    return false;
  std::string_view const file = allocated.file_name();
  for (place const& p : blocks_) {
    if (p.line != allocated.line() || !file.ends_with(p.file))
      continue;
    std::string_view const folder = file.substr(0, file.size() - p.file.size());
    if (folder.empty() || folder.back() == '/')
      return true;
  }
  return false;
}

}  // namespace weir::driver::check
