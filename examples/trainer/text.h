// A text as a sequence of token numbers, and the batches that a step trains on.
// Threads: const after construction; any number of replicas may read it at once.
#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace trainer {

class text {
 public:
  // Reads the file. Keeps the last tenth for validation.
  // Throws: std::runtime_error with the file's name and the reason (not readable, too short, not text)
  text(std::filesystem::path const&, int context);

  int vocabulary() const noexcept { return static_cast<int>(characters_.size()); }  // distinct characters
  int context() const noexcept { return context_; }
  std::size_t size() const noexcept { return tokens_.size(); }
  std::span<std::uint8_t const> training() const noexcept { return std::span(tokens_).first(split_); }
  std::span<std::uint8_t const> validation() const noexcept { return std::span(tokens_).subspan(split_); }
  std::string const& characters() const noexcept { return characters_; }               // token i is characters()[i]
  int token(char c) const noexcept { return number_[static_cast<unsigned char>(c)]; }  // -1: not in this text

 private:
  int context_;
  std::string characters_;
  int number_[256];
  std::vector<std::uint8_t> tokens_;
  std::size_t split_;
};

// Rows of `context` characters each, the target character of each row, and the positions of each character.
// The positions give the embedding's gradient a fixed order of summation.
struct batch_view {
  std::span<std::int32_t> inputs;   // rows x context
  std::span<std::int32_t> targets;  // rows
  std::span<std::int32_t> starts;   // vocabulary + 1: first index in `places` for each character
  std::span<std::int32_t> places;   // rows x context: indices into inputs, grouped by character
};
std::size_t batch_elements(int rows, int context, int vocabulary);
batch_view view_batch(std::span<std::int32_t> storage, int rows, int context, int vocabulary);

// Writes rows first_row … first_row + rows - 1 of this step's global batch. Independent of the number of
// replicas.
void draw_batch(text const&, std::uint64_t seed, std::int64_t step, int first_row, batch_view into);
// Writes rows that start at `first`, `first + stride`, … of the validation part.
void validation_batch(text const&, std::size_t first, std::size_t stride, batch_view into);

}  // namespace trainer
