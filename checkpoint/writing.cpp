// Saves are laid out and checked on the program's thread, and written on the writer's own.
// Threads: see writing.h.
#include "checkpoint/writing.h"

#include <algorithm>
#include <numeric>

#include "peer/collective/group.h"
#include "runtime/base/text.h"
#include "runtime/core/log.h"
#include "streams/stream/context.h"
#include "weir/copy.h"

namespace weir::checkpoints {
namespace {

constexpr char const* operation = "checkpoint_writer::save";

// The writers of one runtime. Their threads use it, so they end before its first part does.
class writers {
 public:
  explicit writers(runtime::impl& r) {
    r.before_the_end(this, [](void* self) noexcept { static_cast<writers*>(self)->close(); });
  }
  void add(std::weak_ptr<writing> w) {
    auto all = all_.lock();
    std::erase_if(*all, [](auto const& one) { return one.expired(); });
    all->push_back(std::move(w));
  }

 private:
  void close() noexcept {
    auto const all = all_.lock();
    for (auto const& one : *all) {
      if (auto const w = one.lock())
        w->close();
    }
  }
  base::guarded<std::vector<std::weak_ptr<writing>>> all_;
};

std::size_t bytes_of(device_span s) {
  return static_cast<std::size_t>(s.count) * size_of(s.dtype);
}

// Of parts of one size, what lies behind the last element of the whole is left out.
bool part_fits(checkpoint_item const& i, int rank, int ranks, source_location at) {
  std::int64_t const whole = i.extents.numel(at), count = i.values.count;
  if (i.counts.empty())
    return count >= 0 && whole <= count * ranks;
  std::int64_t all = 0;
  for (std::int64_t const c : i.counts) {
    if (c < 0 || c > whole - all)
      return false;
    all += c;
  }
  return std::ssize(i.counts) == ranks && i.counts[static_cast<std::size_t>(rank)] == count && all == whole;
}

// Bytes of rank 0's memory for all parts
std::size_t gathered_bytes(checkpoint_item const& i, int ranks, source_location at) {
  if (i.counts.empty())
    return bytes_of(i.values) * static_cast<std::size_t>(ranks);
  return static_cast<std::size_t>(i.extents.numel(at)) * size_of(i.values.dtype);
}

// Items of larger elements come first: each then lies at a multiple of its elements.
layout layout_of(std::vector<checkpoint_item> const& items, source_location at) {
  std::vector<std::size_t> order(items.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater{},
                           [&](std::size_t i) { return size_of(items[i].values.dtype); });
  layout l;
  l.begins.resize(items.size());
  for (std::size_t const i : order) {
    checkpoint_item const& of = items[i];
    std::uint64_t const bytes = static_cast<std::uint64_t>(of.extents.numel(at)) * size_of(of.values.dtype);
    l.says.places.push_back({{of.name, of.values.dtype, of.extents, bytes}, l.bytes});
    l.begins[i] = std::exchange(l.bytes, l.bytes + bytes);
  }
  return l;
}

// A program may change its folder before the file is written.
std::string path_of(std::filesystem::path const& path, source_location at) {
  if (!path.has_filename())
    throw invalid_use("checkpoint_writer", base::in_quotes(path.string()) + " names no file", "Pass the path of a file",
                      at, error_id{534});
  return std::filesystem::absolute(path).string();
}

// Without host memory.
void tell(std::exception_ptr const& why) noexcept {
  try {
    if (why)
      std::rethrow_exception(why);
  } catch (std::exception const& e) {
    os::print_error(e.what());
    os::print_error("\n");
  }
}

}  // namespace

writing::writing(std::filesystem::path const& path, communicator* ranks, source_location at)
    : path_(path_of(path, at)),
      ranks_(ranks),
      at_(at),
      runtime_(runtime::current(at)),
      known_(runtime_.get()),
      no_memory_(std::make_exception_ptr(checkpoint_error(operation, path_ + " stays as it is: no host memory",
                                                          "Free host memory, and save again", at, error_id{578}))) {}

void writing::require_place() const {
  os::file_in_place file(path_);
  if (writes())
    require_written(file.begin());
}

void writing::start() {
  if (!writes())
    return;
  runtime_.get().part<writers>().add(weak_from_this());
  thread_ = base::thread([this] { write_snapshots(); });
}

// ---- the thread that saves ------------------------------------------------------------------------------

void writing::enter(std::string const& call, source_location at) const {
  if (process_was_forked())
    streams::throw_forked(call, at);
  (void)known_.get(call, "a writer of " + path_, at);
}

stream_ref writing::stream_to_use(std::optional<stream_ref> on, source_location at) const {
  stream_ref const s = on ? *on : current_stream(ranks_ ? ranks_->device() : gpu, at);
  if (streams::clock_or_throw(s, operation, at).alive() == clock::life::borrowed)
    throw invalid_use(operation, "a borrowed stream", "Keep an external_stream of it: the writer waits for its copies",
                      at, error_id{535});
  if (s.is_capturing(at))
    throw invalid_use(operation, "a stream in a capture", "Save before the capture or after it", at, error_id{536});
  return s;
}

void require_items(std::string const& call, std::vector<checkpoint_item> const& items, checkpoint_metadata const& texts,
                   communicator const* ranks, source_location at) {
  std::vector<std::string_view> names;
  std::ptrdiff_t all = 0;
  for (auto const& [name, value] : texts) {
    if (name == checksum_key || !is_utf8(name) || !is_utf8(value))
      throw invalid_use(call, "the metadata " + base::in_quotes(base::visible(name)),
                        "Use a name other than weir.crc32, and UTF-8", at, error_id{537});
  }
  for (checkpoint_item const& i : items) {
    std::string const what = "item " + base::in_quotes(base::visible(i.name));
    std::int64_t const whole = i.extents.numel(at), count = i.values.count;
    if (i.name == metadata_key || !is_utf8(i.name))
      throw invalid_use(call, what, "Use a name other than __metadata__, in UTF-8", at, error_id{538});
    if (i.is_part && !ranks)
      throw invalid_use(call, what + ", which is a part", "Make the writer with the communicator of the ranks", at,
                        error_id{539});
    // A number of bytes that wraps would pass for a small one.
    std::ptrdiff_t bytes = 0;
    std::int64_t const parts = i.is_part ? ranks->size() : 1;
    if (__builtin_mul_overflow(count, static_cast<std::int64_t>(size_of(i.values.dtype)) * parts, &bytes) ||
        __builtin_add_overflow(all, bytes, &all))
      throw invalid_use(call, what + " of shape " + i.extents.str() + ": more bytes than a memory has",
                        "Pass the count of elements, not of bytes", at, error_id{579});
    bool const fits = i.is_part ? part_fits(i, ranks->rank(), ranks->size(), at) : whole == count;
    if (!fits)
      throw invalid_use(
          call,
          what + " of shape " + i.extents.str() + ": " + std::to_string(whole) + " elements, and " +
              std::to_string(count) + " are given",
          "Pass the elements of the shape; of parts, enough on all ranks together, in counts that name each rank", at,
          error_id{540});
    names.push_back(i.name);
  }
  std::ranges::sort(names);
  auto const twice = std::ranges::adjacent_find(names);
  if (twice != names.end())
    throw invalid_use(call, "item " + base::in_quotes(base::visible(*twice)) + " twice",
                      "Give each item a name of its own", at, error_id{541});
}

void writing::save(std::optional<stream_ref> asked, std::vector<checkpoint_item> const& items,
                   checkpoint_metadata texts, source_location at) {
  enter(operation, at);
  runtime_guard const here(runtime_);
  stream_ref const on = stream_to_use(asked, at);
  device_guard const near(on.device(), at);
  prepared now = prepare_all(on, items, std::move(texts), at);
  try {
    gather_parts(on, items, now, at);
    copy_items(on, items, now.is, at);
    if (now.arrived)
      now.arrived->record(on, at);
  } catch (...) {
    room_.reset();  // copies that are under way keep the memory from others
    throw;
  }
  if (!writes())
    return;
  base::lock_guard const lock(mutex_);
  require_open(at);
  failure_ = nullptr;
  next_.emplace(snapshot{std::move(now.is), std::move(*now.arrived)});
  changed_.notify_all();
}

writing::prepared writing::prepare(stream_ref on, std::vector<checkpoint_item> const& items, checkpoint_metadata texts,
                                   source_location at) {
  require_items(operation, items, texts, ranks_, at);
  wait_for_last_save(at);
  prepared now;
  if (!writes())
    return now;
  now.is = layout_of(items, at);
  now.is.says.texts = std::move(texts);
  make_room(now.is.bytes, at);
  std::size_t largest = 0;
  for (checkpoint_item const& i : items)
    largest = std::max(largest, i.is_part ? gathered_bytes(i, ranks_->size(), at) : 0);
  if (largest > 0)
    now.gathered = buffer(on, largest, default_alignment, at);
  now.arrived.emplace(event_options{.blocking_sync = true});
  return now;
}

writing::prepared writing::prepare_all(stream_ref on, std::vector<checkpoint_item> const& items,
                                       checkpoint_metadata texts, source_location at) {
  constexpr auto round = peer::rank_watch::round::save;
  bool const gathers = ranks_ && std::ranges::any_of(items, &checkpoint_item::is_part);
  prepared now;
  try {
    now = prepare(on, items, std::move(texts), at);
  } catch (...) {
    // The others would wait in a gather. What this rank throws is its own failure, even if none of them comes.
    try {
      if (gathers)
        (void)ranks_->state_->all->all_are_ready(round, ranks_->rank(), false, at);
    } catch (std::exception const&) {}
    throw;
  }
  if (gathers && !ranks_->state_->all->all_are_ready(round, ranks_->rank(), true, at))
    throw checkpoint_error(operation, path_ + " stays as it is: another rank cannot save its parts",
                           "Mend what that rank throws, and save again on all", at, error_id{577});
  return now;
}

void writing::require_open(source_location at) const {
  if (ends_)
    throw invalid_use(operation, "a writer whose runtime has ended", "Let the runtime live until the last save", at,
                      error_id{542});
}

void writing::wait_for_last_save(source_location at) {
  base::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !next_; });
  require_open(at);
}

// Keeps what it has, if that is enough. Pinned memory takes the place of pageable memory once there is some.
void writing::make_room(std::size_t bytes, source_location at) {
  bool const is_enough = room_.size() >= bytes;
  if (is_enough && (bytes == 0 || how() == blocking::no))
    return;
  if (!is_enough)
    room_.reset();
  try {
    room_ = pinned(bytes, at);
  } catch (out_of_memory const& e) {
    if (is_enough)
      return;
    room_ = buffer(bytes, {.on = cpu, .kind = memory_kind::pageable}, at);
    if (logs(known_.get(operation, "a writer", at), log_level::warning))
      log(log_level::warning, {.bytes = bytes}, "a checkpoint_writer uses pageable memory: " + std::string(e.what()));
  }
}

void writing::copy_items(stream_ref on, std::vector<checkpoint_item> const& items, layout const& l,
                         source_location at) const {
  std::vector<copy_item> all;
  for (std::size_t i = 0; i < items.size() && writes(); ++i) {
    if (!items[i].is_part && items[i].values.count > 0)
      all.push_back({room_.data<std::byte>() + l.begins[i], items[i].values.data, bytes_of(items[i].values)});
  }
  if (!all.empty())
    copy(on, all, how(), at);
}

// One item after another comes to the memory of rank 0's device, which holds the largest. A failed copy does not
// keep this rank from the gathers that the others call.
void writing::gather_parts(stream_ref on, std::vector<checkpoint_item> const& items, prepared const& now,
                           source_location at) const {
  if (std::ranges::none_of(items, &checkpoint_item::is_part))
    return;
  stream_guard const in(on, at);
  std::exception_ptr failed;
  for (std::size_t i = 0; i < items.size(); ++i) {
    device_span const part = items[i].values;
    if (!items[i].is_part || (part.count == 0 && items[i].counts.empty()))
      continue;
    if (items[i].counts.empty())
      ranks_->gather({now.gathered.data(), part.count * ranks_->size(), part.dtype}, part, 0, at);
    else
      gather_counts(items[i], now.gathered, at);
    std::size_t const bytes = static_cast<std::size_t>(items[i].extents.numel(at)) * size_of(part.dtype);
    try {
      if (writes() && !items[i].counts.empty() && part.count > 0 && !failed)
        copy(on, now.gathered.data(), part.data, bytes_of(part), how(), at);
      if (writes() && bytes > 0 && !failed)
        copy(on, room_.data<std::byte>() + now.is.begins[i], now.gathered.data(), bytes, how(), at);
    } catch (...) {
      failed = std::current_exception();
    }
  }
  if (failed)
    std::rethrow_exception(failed);
}

// Rank 0's own part is not sent: it is the first.
void writing::gather_counts(checkpoint_item const& item, buffer const& to, source_location at) const {
  collective_group transfers(*ranks_);
  if (!writes()) {
    if (item.values.count > 0)
      transfers.send(item.values, 0, at);
  } else {
    std::size_t before = static_cast<std::size_t>(item.counts[0]) * size_of(item.values.dtype);
    for (int rank = 1; rank < ranks_->size(); ++rank) {
      device_span const theirs{to.data<std::byte>() + before, item.counts[static_cast<std::size_t>(rank)],
                               item.values.dtype};
      if (theirs.count > 0)
        transfers.receive(theirs, rank, at);
      before += bytes_of(theirs);
    }
  }
  (void)transfers.end(at);
}

void writing::finish(source_location at) {
  if (process_was_forked())
    streams::throw_forked("checkpoint_writer::finish", at);
  base::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !next_; });
  if (failure_)
    std::rethrow_exception(std::exchange(failure_, nullptr));
}

// ---- the thread that writes -----------------------------------------------------------------------------

void writing::write_snapshots() {
  os::refuse_writes_beyond_the_limit();
  runtime_guard const here(runtime_);
  while (wait_for_snapshot()) {
    std::exception_ptr why;
    try {
      write_snapshot();
    } catch (std::bad_alloc const&) {
      why = no_memory_;
    } catch (std::exception const&) {
      why = std::current_exception();
    }
    tell(why);
    base::lock_guard const lock(mutex_);
    failure_ = std::move(why);  // the thread that hears of it ends the exception
    next_.reset();
    changed_.notify_all();
  }
}

// A snapshot that is there at the end is written, too.
bool writing::wait_for_snapshot() {
  base::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return next_ || ends_; });
  return next_.has_value();
}

std::span<std::byte const> writing::arrived_bytes() const {
  try {
    next_->arrived.synchronize(at_);
  } catch (std::exception const& e) {
    throw checkpoint_error(operation, path_ + " stays as it is: the values did not arrive. " + e.what(),
                           "Mend what is told here, and go on from the file", at_, error_id{543});
  }
  // After a collective that did not complete, the values are any.
  std::string const why = ranks_ ? ranks_->failure() : "";
  if (!why.empty())
    throw checkpoint_error(operation, path_ + " stays as it is: the ranks have failed. " + why,
                           "Start the program again, from the file", at_, error_id{544});
  return room_.size() ? room_.host<std::byte const>(at_).first(next_->is.bytes) : std::span<std::byte const>{};
}

void writing::write_snapshot() {
  auto const bytes = arrived_bytes();
  header& h = next_->is.says;
  std::vector<std::uint32_t> sums = checksums_of_texts(h.texts);
  sums.insert(sums.begin(), static_cast<std::uint32_t>(sums.size()));
  for (std::size_t const i : by_name(h.places)) {
    place const& p = h.places[i];
    checksum sum = begun_checksum(p.is);
    sum.process_bytes(bytes.data() + p.begin, p.is.bytes);
    sums.push_back(sum.value());
  }
  h.texts.emplace(checksum_key, words_of(sums));
  std::string const head = text_of(h);
  if (head.size() - length_bytes > most_header_bytes)
    throw checkpoint_error(operation, path_ + " stays as it is: a header of " + std::to_string(head.size()) + " B",
                           "Use fewer items or shorter texts: no program reads more than 100 MB", at_, error_id{545});
  os::file_in_place file(path_);
  require_written(file.begin());
  require_written(file.write(std::as_bytes(std::span(head))));
  require_written(file.write(bytes));
  require_written(file.put_in_place());
}

void writing::require_written(os::file_refusal const& refused) const {
  if (refused)
    throw checkpoint_error(operation, "the values are not on the disk: " + refused.what, refused.remedy, at_,
                           error_id{546});
}

void writing::close() noexcept {
  {
    base::lock_guard const lock(mutex_);
    if (std::exchange(ends_, true))
      return;
    changed_.notify_all();
  }
  if (thread_.joinable())
    thread_.join();
  room_.reset();
}

}  // namespace weir::checkpoints
