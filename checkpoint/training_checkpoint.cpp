// A training's file: rank 0 reads it for all ranks, and writes it.
// Threads: as weir/checkpoint.h.
#include <algorithm>
#include <charconv>
#include <exception>
#include <optional>
#include <system_error>

#include "checkpoint/writing.h"
#include "runtime/base/text.h"
#include "weir/checkpoint.h"
#include "weir/memory.h"

namespace weir {

namespace {

std::string told_of(std::filesystem::path const& path) {
  return path.empty() ? "no file" : path.string();
}

// Throws on all ranks if one of them has failed. mine: of this rank, 0 or more. why: its failure. Returns: rank 0's
std::int64_t agreed(communicator& ranks, char const* operation, std::string const& path, std::int64_t mine,
                    std::exception_ptr const& why, source_location at) {
  std::vector<std::int64_t> all;
  try {
    all = ranks.exchange(why ? -1 : mine, at);
  } catch (...) {
    // What this rank throws is its own failure, even if the others do not learn of it.
    if (!why)
      throw;
  }
  if (why)
    std::rethrow_exception(why);
  auto const failed = std::ranges::find(all, -1);
  if (failed != all.end())
    throw checkpoint_error(operation, base::text("rank ", failed - all.begin(), " cannot go on from ", path),
                           "Mend what that rank throws", at, error_id{604});
  return all[0];
}

void require_part(checkpoint_item const& item, source_location at) {
  if (item.is_part && (item.counts.empty() || item.first < 0))
    throw invalid_use("training_checkpoint::resume",
                      "item " + base::in_quotes(base::visible(item.name)) + ", a part without a place",
                      "Pass the count of each rank", at, error_id{616});
}

}  // namespace

training_checkpoint::training_checkpoint(std::filesystem::path const& path, communicator& ranks,
                                         std::vector<checkpoint_item> items, checkpoint_metadata of, source_location at)
    : path_(path), ranks_(ranks), items_(std::move(items)), of_(std::move(of)) {
  std::exception_ptr why;
  try {
    if (of_.contains("step"))
      throw invalid_use("training_checkpoint", "the text \"step\"", "Use another name: save() tells the steps in it",
                        at, error_id{614});
    checkpoints::require_items("training_checkpoint", items_, of_, &ranks_, at);
    if (!path.empty())
      writer_.emplace(path, ranks, at).writing_->require_place();
  } catch (...) {
    why = std::current_exception();
  }
  (void)agreed(ranks_, "training_checkpoint", told_of(path_), 0, why, at);
}

std::int64_t training_checkpoint::resume(source_location at) {
  std::error_code refused;
  bool const is_there = ranks_.rank() == 0 && std::filesystem::exists(path_, refused);
  std::exception_ptr why;
  if (refused)
    why = std::make_exception_ptr(checkpoint_error("training_checkpoint::resume",
                                                   path_.string() + " cannot be looked up: " + refused.message(),
                                                   "Let this process read its folder", at, error_id{615}));
  return agreed(ranks_, "training_checkpoint::resume", told_of(path_), is_there, why, at) ? resume(path_, at) : 0;
}

std::int64_t training_checkpoint::resume(std::filesystem::path const& from, source_location at) {
  if (from.empty())
    return 0;
  std::optional<checkpoint_reader> file;
  std::int64_t steps = 0;
  std::exception_ptr why;
  try {
    for (checkpoint_item const& item : items_)
      require_part(item, at);
    if (ranks_.rank() == 0) {
      file.emplace(from, at);
      steps = steps_of(*file, from.string(), at);
    }
  } catch (...) {
    why = std::current_exception();
  }
  steps = agreed(ranks_, "training_checkpoint::resume", told_of(from), steps, why, at);
  for (checkpoint_item const& item : items_)
    give(item, file ? &*file : nullptr, at);
  return steps;
}

// Before the first item is changed, all of them are checked.
std::int64_t training_checkpoint::steps_of(checkpoint_reader const& file, std::string const& path,
                                           source_location at) const {
  std::string differs;
  for (auto const& [name, value] : of_) {
    auto const its = file.metadata().find(name);
    if (its == file.metadata().end() || its->second != value)
      differs = name;
  }
  for (checkpoint_item const& item : items_) {
    checkpoint_entry const* const its = file.find(item.name);
    if (!its || its->dtype != item.values.dtype || its->extents != item.extents)
      differs = item.name;
  }
  std::int64_t steps = -1;
  auto const told = file.metadata().find("step");
  bool is_number = false;
  if (told != file.metadata().end()) {
    char const* const end = told->second.data() + told->second.size();
    auto const read = std::from_chars(told->second.data(), end, steps);
    is_number = read.ec == std::errc() && read.ptr == end;
  }
  if (!is_number || steps < 0)
    differs = "step";
  if (!differs.empty() || !file.has_checksums())
    throw checkpoint_error("training_checkpoint::resume",
                           path + " is of another training: " +
                               (differs.empty() ? "it has no checksums" : base::in_quotes(base::visible(differs))),
                           "Use the options that it was written with, or another file", at, error_id{603});
  file.check(at);
  return steps;
}

// file: of rank 0
void training_checkpoint::give(checkpoint_item const& item, checkpoint_reader const* file, source_location at) {
  if (!item.is_part) {
    if (file)
      file->read(item.name, item.values, at);
    if (item.values.count > 0)
      ranks_.broadcast(item.values, 0, at);
    return;
  }
  if (!file) {
    if (item.values.count > 0)
      ranks_.receive(item.values, 0, at);
    return;
  }
  file->read(std::span(&item, 1), at);
  std::int64_t first = item.values.count;
  for (int rank = 1; rank < ranks_.size(); ++rank) {
    std::int64_t const count = item.counts[static_cast<std::size_t>(rank)];
    if (count == 0)
      continue;
    buffer const part(static_cast<std::size_t>(count) * size_of(item.values.dtype), {.on = ranks_.device()}, at);
    device_span const theirs{part.data(), count, item.values.dtype};
    file->read(item.name, theirs, first, at);
    ranks_.send(theirs, rank, at);
    first += count;
  }
}

void training_checkpoint::save(std::int64_t steps, source_location at) {
  if (!writer_)
    return;
  checkpoint_metadata texts = of_;
  texts["step"] = std::to_string(steps);
  writer_->save(items_, texts, at);
}
void training_checkpoint::finish(source_location at) {
  if (writer_)
    writer_->finish(at);
}

}  // namespace weir
