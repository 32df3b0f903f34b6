// Text for people: suggestions for a misspelt word, and names from outside without terminal controls.
// Threads: any.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace weir::base {

// The candidate nearest to `word` in edits; one that begins with it counts as one edit. None: none is near.
std::optional<std::string_view> near(std::string_view word, std::span<std::string_view const> candidates);
// "Did you mean cuda? ", with `before` in front of the candidate; empty if none is near.
std::string did_you_mean(std::string_view word, std::span<std::string_view const> candidates,
                         std::string_view before = {});
std::string in_quotes(std::string_view);
std::string all_of(std::span<std::string_view const> words);  // "auto, cuda, sim"

std::string gpu_name(int device);             // "gpu:0"
std::string pair_text(int from, int to);      // "gpu:0 -> gpu:1"
std::string address_text(std::uintptr_t at);  // "0x7f10…"
inline std::string address_text(void const* at) {
  return address_text(reinterpret_cast<std::uintptr_t>(at));
}

// Words and numbers, one after another.
template <class... Parts>
std::string text(Parts const&... parts) {
  std::string all;
  auto const add = [&]<class Part>(Part const& part) {
    if constexpr (std::is_convertible_v<Part const&, std::string_view> || std::is_same_v<Part, char>)
      all += part;
    else
      all += std::to_string(part);
  };
  (add(parts), ...);
  return all;
}

// The name of an enumerator, of all in order from 0.
template <class Enum>
constexpr std::string_view name_in(std::initializer_list<std::string_view> all, Enum which) noexcept {
  auto const i = static_cast<std::size_t>(which);
  return i < all.size() ? all.begin()[i] : "unknown";
}

// Makes text of a file safe for a terminal: UTF-8 in which each control character becomes "?".
std::string visible(std::string_view);
// A JSON string with its quotes, which is also safe inside an HTML page.
std::string json_text(std::string_view);
// A JSON number with that many decimals; "null" if it is not finite.
std::string json_number(double, int digits);

}  // namespace weir::base
