// A text as a sequence of small numbers, and the batches a step trains on.
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
  // Reads the file. The last tenth is kept for validation.
  // Throws: std::runtime_error naming the file and what is wrong with it (cannot be read,
  // too short, not text)
  text(std::filesystem::path const&, int context);

  int vocabulary() const noexcept { return static_cast<int>(characters_.size()); }  // distinct characters
  int context() const noexcept { return context_; }
  std::size_t size() const noexcept { return tokens_.size(); }
  std::span<std::uint8_t const> training() const noexcept { return std::span(tokens_).first(split_); }
  std::span<std::uint8_t const> validation() const noexcept { return std::span(tokens_).subspan(split_); }
  std::string const& characters() const noexcept { return characters_; }  // of token i: characters()[i]
  int token(char c) const noexcept { return number_[static_cast<unsigned char>(c)]; }  // -1: not in this text

 private:
  int context_;
  std::string characters_;
  int number_[256];
  std::vector<std::uint8_t> tokens_;
  std::size_t split_;
};

// Rows of context characters each, the character that follows each row, and for every character of the
// vocabulary the places where it stands, so that the gradient of its embedding is a sum in a fixed order.
struct batch_view {
  std::span<std::int32_t> inputs;   // rows x context
  std::span<std::int32_t> targets;  // rows
  std::span<std::int32_t> starts;   // vocabulary + 1: where the places of each character begin
  std::span<std::int32_t> places;   // rows x context: indices into inputs, by character
};
std::size_t batch_elements(int rows, int context, int vocabulary);
batch_view view_batch(std::span<std::int32_t> storage, int rows, int context, int vocabulary);

// Rows first_row … first_row + rows - 1 of the global batch of this step.
// The same for every number of replicas.
void draw_batch(text const&, std::uint64_t seed, std::int64_t step, int first_row, batch_view into);
// Rows that start at `first`, `first + stride`, … of the validation part.
void validation_batch(text const&, std::size_t first, std::size_t stride, batch_view into);

std::uint64_t mix(std::uint64_t) noexcept;  // a random-looking number from any number (splitmix64)

}  // namespace trainer
