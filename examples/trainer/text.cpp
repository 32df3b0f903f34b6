// Reads a text and cuts it into batches.
// Threads: see text.h.
#include "text.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "mix.h"

namespace trainer {
namespace {

std::string contents(std::filesystem::path const& file) {
  std::ifstream in(file, std::ios::binary);
  std::string bytes;
  if (in.is_open() && !std::filesystem::is_directory(file))
    bytes.assign(std::istreambuf_iterator<char>(in), {});
  else
    in.setstate(std::ios::badbit);
  if (in.bad())
    throw std::runtime_error("text: " + file.string() + " cannot be read; name a readable file with --text");
  return bytes;
}

void fill(text const& from, std::span<std::uint8_t const> part, std::size_t at, int row, batch_view into) {
  std::size_t const context = static_cast<std::size_t>(from.context());
  for (std::size_t c = 0; c < context; ++c)
    into.inputs[static_cast<std::size_t>(row) * context + c] = part[at + c];
  into.targets[static_cast<std::size_t>(row)] = part[at + context];
}

// Stable counting sort of the inputs by character, so the order of each sum is fixed.
void sort_places(batch_view into) {
  std::fill(into.starts.begin(), into.starts.end(), 0);
  for (std::int32_t const token : into.inputs)
    ++into.starts[static_cast<std::size_t>(token) + 1];
  for (std::size_t i = 1; i < into.starts.size(); ++i)
    into.starts[i] += into.starts[i - 1];
  std::vector<std::int32_t> next(into.starts.begin(), into.starts.end() - 1);
  for (std::size_t i = 0; i < into.inputs.size(); ++i) {
    into.places[static_cast<std::size_t>(next[static_cast<std::size_t>(into.inputs[i])]++)] =
        static_cast<std::int32_t>(i);
  }
}

}  // namespace

text::text(std::filesystem::path const& file, int context) : context_(context) {
  std::string const bytes = contents(file);
  std::size_t const least = static_cast<std::size_t>(context + 1) * 20;
  if (bytes.size() < least) {
    throw std::runtime_error("text: " + file.string() + " has " + std::to_string(bytes.size()) +
                             " bytes, training needs at least " + std::to_string(least));
  }
  if (bytes.find('\0') != bytes.npos)
    throw std::runtime_error("text: " + file.string() + " is not text: it holds a zero byte");
  bool seen[256] = {};
  for (char const c : bytes)
    seen[static_cast<unsigned char>(c)] = true;
  for (int c = 0; c < 256; ++c) {
    number_[c] = seen[c] ? static_cast<int>(characters_.size()) : -1;
    if (seen[c])
      characters_.push_back(static_cast<char>(c));
  }
  tokens_.reserve(bytes.size());
  for (char const c : bytes)
    tokens_.push_back(static_cast<std::uint8_t>(number_[static_cast<unsigned char>(c)]));
  split_ = tokens_.size() - tokens_.size() / 10;
}

std::size_t batch_elements(int rows, int context, int vocabulary) {
  return static_cast<std::size_t>(rows) * static_cast<std::size_t>(2 * context + 1) +
         static_cast<std::size_t>(vocabulary) + 1;
}

batch_view view_batch(std::span<std::int32_t> storage, int rows, int context, int vocabulary) {
  std::size_t const inputs = static_cast<std::size_t>(rows) * static_cast<std::size_t>(context);
  std::size_t const starts = static_cast<std::size_t>(vocabulary) + 1;
  return {storage.subspan(0, inputs), storage.subspan(inputs, static_cast<std::size_t>(rows)),
          storage.subspan(inputs + static_cast<std::size_t>(rows), starts),
          storage.subspan(inputs + static_cast<std::size_t>(rows) + starts, inputs)};
}

void draw_batch(text const& from, std::uint64_t seed, std::int64_t step, int first_row, batch_view into) {
  auto const part = from.training();
  std::size_t const choices = part.size() - static_cast<std::size_t>(from.context());
  for (int row = 0; row < static_cast<int>(into.targets.size()); ++row) {
    std::uint64_t const draw =
        mix(seed ^ mix(static_cast<std::uint64_t>(step) << 20 ^ static_cast<std::uint64_t>(first_row + row)));
    fill(from, part, draw % choices, row, into);
  }
  sort_places(into);
}

void validation_batch(text const& from, std::size_t first, std::size_t stride, batch_view into) {
  auto const part = from.validation();
  for (int row = 0; row < static_cast<int>(into.targets.size()); ++row)
    fill(from, part, first + static_cast<std::size_t>(row) * stride, row, into);
  sort_places(into);
}

}  // namespace trainer
