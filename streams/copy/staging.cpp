// Staged copies: copy workers fill slots and the engine empties them, or the reverse.
// Threads: any.
#include "streams/copy/staging.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <vector>

#include "runtime/base/call_site.h"
#include "runtime/base/os.h"
#include "runtime/base/round_up.h"
#include "streams/copy/copy_engine.h"
#include "streams/copy/driver_uploads.h"
#include "streams/copy/fetch.h"
#include "streams/copy/room_in_use.h"
#include "streams/copy/slot.h"

namespace weir::streams {
namespace {

constexpr int most_threads = 16;                                 // saturates the link, even on half cores
constexpr std::size_t least_past_caches = std::size_t{1} << 20;  // bytes of a slot
constexpr std::size_t finest_chunk = std::size_t{256} << 10;     // smaller chunks cost more than their overlap saves
// large: after each chunk a host function delays the stream
constexpr std::size_t fetch_chunk = std::size_t{16} << 20;
constexpr std::size_t least_fetch_chunk = std::size_t{8} << 20;  // also of the last chunks
constexpr std::size_t fetch_slots = 12, least_fetch_slots = 3;
constexpr std::size_t few_shares = 8;
// So many bytes reach an idle host sooner than a host function of the stream would begin.
constexpr std::size_t most_polled = std::size_t{512} << 10;
constexpr int polls = 64;                                    // each asks the driver, 1 µs
constexpr std::size_t between_chunk = std::size_t{2} << 20;  // upper bound
constexpr std::size_t between_slots = 4;  // one is filled, one is emptied, and two cover the streams' lag

std::string of_copy(clock::stream_clock const& stream, void const* dst, void const* src, std::size_t bytes) {
  return range_text(dst, bytes) + " <- " + range_text(src, bytes) + " on a stream of " +
         base::gpu_name(stream.device());
}

std::byte* at(void* base, std::size_t offset) {
  return static_cast<std::byte*>(base) + offset;
}
std::byte const* at(void const* base, std::size_t offset) {
  return static_cast<std::byte const*>(base) + offset;
}

// Not a promise to the program: weir may use all that it knows about its own slot.
void own_copy(clock::stream_clock& stream, void* dst, void const* src, std::size_t bytes, source_location where) {
  base::internal_ordering const own_slot(stream.owner().observer());
  enqueue_copy(stream, dst, src, bytes, where);
}

// The last slots are smaller, so that the engine finishes soon after the last fill.
std::size_t size_within(std::size_t chunk, std::size_t left, std::size_t least) {
  std::size_t const share = left / 4 / staging::smallest_chunk * staging::smallest_chunk;
  return std::min({chunk, std::max(share, least), left});
}

// The last chunks are smaller, because they are emptied after the engine is done.
std::vector<std::size_t> fetched_sizes(std::size_t bytes, std::size_t chunk) {
  std::size_t const least = std::min(chunk, least_fetch_chunk);
  std::vector<std::size_t> all;
  for (std::size_t left = bytes; left > 0; left -= all.back())
    all.push_back(size_within(chunk, left, least));
  return all;
}

// On every exit the slots are marked for the work enqueued on either stream.
struct marks {
  std::vector<slot>& slots;
  clock::stream_clock &from, &to;
  ~marks() {
    for (auto& one : slots) {
      one.used_by(from);
      if (&to != &from)
        one.used_by(to);
    }
  }
};

// Zero on machines that move only in calls, unless they schedule host threads: then always two.
int how_many(runtime::impl& r) {
  if (r.machine().moves_by_itself())
    return std::min(most_threads, os::usable_processors() - 1);
  return base::order_is_chosen() ? 2 : 0;
}

}  // namespace

struct staging::state {
  class upload;
  class awaited_download;
  explicit state(runtime::impl& r)
      : owner(r),
        clocks(r.part<clock::clocks>()),
        pinned(r.part<pinned_memory>()),
        workers_by_node(how_many(r)),
        uploads(r) {
    for (int d = 0; d < r.device_count(); ++d)
      rooms.emplace_back(clocks, budget);
  }

  weir::runtime::impl& owner;
  clock::clocks& clocks;
  pinned_memory& pinned;
  node_workers workers_by_node;
  driver_uploads uploads;
  std::deque<room_in_use> rooms;  // of each device: bytes in slots

  base::guarded<tuning> to_fill, to_fetch;

  std::shared_ptr<copy_workers> workers_near(clock::stream_clock const& stream) {
    return workers_by_node.of(pinned.node_near(stream.device()));
  }

  room_in_use& room_of(clock::stream_clock const& stream) { return rooms[static_cast<std::size_t>(stream.device())]; }

  void wait_for_room(clock::stream_clock const& stream, std::size_t bytes, source_location where) {
    room_in_use& room = room_of(stream);
    while (!room.has(bytes)) {
      auto const oldest = room.oldest();
      if (!oldest)
        return;
      base::internal_ordering const own_affair(owner.observer());
      if (auto const waited = clocks.synchronize(*oldest); !waited.ok())
        throw_refusal(waited, "copy", "waiting for staging memory of gpu:" + std::to_string(stream.device()),
                      "Repeat the call when earlier copies to this device are complete", where);
    }
  }

  // Returns slots near `device`: one per chunk, at most `most`. If memory is short, there are fewer, at least
  // one, and they are smaller: so is `chunk` then. Blocks: until the stream's device has room for them.
  std::vector<slot> slots_for(clock::stream_clock const& stream, int device, std::size_t bytes, std::size_t most,
                              std::size_t& chunk, source_location where) {
    std::size_t const wanted = std::min(most, (bytes + chunk - 1) / chunk);
    wait_for_room(stream, wanted * chunk, where);
    std::vector<slot> slots;
    slots.reserve(wanted);
    slots.push_back(shrinking_slot(pinned, device, chunk, where));
    chunk = slots[0].bytes();
    while (slots.size() < wanted) {
      auto s = slot_if_any(pinned, device, chunk, where);
      if (!s)
        break;  // fewer slots are slower
      slots.push_back(std::move(*s));
    }
    return slots;
  }

  // From here on the budget counts the slots, until the stream is done with them.
  void note(clock::stream_clock const& stream, std::size_t bytes) noexcept {
    room_of(stream).add(bytes);
    room_of(stream).until(stream.now(), bytes);
  }

  // Polls for all that the stream was given. Returns: whether it is complete
  bool comes_soon(clock::stream_clock& stream) {
    clock::stamp const given = stream.now();
    if (!stream.fence().ok())
      return false;
    for (int i = 0; i < polls; ++i) {
      auto const done = clocks.poll(given);
      if (!done.ok())
        return false;
      if (done.value)
        return true;
    }
    return false;
  }

  // Chunks such that the engine and all threads have work. If threads share slots, a few suffice.
  std::size_t chunk_for(std::size_t bytes, tuning const& how, copy_workers const& workers) const {
    if (bytes <= how.chunk)
      return bytes;
    std::size_t const active = static_cast<std::size_t>(workers.threads()) + 1;
    std::size_t const shares = how.grain < how.chunk ? few_shares : 2 * active;
    std::size_t const share = base::round_up(bytes / shares, smallest_chunk);
    return std::min({bytes, std::max(share, finest_chunk), how.chunk});
  }

  void refuse_captured(clock::stream_clock const& stream, void const* dst, void const* src, std::size_t bytes,
                       source_location where) {
    auto const captured = owner.machine().capturing(stream.device(), stream.handle());
    if (captured.is.what == driver::code::lost)
      throw_refusal(stream.note(captured.is), "copy", of_copy(stream, dst, src, bytes), "", where);
    if (captured.ok() && captured.value)
      throw invalid_use(
          "copy", range_text(dst, bytes) + " <- " + range_text(src, bytes) + ", staged, on a stream in capture",
          "Capture copies of pinned memory: a staging buffer cannot serve each replay", where, error_id{211});
  }
};

staging::staging(runtime::impl& r) : state_(std::make_unique<state>(r)) {}
staging::~staging() {
  if (process_was_forked())
    static_cast<void>(state_.release());  // the threads exist only in the parent process and cannot be joined
  else
    state_->workers_by_node.stop();
}

namespace {
staging::tuning allowed(staging::tuning how) noexcept {
  how.chunk = std::clamp(how.chunk, staging::smallest_chunk, staging::largest_slot);
  how.first = std::clamp(how.first, staging::smallest_chunk, how.chunk);
  how.grain = std::max(how.grain, staging::smallest_chunk);
  how.budget = std::clamp(how.budget, how.chunk, staging::budget / 4 * 3);
  return how;
}
}  // namespace

void staging::fill_by(tuning how) noexcept {
  *state_->to_fill.lock() = allowed(how);
}
void staging::fetch_by(tuning how) noexcept {
  *state_->to_fetch.lock() = allowed(how);
}
void staging::work_by(copy_workers::tuning how) noexcept {
  if (how.threads == 0)
    how.threads = how_many(state_->owner);
  state_->workers_by_node.work_by(how);
}
int staging::threads() const noexcept {
  return state_->workers_by_node.of(-1)->threads();
}

std::size_t staging::in_use(int device) const {
  return state_->rooms[static_cast<std::size_t>(device)].bytes();
}

// One copy to a device. Copy workers fill slots ahead of the engine, which empties them in order.
class staging::state::upload {
 public:
  upload(state& my, clock::stream_clock& stream, void* dst, void const* src, std::size_t bytes, source_location where)
      : my_(my),
        stream_(stream),
        dst_(dst),
        src_(src),
        bytes_(bytes),
        where_(where),
        how_(*my.to_fill.lock()),
        workers_(my.workers_near(stream)),
        chunk_(my.chunk_for(bytes, how_, *workers_)),
        first_(chunk_ == bytes ? bytes : std::min(how_.first, chunk_)),
        rising_(first_),
        by_(chunk_ >= least_past_caches ? how_.by : stores::plain),
        window_(std::min(2 * (static_cast<std::size_t>(workers_->threads()) + 1), how_.budget / how_.chunk)) {}
  // On every exit no copy worker reads the source any more.
  ~upload() {
    for (auto& one : filling_)
      workers_->cancel(one.fill);
  }
  upload(upload const&) = delete;

  void run() {
    while (next_ < bytes_ || !filling_.empty()) {
      fill_ahead();
      enqueue_oldest();
    }
  }

 private:
  struct filled {
    slot in;
    std::size_t offset;
    copy_workers::task fill;
  };

  void fill_ahead() {
    while (next_ < bytes_ && filling_.size() < window_) {
      std::size_t const wanted = size_within(rising_, bytes_ - next_, first_);
      std::optional<slot> s = slot_to_fill(wanted);
      if (!s)
        return;
      begin_to_fill(std::move(*s), wanted);
    }
  }

  // Returns: none if filled slots must be enqueued first: when the engine has read them, there is room.
  std::optional<slot> slot_to_fill(std::size_t wanted) {
    // The budget does not count slots before they are enqueued, so they are added here.
    bool const has_room = my_.room_of(stream_).has((filling_.size() + 1) * chunk_);
    // A copy that has filled slots never waits for room: others may wait for the room of its slots.
    if (!filling_.empty()) {
      if (!has_room)
        return std::nullopt;
      return slot_if_any(my_.pinned, stream_.device(), wanted, where_);
    }
    if (!has_room)
      my_.wait_for_room(stream_, wanted, where_);
    return shrinking_slot(my_.pinned, stream_.device(), wanted, where_);
  }

  void begin_to_fill(slot in, std::size_t wanted) {
    std::size_t const n = in.bytes();
    // Pinned memory is short: the next slots are no larger than this one.
    if (n < wanted)
      chunk_ = n;
    rising_ = std::min(chunk_, 2 * rising_);
    filling_.push_back({std::move(in), next_, {}});
    copy_workers::task& fill = filling_.back().fill;
    fill.dst = filling_.back().in.memory();
    fill.src = at(src_, next_);
    fill.bytes = n;
    fill.by = by_;
    fill.grain = how_.grain;
    next_ += n;
    // A small copy is filled by its caller alone.
    if (bytes_ > chunk_ || n >= fetch::least_shared)
      workers_->submit(fill);
  }

  void enqueue_oldest() {
    base::internal_ordering const own_slot(my_.owner.observer());
    filled& first = filling_.front();
    workers_->finish(first.fill);
    enqueue_copy(stream_, at(dst_, first.offset), first.in.memory(), first.fill.bytes, where_);
    first.in.used_by(stream_);
    my_.note(stream_, first.in.bytes());
    // The fence lets a query see this slot done before later ones.
    if (filling_.size() > 1 || next_ < bytes_)
      static_cast<void>(stream_.fence());
    filling_.pop_front();
  }

  state& my_;
  clock::stream_clock& stream_;
  void* const dst_;
  void const* const src_;
  std::size_t const bytes_;
  source_location const where_;
  tuning const how_;
  std::shared_ptr<copy_workers> const workers_;
  std::size_t chunk_, first_, rising_;  // bytes of the largest slot, of the first and of the next one
  stores const by_;
  std::size_t const window_;  // slots filled ahead; the engine uses the rest of the room
  std::size_t next_ = 0;      // offset of the bytes without a slot
  std::deque<filled> filling_{};
};

void staging::to_device(clock::stream_clock& stream, void* dst, void const* src, std::size_t bytes, bool is_pageable,
                        source_location where) {
  copy_in_parts const whole;
  state_->refuse_captured(stream, dst, src, bytes, where);
  if (!is_pageable || !state_->uploads.begin(stream, dst, src, bytes, where))
    state::upload(*state_, stream, dst, src, bytes, where).run();
}

void staging::download::cancel() const noexcept {
  if (job_)
    static_cast<fetch*>(job_.get())->cancel();
}

staging::download staging::to_host(clock::stream_clock& stream, void* dst, void const* src, std::size_t bytes,
                                   bool is_pageable, source_location where) {
  copy_in_parts const whole;
  auto& my = *state_;
  my.refuse_captured(stream, dst, src, bytes, where);
  tuning how = *my.to_fetch.lock();
  // Chunks of its own: each costs the stream a host function.
  how.chunk = std::clamp(how.budget / least_fetch_slots, finest_chunk, fetch_chunk);
  auto const workers = my.workers_near(stream);
  std::size_t const share = base::round_up(bytes / few_shares, smallest_chunk);
  std::size_t chunk = std::min({bytes, how.chunk, std::max(share, least_fetch_chunk)});
  std::vector<slot> slots = my.slots_for(stream, stream.device(), bytes,
                                         std::clamp<std::size_t>(how.budget / chunk, 1, fetch_slots), chunk, where);
  auto const sizes = fetched_sizes(bytes, chunk);
  auto const job = std::make_shared<fetch>(workers, sizes.size());
  job->slots = slots.size();
  marks const at_the_end{slots, stream, stream};
  download out;
  try {
    base::internal_ordering const own_slot(my.owner.observer());
    // To the race checker, pinned memory that the caller writes would be the program's own write.
    bool const may_poll = is_pageable && bytes <= most_polled && sizes.size() == 1 && is_idle(stream);
    for (std::size_t i = 0, offset = 0; i < sizes.size(); offset += sizes[i], ++i) {
      auto& part = job->chunk[i];
      void* const through = slots[i % slots.size()].memory();
      part.dst = at(dst, offset);
      part.src = through;
      part.bytes = sizes[i];
      part.by = how.by, part.grain = how.grain;
      enqueue_copy(stream, through, at(src, offset), part.bytes, where);
      // The caller empties the only slot.
      if (may_poll && my.comes_soon(stream)) {
        workers->finish(part);
        return out;
      }
      auto const queued = my.owner.machine().host_function(stream.device(), stream.handle(),
                                                           {&arrival::run, &arrival::drop, new arrival{job, i}});
      if (!queued.ok())
        throw_refusal(stream.note(queued), "copy", of_copy(stream, dst, src, bytes),
                      queued.what == driver::code::lost ? "Continue with the other devices" : "Repeat the call", where);
    }
  } catch (...) {
    job->cancel();
    throw;
  }
  my.note(stream, chunk * slots.size());
  out.job_ = job;
  return out;
}

// One copy to a host that waits. The engine fills slots ahead of the copy workers, which empty them in order.
class staging::state::awaited_download {
 public:
  awaited_download(state& my, clock::stream_clock& stream, void* dst, void const* src, std::size_t bytes,
                   source_location where)
      : my_(my),
        stream_(stream),
        dst_(dst),
        src_(src),
        bytes_(bytes),
        where_(where),
        how_(*my.to_fetch.lock()),
        workers_(my.workers_near(stream)),
        chunk_(my.chunk_for(bytes, how_, *workers_)),
        slots_(my.slots_for(stream, stream.device(), bytes, std::max<std::size_t>(how_.budget / how_.chunk, 2), chunk_,
                            where)),
        chunks_((bytes + chunk_ - 1) / chunk_),
        ahead_((slots_.size() + 2) / 3),
        emptying_(slots_.size()),
        filled_(slots_.size()) {
    my_.room_of(stream_).add(bytes_of_slots());  // held by a caller who waits
  }
  // On every exit the host memory is no longer accessed.
  ~awaited_download() {
    for (auto& one : emptying_)
      workers_->cancel(one);
    for (std::size_t k = 0; k < slots_.size(); ++k) {
      // After a failure the engine may still fill any slot.
      if (all_came_)
        slots_[k].used_until(filled_[k]);
      else
        slots_[k].used_by(stream_);
    }
    my_.room_of(stream_).give_back(bytes_of_slots());
  }
  awaited_download(awaited_download const&) = delete;

  clock::stamp run() {
    {
      base::internal_ordering const own_affair(my_.owner.observer());
      // `came`: chunks that the engine has brought, which is the number of the next one.
      for (std::size_t came = 0; came + 1 < chunks_; ++came) {
        enqueue_until(std::min(chunks_, came + ahead_));
        begin_to_empty(came);
      }
      enqueue_until(chunks_);
    }
    // This wait is the program's, too: what it does next is ordered behind the copy.
    begin_to_empty(chunks_ - 1);
    for (auto& one : emptying_)
      workers_->finish(one);
    all_came_ = true;
    return filled_[(chunks_ - 1) % slots_.size()];
  }

 private:
  // The engine gets the chunks before `end`.
  void enqueue_until(std::size_t end) {
    for (; given_ < end; ++given_) {
      std::size_t const k = given_ % slots_.size();
      // The slot's last chunk must have left it before the engine fills it again.
      if (given_ >= slots_.size())
        workers_->finish(emptying_[k]);
      enqueue_copy(stream_, slots_[k].memory(), at(src_, given_ * chunk_), size_of_chunk(given_), where_);
      filled_[k] = stream_.now();
      refuse_failed(stream_.fence().is);  // lets a query see it done before later ones
    }
  }

  // Blocks: until the engine has filled the chunk's slot
  void begin_to_empty(std::size_t chunk) {
    std::size_t const k = chunk % slots_.size();
    refuse_failed(my_.clocks.synchronize(filled_[k]));
    copy_workers::task& empty = emptying_[k];
    // This task was finished before its slot was refilled: no thread reads it. It is idle again.
    empty = {at(dst_, chunk * chunk_), slots_[k].memory(), size_of_chunk(chunk), how_.by, how_.grain};
    if (chunks_ > 1 || empty.bytes >= fetch::least_shared)
      workers_->submit(empty);
    else
      workers_->finish(empty);
  }

  void refuse_failed(driver::status s) const {
    if (!s.ok())
      throw_refusal(s, "copy", of_copy(stream_, dst_, src_, bytes_),
                    s.what == driver::code::lost ? "Continue with the other devices" : "Repeat the call", where_);
  }

  std::size_t size_of_chunk(std::size_t i) const { return std::min(chunk_, bytes_ - i * chunk_); }
  std::size_t bytes_of_slots() const { return slots_.size() * slots_[0].bytes(); }

  state& my_;
  clock::stream_clock& stream_;
  void* const dst_;
  void const* const src_;
  std::size_t const bytes_;
  source_location const where_;
  tuning const how_;
  std::shared_ptr<copy_workers> const workers_;
  std::size_t chunk_;
  std::vector<slot> const slots_;
  std::size_t const chunks_;
  std::size_t const ahead_;                   // slots with the engine; the others are with the copy workers
  std::size_t given_ = 0;                     // chunks that were enqueued
  std::vector<copy_workers::task> emptying_;  // by slot
  std::vector<clock::stamp> filled_;          // by slot
  bool all_came_ = false;
};

staging::download staging::to_waiting_host(clock::stream_clock& stream, void* dst, void const* src, std::size_t bytes,
                                           source_location where) {
  copy_in_parts const whole;
  state_->refuse_captured(stream, dst, src, bytes, where);
  download out;
  out.arrived_ = state::awaited_download(*state_, stream, dst, src, bytes, where).run();
  return out;
}

void staging::between(clock::stream_clock& from, clock::stream_clock& to, void* dst, void const* src, std::size_t bytes,
                      source_location where) {
  copy_in_parts const whole;
  auto& my = *state_;
  my.refuse_captured(from, dst, src, bytes, where);
  my.refuse_captured(to, dst, src, bytes, where);
  std::size_t chunk =
      std::min(bytes, std::clamp(base::round_up(bytes / between_slots, smallest_chunk), finest_chunk, between_chunk));
  std::vector<slot> slots = my.slots_for(to, from.device(), bytes, between_slots, chunk, where);
  marks const at_the_end{slots, from, to};
  auto const require_order = [&](driver::status waited) {
    if (!waited.ok())
      throw_refusal(waited, "copy", range_text(dst, bytes) + " <- " + range_text(src, bytes) + " between devices",
                    "Repeat the call", where);
  };
  std::vector<clock::stamp> emptied(slots.size());
  for (std::size_t i = 0, offset = 0; offset < bytes; ++i, offset += chunk) {
    std::size_t const k = i % slots.size(), n = std::min(chunk, bytes - offset);
    require_order(from.wait(emptied[k]));
    own_copy(from, slots[k].memory(), at(src, offset), n, where);
    require_order(to.wait(from.now()));
    own_copy(to, at(dst, offset), slots[k].memory(), n, where);
    emptied[k] = to.now();
  }
  my.note(to, chunk * slots.size());
}

}  // namespace weir::streams
