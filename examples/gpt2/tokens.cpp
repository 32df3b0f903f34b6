// Reads tokens and cuts them into rows.
// Threads: see gpt2.h.
#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "examples/gpt2/gpt2.h"

namespace gpt2 {
namespace {

std::vector<std::uint16_t> of_llm_c(std::string const& file, std::string const& bytes) {
  static_assert(std::endian::native == std::endian::little);
  std::int32_t header[256] = {};
  std::memcpy(header, bytes.data(), std::min(bytes.size(), sizeof header));
  if (header[0] != 20240520 || header[1] != 1)
    throw std::runtime_error(file + " begins with " + std::to_string(header[0]) + ", " + std::to_string(header[1]) +
                             "; tokens of llm.c begin with 20240520, 1, and text has a name without .bin");
  std::vector<std::uint16_t> all(static_cast<std::size_t>(std::max(header[2], 0)));
  if (bytes.size() != sizeof header + 2 * all.size())
    throw std::runtime_error(file + " has " + std::to_string(bytes.size()) + " B, and its header says " +
                             std::to_string(header[2]) + " tokens; it is cut off or damaged");
  std::memcpy(all.data(), bytes.data() + sizeof header, 2 * all.size());
  return all;
}

}  // namespace

corpus read(settings const& s) {
  std::ifstream in(s.tokens, std::ios::binary);
  std::string bytes;
  if (in && !std::filesystem::is_directory(s.tokens))
    bytes.assign(std::istreambuf_iterator<char>(in), {});
  if (!in || bytes.empty())
    throw std::runtime_error(s.tokens + " cannot be read or is empty; name a file of tokens with --tokens");
  std::vector<std::uint16_t> all(bytes.size());
  if (s.tokens.ends_with(".bin"))
    all = of_llm_c(s.tokens, bytes);
  else
    std::ranges::transform(bytes, all.begin(), [](char c) { return static_cast<unsigned char>(c); });
  for (std::size_t i = 0; i < all.size(); ++i)
    if (all[i] >= s.vocabulary)
      throw std::runtime_error(s.tokens + ": token " + std::to_string(i) + " is " + std::to_string(all[i]) +
                               ", outside of --vocabulary " + std::to_string(s.vocabulary));
  if (all.size() / 10 <= static_cast<std::size_t>(s.context) || all.size() >> 32)
    throw std::runtime_error(s.tokens + " has " + std::to_string(all.size()) +
                             " tokens; its last tenth needs more than " + "--context " + std::to_string(s.context) +
                             ", and the file less than 2^32");
  auto const last_tenth = all.end() - static_cast<std::ptrdiff_t>(all.size() / 10);
  return {{all.begin(), last_tenth}, {last_tenth, all.end()}};
}

void fill(std::span<std::uint16_t const> from, std::int64_t first_row, settings const& s, std::int64_t* into) {
  std::uint64_t const places = from.size() - static_cast<std::size_t>(s.context);
  // Mixed: seeds that follow each other give rows far apart.
  std::uint64_t const shift = static_cast<std::uint64_t>(s.seed) * 0x9e3779b97f4a7c15 >> 32;
  for (std::int64_t i = 0; i < s.batch * s.context; ++i) {
    auto const row = static_cast<std::uint64_t>(first_row + i / s.context);
    std::uint64_t const begin = (row * 2654435769 + shift) % (1ull << 32) * places >> 32;
    std::uint64_t const at = begin + static_cast<std::uint64_t>(i % s.context);
    into[i] = from[at], into[s.batch * s.context + i] = from[at + 1];
  }
}

}  // namespace gpt2
