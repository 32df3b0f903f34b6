// Text for a person: the right word beside a wrong one,
// and names from outside without what a terminal would obey.
// Threads: any.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace weir::base {

// The candidate with the fewest edits from `word`, or that begins with it. None:
// all differ in more than a third of the letters.
std::optional<std::string_view> near(std::string_view word, std::span<std::string_view const> candidates);
// "Did you mean cuda? ", with `before` in front of the candidate; empty where none is near.
std::string did_you_mean(std::string_view word, std::span<std::string_view const> candidates,
                         std::string_view before = {});
std::string in_quotes(std::string_view);
std::string all_of(std::span<std::string_view const> words);  // "auto, cuda, sim"

std::string gpu_name(int device);             // "gpu:0"
std::string pair_text(int from, int to);      // "gpu:0 -> gpu:1"
std::string address_text(std::uintptr_t at);  // "0x7f10…"
inline std::string address_text(void const* at) { return address_text(reinterpret_cast<std::uintptr_t>(at)); }

// Words and numbers, one after another.
template <class... Parts>
std::string text(Parts const&... parts) {
  std::string all;
  auto const add = [&]<class Part>(Part const& part) {
    if constexpr (std::is_convertible_v<Part const&, std::string_view> || std::is_same_v<Part, char>) all += part;
    else all += std::to_string(part);
  };
  (add(parts), ...);
  return all;
}

// Text of a file, or a name in it, for a terminal:
// UTF-8 without control characters, each of which becomes "?".
std::string visible(std::string_view);
// A string of JSON, in its quotes, which may also stand in a page.
std::string json_text(std::string_view);
// A number of JSON with so many digits behind the point; "null" where it is infinite or none.
std::string json_number(double, int digits);

}  // namespace weir::base
