// Calls with their text, and which of them throw an error without the line of their caller.
// Threads: one.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "weir/error.h"

namespace weir {

struct named_call {
  char const* text;
  std::function<void()> make;
};
inline named_call named(char const* text, std::function<void()> make) {
  return {text, std::move(make)};
}
#define CALL(...) named(#__VA_ARGS__, [&] { static_cast<void>(__VA_ARGS__); })
#define MAKE(...) named(#__VA_ARGS__, [&] { __VA_ARGS__; })

// The calls that threw nothing, or from another file than `here`, one a line. none_too: an error may name no line.
inline std::string wrong_among(std::vector<named_call> const& calls, bool none_too = false,
                               source_location here = source_location::current()) {
  std::string wrong;
  for (named_call const& one : calls) {
    try {
      one.make();
      wrong += std::string(one.text) + ": nothing was thrown\n";
    } catch (error const& e) {
      source_location const at = e.where();
      std::string_view const file = at.file_name() ? at.file_name() : "";
      if (!(file.empty() && none_too) && file != here.file_name())
        wrong += std::string(one.text) + ": " + std::string(file) + ":" + std::to_string(at.line()) + "\n";
    } catch (std::exception const& e) {
      wrong += std::string(one.text) + ": " + e.what() + "\n";
    }
  }
  return wrong;
}

}  // namespace weir
