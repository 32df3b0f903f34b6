// weir/checkpoint.h: the reader. It holds the file open, and reads it in parts of bounded size.
// Threads: see weir/checkpoint.h.
#include <algorithm>

#include "checkpoint/header.h"
#include "runtime/base/os_file.h"
#include "runtime/base/text.h"
#include "weir/copy.h"

namespace weir {
namespace checkpoints {

struct opened_file {
  std::string path;
  os::file_to_read file;
  std::uint64_t data_begin = 0;
  header says;
  std::vector<checkpoint_entry> entries;
  bool checked = false;             // the file has checksums
  std::vector<std::uint32_t> sums;  // of the entries, then

  opened_file(std::filesystem::path const&, source_location);
  // Throws: checkpoint_error
  void require(os::file_refusal const&, source_location) const;
  [[noreturn]] void refuse(std::string const& why, source_location) const;
  void take_checksums(source_location);
  std::size_t index_of(std::string_view name, source_location) const;
  // Calls use(part, offset) for the parts of these bytes of the item, in order.
  template <class Use>
  void read(place const&, std::uint64_t first_byte, std::uint64_t bytes, source_location, Use use) const;
  void require_sum(std::size_t index, std::uint32_t found, source_location) const;
};

namespace {
constexpr std::uint64_t most_at_once = 4_MiB;
}  // namespace

opened_file::opened_file(std::filesystem::path const& p, source_location at) : path(p) {
  require(file.open(path), at);
  std::uint64_t const all = file.bytes();
  std::array<std::byte, length_bytes> length_field{};
  if (all < length_field.size())
    refuse("is no safetensors file: it has " + std::to_string(all) + " B", at);
  require(file.read(0, length_field), at);
  std::uint64_t const length = length_in(length_field);
  if (length > most_header_bytes || length > all - length_bytes)
    refuse("is damaged, or no safetensors file: a header of " + std::to_string(length) + " B in a file of " +
               std::to_string(all) + " B",
           at);
  std::string text(length, '\0');
  require(file.read(length_bytes, std::as_writable_bytes(std::span(text))), at);
  data_begin = length_bytes + length;
  std::string const why = read_header(text, all - data_begin, says);
  if (!why.empty())
    throw checkpoint_error("checkpoint_reader", path + " is damaged, or of a form that weir does not read: " + why,
                           "Take an earlier file, or let another program write this one in types that weir has", at,
                           error_id{580});
  take_checksums(at);
  for (place const& one : says.places)
    entries.push_back(one.is);
}

void opened_file::take_checksums(source_location at) {
  auto const told = says.texts.find(std::string(checksum_key));
  if (told == says.texts.end())
    return;
  auto const words = checksums_in(told->second);
  if (!words)
    refuse("is damaged: the checksums in its metadata", at);
  auto const of_items = words->begin() + 1 + words->front();
  auto found = checksums_of_texts(says.texts);
  std::ranges::sort(found);
  bool const all_are_there = std::all_of(words->begin() + 1, of_items,
                                         [&](std::uint32_t sum) { return std::ranges::binary_search(found, sum); });
  if (!all_are_there)
    refuse("is damaged: the checksum of its metadata does not match", at);
  says.texts.erase(told);
  // A program that added items, or left some out, kept checksums of others.
  checked = static_cast<std::size_t>(words->end() - of_items) == says.places.size();
  sums.resize(says.places.size());
  for (std::size_t k = 0; std::size_t const i : by_name(says.places))
    sums[i] = checked ? of_items[static_cast<std::ptrdiff_t>(k++)] : 0;
}

void opened_file::refuse(std::string const& why, source_location at) const {
  throw checkpoint_error("checkpoint_reader", path + " " + why, "Take an earlier file, or copy this one anew", at,
                         error_id{527});
}

void opened_file::require(os::file_refusal const& refused, source_location at) const {
  if (refused)
    throw checkpoint_error("checkpoint_reader", "no values: " + refused.what, refused.remedy, at, error_id{528});
}

std::size_t opened_file::index_of(std::string_view name, source_location at) const {
  auto const found = std::ranges::find(entries, name, &checkpoint_entry::name);
  if (found == entries.end())
    throw checkpoint_error("checkpoint_reader::read", path + " has no item " + base::in_quotes(base::visible(name)),
                           "entries() has all", at, error_id{529});
  return static_cast<std::size_t>(found - entries.begin());
}

template <class Use>
void opened_file::read(place const& item, std::uint64_t first_byte, std::uint64_t bytes, source_location at,
                       Use use) const {
  std::vector<std::byte> part(std::min(bytes, most_at_once));
  for (std::uint64_t done = 0; done < bytes; done += part.size()) {
    part.resize(std::min(bytes - done, most_at_once));
    require(file.read(data_begin + item.begin + first_byte + done, part), at);
    use(part, done);
  }
}

void opened_file::require_sum(std::size_t index, std::uint32_t found, source_location at) const {
  if (checked && sums[index] != found)
    refuse(
        "is damaged: the checksum of item " + base::in_quotes(base::visible(entries[index].name)) + " does not match",
        at);
}

}  // namespace checkpoints

checkpoint_reader::checkpoint_reader(std::filesystem::path const& path, source_location at)
    : file_(std::make_shared<checkpoints::opened_file const>(path, at)) {}

checkpoint_metadata const& checkpoint_reader::metadata() const noexcept {
  return file_->says.texts;
}
std::vector<checkpoint_entry> const& checkpoint_reader::entries() const noexcept {
  return file_->entries;
}
checkpoint_entry const* checkpoint_reader::find(std::string_view name) const noexcept {
  auto const found = std::ranges::find(file_->entries, name, &checkpoint_entry::name);
  return found == file_->entries.end() ? nullptr : &*found;
}
bool checkpoint_reader::has_checksums() const noexcept {
  return file_->checked;
}

void checkpoint_reader::read(std::string_view name, device_span to, source_location at) const {
  checkpoint_entry const& is = file_->entries[file_->index_of(name, at)];
  if (to.count != is.extents.numel(at))
    throw invalid_use("checkpoint_reader::read",
                      "item " + base::in_quotes(base::visible(name)) + " of shape " + is.extents.str() + ", for " +
                          std::to_string(to.count) + " elements",
                      "Pass memory for all, or the first element of a range", at, error_id{530});
  read(name, to, 0, at);
}

void checkpoint_reader::read(std::string_view name, device_span to, std::int64_t first, source_location at) const {
  std::size_t const index = file_->index_of(name, at);
  checkpoint_entry const& is = file_->entries[index];
  std::int64_t const all = is.extents.numel(at);
  std::string const what = "item " + base::in_quotes(base::visible(name)) + " of ";
  if (to.dtype != is.dtype)
    throw invalid_use("checkpoint_reader::read",
                      what + std::string(name_of(is.dtype)) + ", for " + std::string(name_of(to.dtype)),
                      "Read it to memory of its type, and convert it there", at, error_id{531});
  if (first < 0 || to.count < 0 || first > all || to.count > all - first)
    throw invalid_use("checkpoint_reader::read",
                      what + std::to_string(all) + " elements, for " + std::to_string(to.count) + " from number " +
                          std::to_string(first),
                      "Ask for elements that it has", at, error_id{532});
  auto const element = size_of(is.dtype);
  auto sum = checkpoints::begun_checksum(is);
  file_->read(file_->says.places[index], static_cast<std::uint64_t>(first) * element,
              static_cast<std::uint64_t>(to.count) * element, at,
              [&](std::vector<std::byte> const& part, std::uint64_t offset) {
                copy(static_cast<std::byte*>(to.data) + offset, part.data(), part.size(), blocking::yes, at);
                sum.process_bytes(part.data(), part.size());
              });
  if (to.count == all)
    file_->require_sum(index, sum.value(), at);
}

void checkpoint_reader::read(std::span<checkpoint_item const> items, source_location at) const {
  for (checkpoint_item const& i : items) {
    if (!i.is_part)
      read(i.name, i.values, at);
    else if (i.first < 0)
      throw invalid_use("checkpoint_reader::read",
                        "item " + base::in_quotes(base::visible(i.name)) + ", a part without a place",
                        "Make it with the counts of all ranks, or name its first element", at, error_id{607});
    else
      read(i.name, i.values, i.first, at);
  }
}

tensor checkpoint_reader::read(std::string_view name, device on, source_location at) const {
  checkpoint_entry const& is = file_->entries[file_->index_of(name, at)];
  tensor t = empty(
      is.extents, {.dtype = is.dtype, .on = on, .kind = on.is_cpu() ? memory_kind::pageable : memory_kind::device}, at);
  read(name, {t.data(), t.numel(), t.dtype()}, at);
  return t;
}

void checkpoint_reader::check(source_location at) const {
  for (std::size_t i = 0; i < file_->entries.size(); ++i) {
    auto sum = checkpoints::begun_checksum(file_->entries[i]);
    file_->read(
        file_->says.places[i], 0, file_->entries[i].bytes, at,
        [&](std::vector<std::byte> const& part, std::uint64_t) { sum.process_bytes(part.data(), part.size()); });
    file_->require_sum(i, sum.value(), at);
  }
}

}  // namespace weir
