// Blocks, marks, host memory, refusals and reports.
// Threads: one.
#include <sys/mman.h>

#include "tests/soak/actor.h"
#include "tests/soak/foreign_stream.h"
#include "weir/observe.h"

namespace weir::soak {
namespace {

constexpr std::size_t some_pages = 64 << 10;

struct pages {  // of their own: a fork has no registered pages, and the heap must not lie there
  std::size_t bytes;
  void* at;
  explicit pages(std::size_t n)
      : bytes(n), at(::mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (at == MAP_FAILED)
      throw std::bad_alloc();
  }
  ~pages() { ::munmap(at, bytes); }
  pages(pages const&) = delete;
};

}  // namespace

// Blocks outlive the streams that they came from, and end on other threads.
void actor::blocks() {
  int const d = some_device();
  stream const& s = some_stream(d);
  std::size_t const bytes = some_bytes();
  block const b{timed(call::allocate, [&] { return allocate(s, bytes); }), bytes};
  if (chance(2))
    work(s, b.at, bytes);
  if (chance(4)) {
    deallocate(in_.exchange(below(32), b.at));
  } else {
    put(b, below(blocks_.size()));
  }
}

// A lasting block, used by streams that end.
void actor::marks_of_own() {
  int const d = some_device();
  auto const& lasts = *in_.lasting_[static_cast<std::size_t>(d)];
  stream const s(d);
  s.wait(lasts.on);
  timed(call::mark, [&] { lasts.weights.record_stream(s); });
  buffer const b(s, 1000);
  timed(call::copy, [&] { copy(s, b.data(), lasts.weights.data(), 1000, non_blocking); });
}

void actor::marks_of_borrowed() {
  int const d = some_device();
  auto const& lasts = *in_.lasting_[static_cast<std::size_t>(d)];
  foreign_stream const f(in_.driver(), d);
  auto const s = borrow_stream(d, f.handle());
  timed(call::mark, [&] { lasts.weights.record_stream(s); });
  void* const b = allocate(s, 1000);
  copy(s, b, lasts.staging.data(), 1000, non_blocking);
  deallocate(borrow_stream(d, f.handle()), b);
}

void actor::pinned_blocks() {
  int const d = some_device();
  stream const& s = some_stream(d);
  buffer host = timed(call::pin, [&] { return pinned(some_bytes()); });
  buffer const b(s, host.size());
  copy(s, b.data(), host.data(), host.size(), non_blocking);
  if (chance(2))
    copy(s, host.data(), b.data(), host.size(), non_blocking);
  auto& slot = pinned_[below(pinned_.size())];
  timed(call::unpin, [&] { slot.reset(); });  // perhaps under a copy
  slot.emplace(std::move(host));
}

void actor::pageable_copies() {
  int const d = some_device();
  stream const& s = some_stream(d);
  std::vector<std::uint32_t> words(some_bytes() / 4);
  buffer const b(s, words.size() * 4);
  std::uint64_t const id = next_id_++;
  for (std::size_t i = 0; i < words.size(); ++i)
    words[i] = stamped(id, i);
  timed(call::copy, [&] { copy(s, b.data(), words.data(), b.size()); });
  if (chance(4))
    check_bytes(s, b.data(), b.size(), id, "a pageable copy");
}

void actor::registered_ranges() {
  int const d = some_device();
  stream const& s = some_stream(d);
  std::lock_guard const no_capture(in_.captures());
  pages const mine(some_pages);
  std::optional<registered_host_memory> range;
  timed(call::register_range, [&] { range.emplace(std::span(static_cast<std::byte*>(mine.at), mine.bytes)); });
  buffer const b(s, mine.bytes);
  copy(s, b.data(), mine.at, mine.bytes, non_blocking);
  timed(call::unregister_range, [&] { range.reset(); });  // perhaps under the copy
}

void actor::refusals() {
  int const d = some_device();
  stream const& s = some_stream(d);
  bool asked = false;
  auto const on = on_out_of_memory([&](memory_report const&) {
    asked = true;
    return false;
  });
  bool refused = false;
  timed(call::refusal, [&] {
    try {
      deallocate(allocate(s, in_.limit() + 1));
    } catch (out_of_memory const& e) {
      refused = !e.report().text().empty();
    }
  });
  if (!refused)
    throw wrong("a block above the limit was not refused");
}

void actor::reports() {
  int const d = some_device();
  if (chance(4))
    record_memory_history({.events = 500});
  timed(call::report, [&] {
    (void)memory_snapshot(d);
    (void)memory_by_stream(d);
    (void)memory_by_pool(d);
    (void)memory_headroom(d);
  });
  if (chance(4)) {
    (void)memory_summary(d);
    (void)memory_metrics();
    (void)memory_history(d);
    (void)memory_by_line(d);
  }
  if (chance(2))
    stop_memory_history();
}

void actor::caches() {
  int const d = some_device();
  timed(call::empty_cache, [&] { empty_cache(d); });
  if (chance(4))
    empty_pinned_cache();
  if (chance(4)) {
    set_memory_limit(in_.limit() / 2, d);
    set_memory_limit(in_.limit(), d);
  }
}

}  // namespace weir::soak
