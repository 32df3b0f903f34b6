// Writes headers, and checks them word by word.
// Threads: see header.h.
#include "checkpoint/header.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <numeric>

#include "runtime/base/text.h"

// Compiled here as a part of weir. Its own name keeps it apart from a program's Boost.JSON.
#define json weir_json
#include <boost/json/basic_parser_impl.hpp>
#include <boost/json/src.hpp>
#undef json

namespace weir::checkpoints {
namespace {

namespace parsing = boost::weir_json;

struct named_type {
  std::string_view name;
  dtype is;
};
constexpr std::array<named_type, 10> types{{{"F32", float32},
                                            {"F16", float16},
                                            {"BF16", bfloat16},
                                            {"F64", float64},
                                            {"I8", int8},
                                            {"U8", uint8},
                                            {"I16", int16},
                                            {"I32", int32},
                                            {"I64", int64},
                                            {"BOOL", boolean}}};

std::string_view safetensors_name(dtype t) noexcept {
  return std::ranges::find(types, t, &named_type::is)->name;
}

std::string in_words(std::string_view name) {
  return base::in_quotes(base::visible(name.substr(0, 200)));
}

// ---- what is read ---------------------------------------------------------------------------------------

// Takes the parser's events. It knows three levels: the header, an item or the texts, and an item's numbers.
class header_events {
 public:
  using text = parsing::string_view;
  using failed = boost::system::error_code;
  static constexpr std::size_t no_limit = std::size_t(-1), max_object_size = no_limit, max_array_size = no_limit,
                               max_key_size = no_limit, max_string_size = no_limit;

  explicit header_events(header& into) : into_(into) {}
  std::string const& why() const noexcept { return why_; }

  bool on_document_begin(failed&) { return true; }
  bool on_document_end(failed&) { return true; }
  bool on_object_begin(failed& f) {
    if (depth_ == 1 && !begin_member())
      return require(false, "a second object of texts", f);
    return require(++depth_ <= 2 && numbers_ == nullptr, "an object within an item", f);
  }
  bool on_object_end(std::size_t, failed& f) {
    bool const ends_an_item = --depth_ == 1 && !in_texts_;
    return !ends_an_item || end_item(f);
  }
  bool on_array_begin(failed& f) {
    bool const is_shape = field_ == "shape", is_offsets = field_ == "data_offsets";
    bool const fits = depth_ == 2 && !in_texts_ && numbers_ == nullptr && (is_shape || is_offsets);
    numbers_ = is_shape ? &shape_ : &offsets_;
    return require(fits, "a list where none belongs", f) && require(!*numbers_, "a field twice", f) &&
           (numbers_->emplace(), true);
  }
  bool on_array_end(std::size_t, failed&) {
    numbers_ = nullptr;
    return true;
  }
  bool on_key_part(text part, std::size_t, failed&) { return add(part); }
  bool on_key(text part, std::size_t, failed&) {
    add(part);
    (depth_ == 1 ? name_ : field_) = std::exchange(word_, {});
    return true;
  }
  bool on_string_part(text part, std::size_t, failed&) { return add(part); }
  bool on_string(text part, std::size_t, failed& f) {
    add(part);
    std::string const value = std::exchange(word_, {});
    if (depth_ == 2 && in_texts_)
      return require(into_.texts.emplace(field_, value).second, "a text twice", f);
    bool const fits = depth_ == 2 && field_ == "dtype" && numbers_ == nullptr;
    return require(fits, "a text where none belongs", f) && require(!type_, "a field twice", f) &&
           (type_ = value, true);
  }
  bool on_number_part(text, failed&) { return true; }
  bool on_int64(std::int64_t n, text, failed& f) {
    return require(n >= 0, "a negative number", f) && on_uint64(static_cast<std::uint64_t>(n), {}, f);
  }
  bool on_uint64(std::uint64_t n, text, failed& f) {
    // A shape has at most eight extents, and the offsets are two.
    return require(numbers_ != nullptr, "a number where none belongs", f) &&
           require((*numbers_)->size() < static_cast<std::size_t>(shape::max_rank), "more than 8 extents", f) &&
           ((*numbers_)->push_back(n), true);
  }
  bool on_double(double, text, failed& f) { return require(false, "a number that is not whole", f); }
  bool on_bool(bool, failed& f) { return require(false, "a truth value", f); }
  bool on_null(failed& f) { return require(false, "null", f); }
  bool on_comment_part(text, failed&) { return true; }
  bool on_comment(text, failed&) { return true; }

 private:
  using list = std::optional<std::vector<std::uint64_t>>;

  bool add(text part) {
    word_.append(part.data(), part.size());
    return true;
  }
  bool require(bool fits, std::string const& what, failed& f) {
    if (fits)
      return true;
    why_ = (name_.empty() ? "its header has " : in_words(name_) + " has ") + what;
    f = parsing::error::exception;
    return false;
  }
  bool begin_member() {  // false: the texts are there already
    in_texts_ = name_ == metadata_key;
    type_.reset(), shape_.reset(), offsets_.reset();
    return !in_texts_ || !std::exchange(has_texts_, true);
  }
  bool end_item(failed& f) {
    if (!require(type_ && shape_ && offsets_, "no dtype, no shape or no data_offsets", f) ||
        !require(offsets_->size() == 2, "data_offsets that are not two", f))
      return false;
    auto const type = std::ranges::find(types, std::string_view(*type_), &named_type::name);
    if (!require(type != types.end(), "the dtype " + in_words(*type_) + ", which weir has not", f))
      return false;
    std::uint64_t bytes = size_of(type->is), begin = (*offsets_)[0], end = (*offsets_)[1];
    shape extents;
    bool const is_empty = std::ranges::find(*shape_, 0u) != shape_->end();
    std::vector<std::int64_t> all;
    for (std::uint64_t const n : *shape_) {
      std::uint64_t const most = INT64_MAX;
      if (!require(n <= most && (is_empty || n <= most / bytes), "a shape that no file can hold", f))
        return false;
      bytes = is_empty ? 0 : bytes * n;
      all.push_back(static_cast<std::int64_t>(n));
    }
    extents = shape(std::span<std::int64_t const>(all));
    std::string const said = std::to_string(begin) + " to " + std::to_string(end);
    if (!require(begin <= end && end - begin == bytes,
                 "offsets " + said + ", and its shape and dtype need " + std::to_string(bytes) + " B", f))
      return false;
    into_.places.push_back({{name_, type->is, extents, bytes}, begin});
    return true;
  }

  header& into_;
  std::string why_, name_, field_, word_;
  int depth_ = 0;
  bool in_texts_ = false, has_texts_ = false;
  std::optional<std::string> type_;
  list shape_, offsets_;
  list* numbers_ = nullptr;  // the list that is open
};

// Returns: why the items do not cover the data, or have one name twice.
std::string why_not_whole(header& h, std::uint64_t data_bytes) {
  auto const by_offsets = [](place const& a, place const& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.is.bytes < b.is.bytes;
  };
  std::ranges::stable_sort(h.places, by_offsets);
  std::uint64_t end = 0;
  for (place const& p : h.places) {
    if (p.begin != end)
      return in_words(p.is.name) + " begins at " + std::to_string(p.begin) + ", and the item before it ends at " +
             std::to_string(end);
    if (p.is.bytes > data_bytes - end)
      return in_words(p.is.name) + " ends at " + std::to_string(end + p.is.bytes) + ", and the file has " +
             std::to_string(data_bytes) + " B of values";
    end += p.is.bytes;
  }
  if (end != data_bytes)
    return "its items have " + std::to_string(end) + " B, and the file has " + std::to_string(data_bytes) +
           " B of values";
  std::vector<std::string_view> names;
  for (place const& p : h.places)
    names.push_back(p.is.name);
  std::ranges::sort(names);
  auto const twice = std::ranges::adjacent_find(names);
  return twice == names.end() ? "" : in_words(*twice) + " is there twice";
}

}  // namespace

std::string read_header(std::string_view text, std::uint64_t data_bytes, header& into) {
  if (!text.starts_with('{'))
    return "its header does not begin with {";
  parsing::basic_parser<header_events> parser(parsing::parse_options{}, into);
  boost::system::error_code failed;
  std::size_t const read = parser.write_some(false, text.data(), text.size(), failed);
  if (!parser.handler().why().empty())
    return parser.handler().why();
  if (failed || read != text.size())
    return "its header is no JSON, or not UTF-8, at byte " + std::to_string(read);
  return why_not_whole(into, data_bytes);
}

std::uint64_t length_in(std::span<std::byte const, length_bytes> bytes) noexcept {
  std::uint64_t n = 0;
  for (std::size_t i = length_bytes; i-- > 0;)
    n = n << 8 | std::to_integer<std::uint64_t>(bytes[i]);
  return n;
}

// ---- what is written ------------------------------------------------------------------------------------

std::string text_of(header const& h) {
  std::string text = "{";
  auto const begin_member = [&](std::string_view name) {
    text += (text.size() > 1 ? "," : "") + base::json_text(name) + ":{";
  };
  begin_member(metadata_key);
  for (auto const& [name, value] : h.texts)
    text += (text.ends_with('{') ? "" : ",") + base::json_text(name) + ':' + base::json_text(value);
  text += '}';
  for (place const& p : h.places) {
    begin_member(p.is.name);
    text += "\"dtype\":\"" + std::string(safetensors_name(p.is.dtype)) + "\",\"shape\":[";
    for (std::int64_t const n : p.is.extents)
      text += (text.ends_with('[') ? "" : ",") + std::to_string(n);
    text += "],\"data_offsets\":[" + std::to_string(p.begin) + ',' + std::to_string(p.begin + p.is.bytes) + "]}";
  }
  text += '}';
  // Values lie at a multiple of eight, for programs that map the file.
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string length;
  for (std::uint64_t n = text.size(); length.size() < length_bytes; n >>= 8)
    length += static_cast<char>(n & 0xff);
  return length + text;
}

bool is_utf8(std::string_view text) noexcept {
  for (std::size_t at = 0; at < text.size();) {
    auto const byte = [&](std::size_t i) {
      return static_cast<unsigned char>(at + i < text.size() ? text[at + i] : 0);
    };
    std::size_t const n = byte(0) < 0x80 ? 1 : byte(0) < 0xe0 ? 2 : byte(0) < 0xf0 ? 3 : 4;
    for (std::size_t i = 1; i < n; ++i)
      if ((byte(i) & 0xc0) != 0x80)
        return false;
    // Bytes that begin no character, and forms that are too long, too large or surrogates (Unicode 15, table
    // 3-7).
    bool const begins_one = byte(0) < 0x80 || (byte(0) >= 0xc2 && byte(0) <= 0xf4);
    bool const fits = !(byte(0) == 0xe0 && byte(1) < 0xa0) && !(byte(0) == 0xed && byte(1) >= 0xa0) &&
                      !(byte(0) == 0xf0 && byte(1) < 0x90) && !(byte(0) == 0xf4 && byte(1) >= 0x90);
    if (!begins_one || !fits)
      return false;
    at += n;
  }
  return true;
}

// ---- checksums ------------------------------------------------------------------------------------------

checksum begun_checksum(checkpoint_entry const& e) {
  checksum sum;
  // A zero byte ends the name: no two items have one text.
  std::string const said = std::string(safetensors_name(e.dtype)) + e.extents.str() + e.name + '\0';
  sum.process_bytes(said.data(), said.size());
  return sum;
}

std::vector<std::uint32_t> checksums_of_texts(checkpoint_metadata const& texts) {
  std::vector<std::uint32_t> sums;
  for (auto const& [name, value] : texts) {
    if (name == checksum_key)
      continue;
    checksum sum;
    sum.process_bytes(name.c_str(), name.size() + 1);
    sum.process_bytes(value.c_str(), value.size() + 1);
    sums.push_back(sum.value());
  }
  return sums;
}

std::vector<std::size_t> by_name(std::vector<place> const& places) {
  std::vector<std::size_t> order(places.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t i) -> std::string const& { return places[i].is.name; });
  return order;
}

std::string words_of(std::vector<std::uint32_t> const& sums) {
  std::string text;
  for (std::uint32_t const s : sums) {
    char word[16];
    std::snprintf(word, sizeof word, "%s%08x", text.empty() ? "" : " ", s);
    text += word;
  }
  return text;
}

std::optional<std::vector<std::uint32_t>> checksums_in(std::string_view text) {
  constexpr std::size_t wide = 9;  // a word and a space
  std::vector<std::uint32_t> sums;
  for (std::size_t i = 0; i * wide + 8 <= text.size(); ++i) {
    std::uint32_t value = 0;
    std::string_view const word = text.substr(i * wide, 8);
    for (char const c : word) {
      auto const digit = std::string_view("0123456789abcdef").find(c);
      if (digit == std::string_view::npos)
        return std::nullopt;
      value = value << 4 | static_cast<std::uint32_t>(digit);
    }
    sums.push_back(value);
  }
  if (text != words_of(sums) || sums.empty() || sums[0] >= sums.size())
    return std::nullopt;
  return sums;
}

}  // namespace weir::checkpoints
