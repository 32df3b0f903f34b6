// Fills, gives, takes and writes batches. One thread at a time enqueues copies to the device, so that they keep
// the order of the batches.
#include "peer/pipeline/batch_ring.h"

#include <algorithm>
#include <string>

#include "runtime/base/text.h"
#include "streams/stream/context.h"
#include "weir/copy.h"

namespace weir::peer {
namespace {

std::string words_of(std::exception_ptr const& why) {
  try {
    std::rethrow_exception(why);
  } catch (std::exception const& e) {
    return e.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

std::string batch_text(std::uint64_t number) {
  return "batch " + std::to_string(number);
}

// The loops of one runtime. Their threads use it, so they end before its first part does.
class loops {
 public:
  explicit loops(runtime::impl& r) {
    r.before_the_end(this, [](void* self) noexcept { static_cast<loops*>(self)->close(); });
  }
  void add(std::weak_ptr<batch_ring> ring) {
    auto all = all_.lock();
    std::erase_if(*all, [](auto const& r) { return r.expired(); });
    all->push_back(std::move(ring));
  }

 private:
  void close() noexcept {
    auto const all = all_.lock();
    for (auto const& r : *all) {
      if (auto const ring = r.lock())
        ring->close();
    }
  }
  base::guarded<std::vector<std::weak_ptr<batch_ring>>> all_;
};

}  // namespace

batch_ring::batch_ring(char const* name, pipeline_options with, fill_function fill, write_function write,
                       source_location at)
    : name_(name),
      with_((require_arguments(name, with, static_cast<bool>(fill), at), with)),
      fill_(std::move(fill)),
      write_(std::move(write)),
      at_(at),
      runtime_(runtime::current(at)),
      known_(runtime_.get()),
      in_(with.on, priority::normal, at),
      device_(in_.device()),
      out_(device_, priority::normal, at),
      slots_(static_cast<std::size_t>(with.slots)) {
  device_guard const on(device_, at);
  for (batch_slot& s : slots_) {
    s.host = pinned(std::max(with_.batch_bytes, with_.result_bytes), at);
    s.device = buffer(in_, with_.batch_bytes, default_alignment, at);
    if (with_.result_bytes)
      s.result = buffer(in_, with_.result_bytes, default_alignment, at);
    free_.push_back(&s);
  }
}

void batch_ring::require_arguments(char const* name, pipeline_options const& with, bool has_functions,
                                   source_location at) {
  if (with.batch_bytes == 0)
    throw invalid_use(name, "batches of 0 B", "Set batch_bytes to the bytes of the largest batch", at, error_id{467});
  if (with.slots < 1)
    throw invalid_use(name, std::to_string(with.slots) + " slots",
                      "Set slots to 1 or more. With 3, fill, copy and use overlap", at, error_id{468});
  if (with.threads < 1)
    throw invalid_use(name, std::to_string(with.threads) + " threads that fill", "Set threads to 1 or more", at,
                      error_id{469});
  if (!has_functions)
    throw invalid_use(name, "an empty function", "Pass functions that can be called", at, error_id{470});
}

void batch_ring::start() {
  runtime_.get().part<loops>().add(weak_from_this());
  for (int i = 0; i < with_.threads; ++i)
    threads_.emplace_back([this] { fill_batches(); });
  if (has_results())
    threads_.emplace_back([this] { write_results(); });
}

// ---- the threads that fill ------------------------------------------------------------------------------

void batch_ring::fill_batches() {
  runtime_guard const here(runtime_);
  while (batch_slot* const s = slot_to_fill()) {
    std::size_t bytes = 0;
    std::exception_ptr why;
    try {
      bytes = filled_by_program(*s);
    } catch (...) {
      why = std::current_exception();
    }
    base::unique_lock lock(mutex_);
    if (bytes == 0) {
      end_under_lock_at(s->number, why);
      make_free(*s);
      continue;
    }
    s->bytes = bytes;
    s->result_bytes = with_.result_bytes ? with_.result_bytes : bytes;
    s->is = batch_slot::state::filled;
    give_in_order(lock);
  }
}

// The device of the loop is current in functions of the program.
void batch_ring::enter(std::string const& what) const {
  (void)known_.get(name_, what, at_);
  set_device(device_, at_);
}

batch_slot* batch_ring::slot_to_fill() {
  base::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return closed_.load() || to_fill_ >= end_ || !free_.empty(); });
  if (closed_.load() || to_fill_ >= end_)
    return nullptr;
  batch_slot* const s = free_.front();
  free_.erase(free_.begin());
  s->number = to_fill_++;
  s->is = batch_slot::state::filling;
  return s;
}

std::size_t batch_ring::filled_by_program(batch_slot& s) {
  enter("fill of " + batch_text(s.number));
  // The engine may still read what the slot's last batch left in pinned memory.
  s.copied.synchronize(at_);
  std::size_t bytes = 0;
  try {
    bytes = fill_(s.number, s.host.host<std::byte>(at_).first(with_.batch_bytes));
  } catch (...) {
    std::exception_ptr const why = std::current_exception();
    throw batch_failed(s.number, why, name_, "fill of " + batch_text(s.number) + " threw: " + words_of(why),
                       "Mend what cause() tells: batches before this one are not affected", at_, error_id{471});
  }
  if (bytes > with_.batch_bytes)
    throw invalid_use(name_,
                      "fill of " + batch_text(s.number) + " returned " + std::to_string(bytes) +
                          " B, and a slot holds " + std::to_string(with_.batch_bytes) + " B",
                      "Return the bytes that were written, or set a larger batch_bytes", at_, error_id{472});
  return bytes;
}

// Enqueues the copies of all filled batches whose turn it is.
void batch_ring::give_in_order(base::unique_lock& lock) {
  // Another thread that gives looks for this batch, too.
  while (!giving_) {
    batch_slot* const s = find(to_give_, batch_slot::state::filled);
    if (!s)
      return;
    giving_ = true;
    lock.unlock();
    std::exception_ptr why;
    try {
      in_.wait(s->used, at_);
      s->copied = copy(in_, s->device.data(), s->host.data(), s->bytes, non_blocking, at_);
    } catch (...) {
      why = std::current_exception();
    }
    lock.lock();
    giving_ = false;
    if (why) {
      end_under_lock_at(s->number, why);
      return;
    }
    s->is = batch_slot::state::given;
    ++to_give_;
    changed_.notify_all();
  }
}

// ---- the consumer ---------------------------------------------------------------------------------------

std::optional<batch> batch_ring::next(std::optional<stream_ref> on, source_location at) {
  std::string const operation = std::string(name_) + "::next";
  if (process_was_forked())
    streams::throw_forked(operation, at);
  (void)known_.get(operation, "a loop on " + base::gpu_name(device_.index()), at);
  stream_ref const s = on ? *on : current_stream(device_, at);
  clock::stream_clock const& stream = streams::clock_or_throw(s, operation, at);
  if (stream.alive() == clock::life::borrowed)
    throw invalid_use(operation, "a borrowed stream, " + streams::describe(stream),
                      "Keep an external_stream of it: its work is asked for again when the batch ends", at,
                      error_id{483});
  if (s.device() != device_)
    throw invalid_use(
        operation,
        "a stream of " + base::gpu_name(s.device().index()) + " for batches on " + base::gpu_name(device_.index()),
        "Pass a stream of the device that holds the batches", at, error_id{473});
  batch_slot* const found = wait_for_next(operation, at);
  if (!found)
    return std::nullopt;
  std::exception_ptr why;
  try {
    s.wait(found->copied, at);
  } catch (...) {
    why = std::current_exception();
  }
  base::lock_guard const lock(mutex_);
  in_next_ = false;
  if (why)
    std::rethrow_exception(why);
  found->is = batch_slot::state::taken;
  found->consumer = s;
  ++taken_;
  return batch(shared_from_this(), *found, s);
}

// Ensures: in_next_ is set if a batch is returned.
batch_slot* batch_ring::wait_for_next(std::string const& operation, source_location at) {
  base::unique_lock lock(mutex_);
  if (in_next_)
    throw invalid_use(operation, "a second thread, while another one waits for " + batch_text(taken_),
                      "Let one thread at a time take batches", at, error_id{474});
  if (told_the_end_)
    throw invalid_use(operation, "a call after the last of " + std::to_string(end_) + " batches",
                      "Stop at the first nullopt", at, error_id{475});
  in_next_ = true;
  batch_slot* found = nullptr;
  changed_.wait(lock, [&] {
    found = find(taken_, batch_slot::state::given);
    return found || closed_.load() || taken_ >= end_ || all_are_held();
  });
  if (taken_ < end_ && found && !closed_.load())
    return found;
  in_next_ = false;
  require_open(operation, at);
  // The last reason to wake: all_are_held().
  if (taken_ < end_)
    throw invalid_use(operation,
                      "all " + std::to_string(with_.slots) + " slots are held by batches, so " + batch_text(taken_) +
                          " would never come",
                      "End a batch before the next one is taken, or set more slots", at, error_id{476});
  if (why_)
    std::rethrow_exception(why_);
  told_the_end_ = true;
  return nullptr;
}

void batch_ring::require_open(std::string const& operation, source_location at) const {
  if (closed_.load())
    throw invalid_use(operation, "a loop that has ended, or whose runtime has",
                      "Let the loop and its runtime live until the last batch", at, error_id{484});
}

// A result is written in order: it waits behind a batch that is held.
bool batch_ring::all_are_held() const noexcept {
  std::uint64_t first_held = no_end;
  for (batch_slot const& s : slots_) {
    if (s.is == batch_slot::state::taken)
      first_held = std::min(first_held, s.number);
  }
  return std::ranges::all_of(slots_, [&](batch_slot const& s) {
    bool const waits_for_held = s.is == batch_slot::state::returning && s.number > first_held;
    return s.is == batch_slot::state::taken || waits_for_held;
  });
}

void batch_ring::give_back(batch_slot& s) noexcept {
  base::unique_lock lock(mutex_);
  if (closed_.load())
    return;
  s.used = s.consumer->stamp();
  // A result of a batch behind the end is not wanted.
  if (!has_results() || s.number >= end_)
    return make_free(s);
  lock.unlock();
  std::exception_ptr why;
  try {
    out_.wait(s.used, at_);
    s.returned = copy(out_, s.host.data(), s.result_data(), s.result_bytes, non_blocking, at_);
  } catch (...) {
    why = std::current_exception();
  }
  lock.lock();
  if (why)
    end_under_lock_at(s.number, why);
  s.is = batch_slot::state::returning;
  changed_.notify_all();
}

// ---- the thread that writes -----------------------------------------------------------------------------

void batch_ring::write_results() {
  runtime_guard const here(runtime_);
  while (batch_slot* const s = result_to_write()) {
    std::exception_ptr why;
    try {
      write_by_program(*s);
    } catch (...) {
      why = std::current_exception();
    }
    base::lock_guard const lock(mutex_);
    if (why)
      end_under_lock_at(s->number, why);
    else
      ++to_write_;
    make_free(*s);
  }
}

batch_slot* batch_ring::result_to_write() {
  base::unique_lock lock(mutex_);
  batch_slot* found = nullptr;
  changed_.wait(lock, [&] {
    found = find(to_write_, batch_slot::state::returning);
    return found || closed_.load() || to_write_ >= end_;
  });
  return closed_.load() || to_write_ >= end_ ? nullptr : found;
}

void batch_ring::write_by_program(batch_slot& s) {
  enter("write of " + batch_text(s.number));
  s.returned.synchronize(at_);
  try {
    write_(s.number, s.host.host<std::byte>(at_).first(s.result_bytes));
  } catch (...) {
    std::exception_ptr const why = std::current_exception();
    throw batch_failed(s.number, why, name_, "write of " + batch_text(s.number) + " threw: " + words_of(why),
                       "Mend what cause() tells: batches before this one are not affected", at_, error_id{477});
  }
}

void batch_ring::wait_for_writes(source_location at) {
  // The thread that writes is the parent's.
  if (process_was_forked())
    streams::throw_forked(name_, at);
  base::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return closed_.load() || to_write_ >= end_; });
  require_open(name_, at);
  if (why_)
    std::rethrow_exception(why_);
}

// ---- all ------------------------------------------------------------------------------------------------

void batch_ring::make_free(batch_slot& s) noexcept {
  s.is = batch_slot::state::free;
  free_.push_back(&s);  // it has room for all slots
  changed_.notify_all();
}

batch_slot* batch_ring::find(std::uint64_t number, batch_slot::state is) noexcept {
  for (batch_slot& s : slots_) {
    if (s.is == is && s.number == number)
      return &s;
  }
  return nullptr;
}

// The earliest batch decides: a later one may fail because the program has read behind its end.
void batch_ring::end_under_lock_at(std::uint64_t number, std::exception_ptr why) noexcept {
  if (number >= end_)
    return;
  end_ = number;
  why_ = std::move(why);
  changed_.notify_all();
}

void batch_ring::end_at(std::uint64_t number, std::exception_ptr why) noexcept {
  if (process_was_forked())
    return;
  base::lock_guard const lock(mutex_);
  end_under_lock_at(number, std::move(why));
}

void batch_ring::close() noexcept {
  {
    base::lock_guard const lock(mutex_);
    if (closed_.exchange(true))
      return;
    changed_.notify_all();
  }
  for (base::thread& t : threads_)
    t.join();
  threads_.clear();
  for (batch_slot& s : slots_) {
    // The memory serves others behind all of its uses. A lost device has none.
    try {
      if (s.is == batch_slot::state::taken)
        s.used = s.consumer->stamp();
      in_.wait(s.used, at_);
      in_.wait(s.returned, at_);
    } catch (...) {}
    s.host.reset();
    s.device.reset();
    s.result.reset();
  }
}

}  // namespace weir::peer
