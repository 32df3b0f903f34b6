// Edits are counted after Levenshtein.
// Threads: any.
#include "runtime/base/text.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <utility>
#include <vector>

namespace weir::base {
namespace {

// row[j]: the fewest edits from the first i letters of `a` to the first j of `b`.
// diagonal: the entry j - 1 of the row before.
std::size_t edits(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      std::size_t const changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      std::size_t const removed = row[j] + 1, inserted = row[j - 1] + 1;
      diagonal = row[j];
      row[j] = std::min({changed, removed, inserted});
    }
  }
  return row.back();
}

}  // namespace

std::optional<std::string_view> near(std::string_view word, std::span<std::string_view const> candidates) {
  std::size_t const n = word.size();
  // A third of the letters, but at least 2: exchanging two letters counts 2. Of short words at most half.
  std::size_t const most = std::min((n + 1) / 2, std::max<std::size_t>(2, n / 3));
  std::size_t fewest = most + 1;
  std::optional<std::string_view> found;
  if (n > 100)
    return found;
  for (std::string_view const one : candidates) {
    bool const is_abbreviated = n > 2 && one.starts_with(word);
    std::size_t const e = is_abbreviated ? 1 : edits(word, one);
    if (e < fewest)
      fewest = e, found = one;
  }
  return found;
}

std::string did_you_mean(std::string_view word, std::span<std::string_view const> candidates, std::string_view before) {
  auto const found = near(word, candidates);
  return found ? "Did you mean " + std::string(before) + std::string(*found) + "? " : std::string();
}

std::string in_quotes(std::string_view s) {
  return "\"" + std::string(s) + "\"";
}

std::string all_of(std::span<std::string_view const> words) {
  std::string all;
  for (std::string_view const w : words)
    all += (all.empty() ? "" : ", ") + std::string(w);
  return all;
}

std::string gpu_name(int device) {
  return "gpu:" + std::to_string(device);
}
std::string pair_text(int from, int to) {
  return gpu_name(from) + " -> " + gpu_name(to);
}

std::string address_text(std::uintptr_t at) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(at));
  return text;
}

namespace {
// Whether no shorter form exists, and the code is that of a character (Unicode 15, table 3-7).
bool may_follow(unsigned char first, unsigned char second) {
  switch (first) {
    case 0xe0: return second >= 0xa0;
    case 0xed: return second < 0xa0;
    case 0xf0: return second >= 0x90;
    case 0xf4: return second < 0x90;
    default: return true;
  }
}

// Length in bytes of the UTF-8 character at the start of the text; 0: not printable. Requires: not empty
std::size_t shown_bytes(std::string_view s) {
  auto const byte = [&](std::size_t i) { return static_cast<unsigned char>(s[i]); };
  if (byte(0) < 0x80) {
    bool const is_control = byte(0) < 0x20 || byte(0) == 0x7f;
    return is_control ? 0 : 1;
  }
  // No character begins with such a byte.
  if (byte(0) < 0xc2 || byte(0) > 0xf4)
    return 0;
  std::size_t const n = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
  if (s.size() < n)
    return 0;
  for (std::size_t i = 1; i < n; ++i)
    if ((byte(i) & 0xc0) != 0x80)
      return 0;
  if (!may_follow(byte(0), byte(1)))
    return 0;
  bool const is_c1_control = byte(0) == 0xc2 && byte(1) < 0xa0;
  return is_c1_control ? 0 : n;
}
}  // namespace

std::string visible(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    std::size_t const n = shown_bytes(text);
    out.append(n ? text.substr(0, n) : "?");
    text.remove_prefix(n ? n : 1);
  }
  return out;
}

std::string json_text(std::string_view text) {
  std::string out = "\"";
  for (char const c : text) {
    bool const plain =
        static_cast<unsigned char>(c) >= 0x20 && std::string_view("\"\\<>&").find(c) == std::string_view::npos;
    if (plain) {
      out += c;
      continue;
    }
    char code[8];
    std::snprintf(code, sizeof code, "\\u%04x", c);
    out += code;
  }
  return out + '"';
}

std::string json_number(double value, int digits) {
  if (!std::isfinite(value))
    return "null";
  char text[340];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

}  // namespace weir::base
