// The header of a safetensors file: what is where in it, and texts.
//   8 bytes    the length of the header, little-endian
//   header     JSON: {"__metadata__": {"name": "text"},
//                     "item": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
//   the rest   the items' bytes. Offsets count from here. They cover it all, without gaps or overlap
// Source: github.com/huggingface/safetensors, README.md ("Format") and safetensors/src/tensor.rs (validate).
//
// weir's checksums are the text "weir.crc32": words of eight hexadecimal digits. The first is the number of
// other texts. One for each of them follows, by name. One for each item is last, by name, of its name, type,
// shape and bytes. So another program may order the items as it likes, and add texts.
// Threads: values.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checksum.h"
#include "weir/checkpoint.h"

namespace weir::checkpoints {

inline constexpr std::string_view metadata_key = "__metadata__", checksum_key = "weir.crc32";
inline constexpr std::size_t length_bytes = 8;
inline constexpr std::uint64_t most_header_bytes = 100'000'000;  // as in the source

struct place {
  checkpoint_entry is;
  std::uint64_t begin = 0;  // its offset; it ends `is.bytes` further
};

struct header {
  std::vector<place> places;  // in the order of the file
  checkpoint_metadata texts;  // with the checksums
};

// The bytes of a file in front of the items' bytes, the length included: a multiple of eight.
std::string text_of(header const&);
std::uint64_t length_in(std::span<std::byte const, length_bytes>) noexcept;
// Reads a header, without its length. `data_bytes`: how many follow it in the file. The memory that it takes
// is in proportion to the text.
// Returns: why it is refused; empty if `into` has all.
std::string read_header(std::string_view text, std::uint64_t data_bytes, header& into);

bool is_utf8(std::string_view) noexcept;

checksum begun_checksum(checkpoint_entry const&);                           // the item's bytes follow
std::vector<std::uint32_t> checksums_of_texts(checkpoint_metadata const&);  // but for the checksums
std::vector<std::size_t> by_name(std::vector<place> const&);                // their numbers
std::string words_of(std::vector<std::uint32_t> const&);
// Returns: none unless the text is words, and has those that its first one counts.
std::optional<std::vector<std::uint32_t>> checksums_in(std::string_view text);

}  // namespace weir::checkpoints
