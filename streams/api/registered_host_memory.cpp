// The program's own memory, page-locked in place.
// Threads: any; one object is made and destroyed by one thread.
#include <algorithm>

#include "runtime/base/byte_range.h"
#include "runtime/base/os.h"
#include "runtime/base/process.h"
#include "runtime/base/room.h"
#include "runtime/base/round_up.h"
#include "runtime/driver/allocation_observer.h"
#include "streams/copy/copy_engine.h"
#include "streams/pinned/locked_ranges.h"
#include "streams/stream/context.h"
#include "weir/memory.h"

namespace weir {
namespace streams {

locked_ranges::~locked_ranges() {
  auto const next = [&]() -> void* {
    auto all = all_.lock();
    auto const one = std::find_if(all->begin(), all->end(), [](range const& r) { return r.is == state::locked; });
    return one == all->end() ? nullptr : one->first;
  };
  while (void* const first = next()) unlock(first);
  try_refused();
}

driver::status locked_ranges::lock(void* first, std::size_t bytes, base::byte_range own, source_location at) {
  try_refused();
  {
    auto all = all_.lock();
    base::make_room(*all);
    all->push_back({first, state::tried});  // allocates now, so that the unlock needs no memory
  }
  auto const pinned = runtime_.machine().pin(first, bytes);
  if (!pinned.ok()) {
    forget(first);
    return pinned;
  }
  bool const booked = books_.pinned(own.at, own.bytes, at);
  try {
    if (runtime_.observer() && booked) [[unlikely]] runtime_.observer()->allocated({}, own.at, own.bytes, at);
  } catch (...) {
    static_cast<void>(books_.unpinned(reinterpret_cast<driver::address>(first), os::page_size()));
    try_unlock(first);
    throw;
  }
  auto all = all_.lock();
  std::find_if(all->rbegin(), all->rend(), [&](range const& r) { return r.first == first; })->is = state::locked;
  return pinned;
}

void locked_ranges::unlock(void* first) noexcept {
  try_refused();
  static_cast<void>(runtime_.has_come_to_rest());  // no engine uses it any more
  auto const was = books_.unpinned(reinterpret_cast<driver::address>(first), os::page_size());
  constexpr source_location its_end{"the end of its registered_host_memory", "", 0};  // not a line of the program
  try {
    if (runtime_.observer() && was) [[unlikely]] runtime_.observer()->freed(was->at, was->requested, {}, its_end);
  } catch (...) {}  // the witness misses this free
  try_unlock(first);
}

void locked_ranges::try_refused() noexcept {
  for (bool rests = false;;) {
    void* first = nullptr;
    {
      auto all = all_.lock();
      auto const one = std::find_if(all->begin(), all->end(), [](range const& r) { return r.is == state::refused; });
      if (one == all->end()) return;
      one->is = state::tried;
      first = one->first;
    }
    if (!std::exchange(rests, true)) static_cast<void>(runtime_.has_come_to_rest());
    try_unlock(first);
    // Refused again: the driver would refuse the others too.
    auto all = all_.lock();
    if (std::any_of(all->begin(), all->end(),
                    [&](range const& r) { return r.first == first && r.is == state::refused; }))
      return;
  }
}

void locked_ranges::try_unlock(void* first) noexcept {
  auto const is = runtime_.machine().unpin(first);
  // invalid: the driver does not know the range any more
  if (is.ok() || is.what == driver::code::invalid) return forget(first);
  auto all = all_.lock();
  for (range& r : *all)
    if (r.first == first) r.is = state::refused;
}

void locked_ranges::forget(void* first) noexcept {
  auto all = all_.lock();
  auto const last = std::find_if(all->rbegin(), all->rend(), [&](range const& r) { return r.first == first; });
  if (last != all->rend()) all->erase(std::next(last).base());
}

}  // namespace streams

struct WEIR_LOCAL registered_host_memory::state {
  void* first;
  known_runtime of;
};

registered_host_memory::registered_host_memory(std::span<std::byte> memory, source_location at) {
  auto& r = streams::current_runtime(at);
  std::string const what = streams::range_text(memory.data(), memory.size());
  if (!memory.data()) throw invalid_use("registered_host_memory", what, "Pass memory of the host", at, error_id{208});
  if (memory.empty()) return;
  if (memory.size() > ~std::size_t{0} - reinterpret_cast<driver::address>(memory.data()) - os::page_size())
    throw invalid_use("registered_host_memory", what + ", which wraps around the address space",
                      "The size has overflowed: check the product it was made from", at, error_id{209});
  auto const page = static_cast<driver::address>(os::page_size());
  auto const own = reinterpret_cast<driver::address>(memory.data());
  auto const begin = own / page * page, end = base::round_up(own + memory.size(), page);
  // page locks apply to all devices, but one must be open
  r.open_any(streams::current_ordinal(r), "registered_host_memory", at);
  state_.reset(new state{memory.data() - (own - begin), known_runtime(r)});
  auto const pinned = r.part<streams::locked_ranges>().lock(state_->first, end - begin, {own, memory.size()}, at);
  if (pinned.what == driver::code::invalid)
    throw invalid_use("registered_host_memory", what, "Pass host memory that is not page-locked yet", at,
                      error_id{210});
  require(pinned, "registered_host_memory", what, "Raise the system's limit of locked pages (`ulimit -l`), or pin less",
          at);
}

registered_host_memory::~registered_host_memory() {
  if (!state_ || process_is_ending() || process_was_forked()) return;
  // without a live runtime: the runtime's end unlocked it
  if (auto* const r = state_->of.if_alive()) r->part<streams::locked_ranges>().unlock(state_->first);
}

}  // namespace weir
