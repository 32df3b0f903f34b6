// The logs of threads, and the book that gathers them.
// Threads: any. A log is written by its thread alone; its count is published after the entry.
#include "runtime/observe/history.h"

#include <algorithm>
#include <array>
#include <boost/circular_buffer.hpp>
#include <boost/container_hash/hash.hpp>
#include <boost/stacktrace/safe_dump_to.hpp>
#include <boost/unordered/unordered_flat_map.hpp>
#include <span>
#include <tuple>

#include "runtime/base/process.h"

namespace weir::observe {
namespace {

constexpr std::size_t log_events = 512;
constexpr std::size_t deepest_stack = 32;

struct line_key {
  char const* file;
  std::uint32_t line, place;
  friend bool operator==(line_key const&, line_key const&) = default;
  friend std::size_t hash_value(line_key const& k) noexcept {
    return boost::hash<std::tuple<char const*, std::uint32_t, std::uint32_t>>{}({k.file, k.line, k.place});
  }
};

}  // namespace

struct history::log {
  base::atomic<std::uint32_t> count{0};
  std::uint32_t gathered = 0;  // under the history's lock
  std::uint32_t thread = static_cast<std::uint32_t>(base::this_thread_id());
  std::array<event, log_events> events;

  log() {
    history& h = process();
    base::lock_guard hold(h.lock_);
    h.logs_.push_back(this);
  }
  ~log() {
    if (process_was_forked())
      return;
    history& h = process();
    base::lock_guard hold(h.lock_);
    try {
      h.gather();
    } catch (std::bad_alloc const&) {}  // no memory: this thread's last events are lost
    std::erase(h.logs_, this);
  }
};

struct history::book {
  struct place {  // a device of a runtime
    std::uint32_t runtime = 0;
    std::int16_t device = 0;
    std::int64_t bytes = 0, peak = 0;
    std::uint64_t peaks = 0;  // number of times that the peak rose
  };
  struct line_entry {
    line_sums sums;
    std::uint32_t place = 0;
    std::uint64_t kept = 0;  // place::peaks when the numbers at the peak were last saved
  };
  struct live_entry {
    std::uint64_t ticks = 0, bytes = 0, stream = 0;
    std::uint32_t line = 0, stack = 0, thread = 0;
  };

  std::span<event const> gathered;  // the log of a single thread, or `batch`
  std::vector<event> batch;         // of several threads, sorted
  boost::circular_buffer<event> ring;
  boost::unordered_flat_map<std::uintptr_t, live_entry> live;
  // ticks of frees whose blocks' beginnings are gathered next time: found by this gathering, and by the one before
  boost::unordered_flat_map<std::uintptr_t, std::uint64_t> early_ends, early_ends_before;
  boost::unordered_flat_map<line_key, std::uint32_t, boost::hash<line_key>> numbers;
  std::vector<line_entry> lines;
  std::vector<place> places;
  std::vector<std::vector<void const*>> stacks{{}};  // by number; the first is empty
  boost::unordered_flat_map<std::size_t, std::uint32_t> stack_numbers;
  std::uint32_t last_line = 0;
  std::uint64_t forgotten = 0;
  std::uint64_t ticks_at_start = base::ticks();
  std::int64_t ns_at_start = base::now_ns();

  void enter(event e) {
    if (e.what == action::alloc)
      begin_block(e);
    else if (e.what == action::free)
      end_block(e);
    if (ring.full())
      ++forgotten;
    ring.push_back(e);
  }

  void begin_block(event const& e) {
    std::uint32_t const line = number_of_line(e);
    // If its end was gathered before it, the block counts, and has ended.
    if (auto const early = early_ends_before.find(e.at); early != early_ends_before.end() && early->second > e.ticks) {
      early_ends_before.erase(early);
      count_taken(line, e.bytes, false);
      return;
    }
    auto const [entry, is_new] = live.try_emplace(e.at);
    if (!is_new)
      end(entry->second);  // its end was not recorded: it was freed while the history was off
    entry->second = {e.ticks, e.bytes, e.stream, line, e.stack, e.thread};
    count_taken(line, e.bytes, true);
  }
  // Completes the event of a free by what is known of its block.
  void end_block(event& e) {
    auto const found = live.find(e.at);
    if (found == live.end()) {
      early_ends[e.at] = e.ticks;
      return;
    }
    live_entry const& began = found->second;
    if (began.ticks > e.ticks)
      return;  // of an earlier block there, which has already ended
    place const& its = places[lines[began.line].place];
    e.bytes = began.bytes, e.stream = began.stream, e.runtime = its.runtime, e.device = its.device;
    end(began);
    live.erase(found);
  }
  void end(live_entry const& b) {
    line_sums& s = lines[b.line].sums;
    s.given_blocks += 1, s.given_bytes += static_cast<std::int64_t>(b.bytes);
    change(b.line, -1, -static_cast<std::int64_t>(b.bytes));
  }
  void count_taken(std::uint32_t line, std::uint64_t bytes, bool lives) {
    line_sums& s = lines[line].sums;
    s.total_blocks += 1, s.total_bytes += static_cast<std::int64_t>(bytes);
    if (lives)
      change(line, 1, static_cast<std::int64_t>(bytes));
    else
      s.given_blocks += 1, s.given_bytes += static_cast<std::int64_t>(bytes);
  }
  // A line's numbers at the peak are saved when they first change after it: unchanged lines still have them.
  void change(std::uint32_t line, std::int64_t blocks, std::int64_t bytes) {
    line_entry& l = lines[line];
    place& p = places[l.place];
    keep(l, p);
    l.sums.blocks += blocks, l.sums.bytes += bytes;
    p.bytes += bytes;
    if (p.bytes > p.peak)
      p.peak = p.bytes, ++p.peaks;
  }
  static void keep(line_entry& l, place const& p) {
    if (l.kept == p.peaks)
      return;
    l.kept = p.peaks;
    l.sums.blocks_at_peak = l.sums.blocks, l.sums.bytes_at_peak = l.sums.bytes;
  }

  std::uint32_t number_of_line(event const& e) {
    if (last_line < lines.size()) {  // mostly the same as before
      line_sums const& l = lines[last_line].sums;
      place const& p = places[lines[last_line].place];
      if (l.line == e.line && l.file == e.file && p.device == e.device && p.runtime == e.runtime)
        return last_line;
    }
    std::uint32_t const where = place_of(e.runtime, e.device);
    auto const [number, is_new] =
        numbers.try_emplace(line_key{e.file, e.line, where}, static_cast<std::uint32_t>(lines.size()));
    if (is_new) {
      line_entry l;
      l.sums.file = e.file, l.sums.function = e.function, l.sums.line = e.line;
      l.place = where;
      l.kept = places[where].peaks;
      lines.push_back(l);
    }
    last_line = number->second;
    return last_line;
  }
  std::uint32_t place_of(std::uint32_t runtime, std::int16_t device) {
    for (std::uint32_t i = 0; i < places.size(); ++i)
      if (places[i].runtime == runtime && places[i].device == device)
        return i;
    places.push_back({runtime, device});
    return static_cast<std::uint32_t>(places.size() - 1);
  }
};

history::history() : book_(std::make_unique<book>()) {}

history& history::process() {
  static auto* const only = [] {
    base::no_switch const here;
    return new history;
  }();
  return *only;
}

history::log& history::mine() {
  static base::per_thread<log> logs;
  return logs.get();
}

void history::start(std::size_t events, bool stacks) {
  base::lock_guard const hold(lock_);
  start_afresh(events, stacks);
}

void history::start_if_off(std::size_t events, bool stacks) {
  base::lock_guard const hold(lock_);
  if (!on())
    start_afresh(events, stacks);
}

void history::start_afresh(std::size_t events, bool stacks) {
  auto fresh = std::make_unique<book>();
  fresh->ring.set_capacity(std::max<std::size_t>(events, 1));
  for (log* l : logs_)
    l->gathered = l->count.load(base::memory_order_acquire);
  book_ = std::move(fresh);
  stacks_.store(stacks);
  turn(true);
}

void history::stop() noexcept {
  // As in note().
  if (process_was_forked())
    return;
  base::lock_guard const hold(lock_);
  turn(false);
}

void history::turn(bool on) noexcept {
  if (on_.exchange(on) != on)
    note_all_blocks(on);
}

void history::note(action what, std::uintptr_t at, std::size_t bytes, std::uint64_t stream, std::uint32_t runtime,
                   int device, source_location from) noexcept {
  // A thread of the parent may hold the lock for ever: a child records nothing.
  if (process_was_forked())
    return;
  try {
    log& l = mine();
    std::uint32_t n = l.count.load(base::memory_order_relaxed);
    if (n == log_events) {  // full
      base::lock_guard hold(lock_);
      gather();  // all of this log: its events are earlier than this moment
      l.gathered = n = 0;
      l.count.store(0, base::memory_order_relaxed);
    }
    std::uint32_t const stack =
        stacks_.load(base::memory_order_relaxed) && what == action::alloc ? number_of_stack() : 0;
    event& e = l.events[n];
    e.ticks = base::ticks(), e.at = at, e.bytes = bytes, e.stream = stream, e.runtime = runtime, e.stack = stack;
    e.file = from.file_name(), e.function = from.function_name(), e.line = from.line();
    e.thread = l.thread, e.device = static_cast<std::int16_t>(device), e.what = what;
    l.count.store(n + 1, base::memory_order_release);
  } catch (std::bad_alloc const&) {
    stop();  // no memory for the log: without this event the book would be wrong
  }
}

void history::take_back(std::uintptr_t at) noexcept try {
  if (process_was_forked())
    return;
  log& l = mine();
  base::lock_guard const hold(lock_);
  std::uint32_t const n = l.count.load(base::memory_order_relaxed);
  if (n == l.gathered || l.events[n - 1].at != at || l.events[n - 1].what != action::free)
    return;
  l.count.store(n - 1, base::memory_order_release);
} catch (std::bad_alloc const&) {}  // this thread has no log: it has written nothing

// Gathers all threads' events up to one moment, nearly in order: an event that its thread publishes late is gathered
// next time. If it is the beginning of a block, `early_ends` has the block's end.
void history::gather() {
  std::uint64_t const until = base::ticks();
  book& b = *book_;
  b.early_ends_before.swap(b.early_ends);
  b.early_ends.clear();
  b.batch.clear();
  std::size_t writers = 0;
  for (log* l : logs_) {
    base::switch_point();  // another thread may write between two logs
    std::uint32_t n = l->count.load(base::memory_order_acquire);
    while (n > l->gathered && l->events[n - 1].ticks > until)
      --n;
    if (n == l->gathered)
      continue;
    auto const found = std::span<event const>(l->events).subspan(l->gathered, n - l->gathered);
    ++writers;
    // The first log is not copied, as mostly there is no other.
    if (writers == 1)
      b.gathered = found;
    else
      b.batch.insert(b.batch.end(), found.begin(), found.end());
    l->gathered = n;
  }
  if (writers > 1) {
    b.batch.insert(b.batch.begin(), b.gathered.begin(), b.gathered.end());
    std::stable_sort(b.batch.begin(), b.batch.end(), [](event const& x, event const& y) { return x.ticks < y.ticks; });
    b.gathered = b.batch;
  }
  if (writers) {
    for (event const& e : b.gathered)
      b.enter(e);
  }
  b.early_ends_before.clear();
}

std::uint32_t history::number_of_stack() {
  std::array<void const*, deepest_stack + 1> frames{};
  (void)boost::stacktrace::safe_dump_to(3, frames.data(), sizeof frames);  // without this function and its two callers
  std::vector<void const*> const found(frames.begin(), std::find(frames.begin(), frames.end(), nullptr));
  std::size_t const key = boost::hash_range(found.begin(), found.end());
  base::lock_guard hold(lock_);
  book& b = *book_;
  auto const [at, fresh] = b.stack_numbers.try_emplace(key, static_cast<std::uint32_t>(b.stacks.size()));
  if (fresh)
    b.stacks.push_back(found);
  return at->second;
}

std::vector<event> history::events(std::uint32_t runtime, int device) {
  base::lock_guard hold(lock_);
  gather();
  std::vector<event> out;
  for (event const& e : book_->ring)
    if (e.runtime == runtime && e.device == device)
      out.push_back(e);
  std::stable_sort(out.begin(), out.end(), [](event const& x, event const& y) { return x.ticks < y.ticks; });
  return out;
}

std::vector<line_sums> history::lines(std::uint32_t runtime, int device) {
  base::lock_guard hold(lock_);
  gather();
  std::uint32_t const where = book_->place_of(runtime, static_cast<std::int16_t>(device));
  std::vector<line_sums> out;
  for (book::line_entry& l : book_->lines) {
    if (l.place != where)
      continue;
    book::keep(l, book_->places[where]);
    out.push_back(l.sums);
  }
  return out;
}

std::vector<live_block> history::live(std::uint32_t runtime, int device) {
  base::lock_guard hold(lock_);
  gather();
  std::vector<live_block> out;
  for (auto const& [at, b] : book_->live) {
    book::line_entry const& l = book_->lines[b.line];
    book::place const& its = book_->places[l.place];
    if (its.runtime == runtime && its.device == device)
      out.push_back({at, b.bytes, b.ticks, b.stream, b.thread, b.stack, {l.sums.file, l.sums.function, l.sums.line}});
  }
  return out;
}

std::uint64_t history::forgotten() {
  base::lock_guard hold(lock_);
  gather();
  return book_->forgotten;
}

std::vector<void const*> history::stack(std::uint32_t number) const {
  base::lock_guard hold(lock_);
  return number < book_->stacks.size() ? book_->stacks[number] : std::vector<void const*>{};
}

history::time_scale history::scale() const noexcept {
  base::lock_guard hold(lock_);
  std::uint64_t const now = base::ticks();
  std::int64_t const ns = base::now_ns();
  book const& b = *book_;
  double const rate = now == b.ticks_at_start
                          ? 0
                          : static_cast<double>(ns - b.ns_at_start) / static_cast<double>(now - b.ticks_at_start);
  return {b.ticks_at_start, b.ns_at_start, rate};
}

}  // namespace weir::observe
