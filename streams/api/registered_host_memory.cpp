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
  std::vector<base::byte_range> left;
  try {
    for (auto const& [at, own] : all_.lock()->ranges)
      left.push_back(own);
  } catch (...) {}  // no host memory: the system unlocks what is left
  for (auto const own : left)
    unlock(own);
  base::lock_guard const alone(changing_);
  // A last try for what a capture or a refusal has left locked, whatever the devices answer.
  static_cast<void>(runtime_.has_come_to_rest());
  unlock_idle();
}

base::byte_range locked_ranges::whole_pages(base::byte_range own) noexcept {
  auto const page = static_cast<driver::address>(os::page_size());
  driver::address const first = own.at / page * page;
  return {first, base::round_up(own.at + own.bytes, page) - first};
}

template <class Act>
void locked_ranges::each_on(registrations& all, base::byte_range pages, Act act) {
  auto one = base::holder_of(all, pages.at);
  if (one == all.end())
    one = all.lower_bound(pages.at);
  for (; one != all.end() && (one->first <= pages.at || one->first - pages.at < pages.bytes); ++one)
    act(*one);
}

std::vector<base::byte_range> locked_ranges::missing(registrations const& all, base::byte_range pages) {
  std::vector<base::byte_range> out;
  driver::address at = pages.at;
  driver::address const end = pages.at + pages.bytes;
  while (at < end) {
    if (auto const there = base::holder_of(all, at); there != all.end()) {
      at = there->first + there->second.bytes;
      continue;
    }
    auto const next = all.lower_bound(at);
    driver::address const until = next == all.end() ? end : std::min(end, next->first);
    out.push_back({at, until - at});
    at = until;
  }
  return out;
}

bool locked_ranges::has_idle() const {
  auto const all = all_.lock();
  return std::ranges::any_of(all->pages, [](auto const& one) { return one.second.holders == 0; });
}

// False: a stream is captured, which a wait would spoil, or the host has no memory. Lost devices run nothing, and
// those that are not in use answer that the call is invalid.
bool locked_ranges::have_come_to_rest() {
  bool all = true;
  for (int d = 0; d < runtime_.device_count(); ++d) {
    using driver::code;
    code const is = clocks_.synchronize_device(d).what;
    all &= is != code::not_permitted && is != code::out_of_memory;
  }
  return all;
}

// Entries come first, so that the unlock needs no memory. Throws: bad_alloc, nothing changed
std::vector<base::byte_range> locked_ranges::enter(base::byte_range own, base::byte_range pages) {
  auto all = all_.lock();
  std::vector<base::byte_range> const fresh = missing(all->pages, pages);
  all->ranges.try_emplace(own.at, own);
  try {
    for (auto const p : fresh)
      all->pages.try_emplace(p.at, registration{p.bytes, 0});
  } catch (...) {
    for (auto const p : fresh)
      all->pages.erase(p.at);
    all->ranges.erase(own.at);
    throw;
  }
  each_on(all->pages, pages, [](auto& r) { ++r.second.holders; });
  return fresh;
}

driver::status locked_ranges::lock_each(std::vector<base::byte_range> const& fresh, std::size_t& done) {
  for (done = 0; done < fresh.size(); ++done) {
    auto const is = runtime_.machine().pin(reinterpret_cast<void*>(fresh[done].at), fresh[done].bytes);
    if (!is.ok())
      return is;
  }
  return {};
}

driver::result<base::byte_range> locked_ranges::lock(base::byte_range own, source_location at) {
  base::lock_guard const alone(changing_);
  if (base::byte_range const other = range_in(own); other.bytes)
    return {{}, other};
  // First goes what earlier unlocks have left locked. If copies may still use it, it stays.
  bool const idle_is_unused = !has_idle() || have_come_to_rest();
  if (idle_is_unused)
    unlock_idle();
  base::byte_range const pages = whole_pages(own);
  std::vector<base::byte_range> const fresh = enter(own, pages);
  std::size_t done = 0;
  driver::status const is = lock_each(fresh, done);
  if (!is.ok()) {
    {
      auto all = all_.lock();
      for (std::size_t i = done; i < fresh.size(); ++i)
        all->pages.erase(fresh[i].at);
      all->ranges.erase(own.at);
    }
    let_go(pages);  // what was locked before the refusal is idle then, and no copy has used it
    if (idle_is_unused)
      unlock_idle();
    return {is, {}};
  }
  bool const booked = books_.pinned(own.at, own.bytes, at);
  try {
    if (runtime_.observer() && booked) [[unlikely]]
      runtime_.observer()->allocated({}, own.at, own.bytes, at);
  } catch (...) {
    static_cast<void>(books_.unpinned(own.at));
    all_.lock()->ranges.erase(own.at);
    let_go(pages);
    if (idle_is_unused)
      unlock_idle();
    throw;
  }
  return {is, {}};
}

void locked_ranges::unlock(base::byte_range own) noexcept {
  base::lock_guard const alone(changing_);
  bool const at_rest = have_come_to_rest();  // no engine uses it any more
  auto const was = books_.unpinned(own.at);
  constexpr source_location its_end{"the end of its registered_host_memory", "", 0};  // not a line of the program
  try {
    if (runtime_.observer() && was) [[unlikely]]
      runtime_.observer()->freed(was->at, was->requested, {}, its_end);
  } catch (...) {}  // the observer misses this free
  all_.lock()->ranges.erase(own.at);
  let_go(whole_pages(own));
  if (at_rest)
    unlock_idle();
}

// A range leaves these pages. Requires: changing_
void locked_ranges::let_go(base::byte_range pages) noexcept {
  each_on(all_.lock()->pages, pages, [](auto& r) { --r.second.holders; });
}

// Unlocks what no range is on. Requires: changing_, and rest since the last range left
void locked_ranges::unlock_idle() noexcept {
  for (;;) {
    driver::address first = 0;
    {
      auto all = all_.lock();
      auto const idle =
          std::find_if(all->pages.begin(), all->pages.end(), [](auto const& one) { return one.second.holders == 0; });
      if (idle == all->pages.end())
        return;
      first = idle->first;
    }
    auto const is = runtime_.machine().unpin(reinterpret_cast<void*>(first));
    // invalid: the driver does not know the range any more. Refused: the driver would refuse the others, too.
    if (!is.ok() && is.what != driver::code::invalid)
      return;
    all_.lock()->pages.erase(first);
  }
}

base::byte_range locked_ranges::range_in(base::byte_range bytes) const {
  auto const all = all_.lock();
  if (auto const there = base::holder_of(all->ranges, bytes.at); there != all->ranges.end())
    return there->second;
  auto const next = all->ranges.lower_bound(bytes.at);
  bool const begins_inside = next != all->ranges.end() && next->first - bytes.at < bytes.bytes;
  return begins_inside ? next->second : base::byte_range{};
}

std::size_t locked_ranges::left(void const* at) const {
  auto const all = all_.lock();
  auto const here = reinterpret_cast<driver::address>(at);
  auto const there = base::holder_of(all->pages, here);
  return there == all->pages.end() ? ~std::size_t{0} : there->first + there->second.bytes - here;
}

std::vector<std::string> locked_ranges::validate() const {
  base::lock_guard const alone(changing_);
  auto const all = all_.lock();
  std::vector<std::string> wrong;
  std::map<driver::address, int> holders;
  for (auto const& [at, own] : all->ranges) {
    if (!missing(all->pages, whole_pages(own)).empty())
      wrong.push_back("a range lies outside of the registrations");
    each_on(all->pages, whole_pages(own), [&](auto const& one) { ++holders[one.first]; });
  }
  for (auto one = all->pages.begin(); one != all->pages.end(); ++one) {
    auto const next = std::next(one);
    if (next != all->pages.end() && next->first - one->first < one->second.bytes)
      wrong.push_back("registrations overlap");
    if (holders[one->first] != one->second.holders)
      wrong.push_back("holders of a registration are miscounted");
  }
  return wrong;
}

}  // namespace streams

struct WEIR_LOCAL registered_host_memory::state {
  base::byte_range own;
  known_runtime of;
};

namespace {
constexpr char const* registering = "registered_host_memory";

// The driver has refused it, and names no reason.
[[noreturn]] void refuse_to_lock(runtime::impl& r, base::byte_range own, std::string const& what, source_location at) {
  auto const* const first = reinterpret_cast<void const*>(own.at);
  auto const known = find_block(first);
  auto const found = r.machine().find(first);
  bool const of_device =
      (known && known->kind == memory_kind::device) ||
      (found.ok() && (found.value.in == driver::where::device || found.value.in == driver::where::unknown_device));
  if (of_device)
    throw invalid_use("registered_host_memory", what + ", which is device memory", "Pass memory of the host", at,
                      error_id{455});
  if (!os::is_mapped(first, own.bytes))
    throw invalid_use("registered_host_memory", what + ", of which no memory is mapped at some addresses",
                      "Pass memory that the process has allocated or mapped, and keep it until the end of this object",
                      at, error_id{456});
  throw invalid_use("registered_host_memory",
                    what + ", which is page-locked by " + (known ? "weir" : "other code") + " already",
                    "Use it as it is: copies take it for pinned memory", at, error_id{210});
}
}  // namespace

registered_host_memory::registered_host_memory(std::span<std::byte> memory, source_location at) {
  auto& r = streams::current_runtime(at);
  std::string const what = streams::range_text(memory.data(), memory.size());
  if (!memory.data())
    throw invalid_use("registered_host_memory", what, "Pass memory of the host", at, error_id{208});
  if (memory.empty())
    return;
  base::byte_range const own{reinterpret_cast<driver::address>(memory.data()), memory.size()};
  // The range's last page, too, ends within the address space.
  driver::address const last_end = ~driver::address{0} - os::page_size();
  if (own.at > last_end || own.bytes > last_end - own.at)
    throw invalid_use("registered_host_memory", what + ", which wraps around the address space",
                      "The size has overflowed: check the product it was made from", at, error_id{209});
  // page locks apply to all devices, but one must be open
  r.open_any(streams::current_ordinal(r), registering, at);
  state_.reset(new state{own, known_runtime(r)});
  auto const pinned = r.part<streams::locked_ranges>().lock(own, at);
  base::byte_range const other = pinned.value;
  if (pinned.ok() && !other.bytes)
    return;
  state_.reset();
  if (other.bytes)
    throw invalid_use("registered_host_memory",
                      what + ", of which bytes are in the registered range " +
                          streams::range_text(reinterpret_cast<void const*>(other.at), other.bytes),
                      "Register each byte once: ranges may share a page", at, error_id{457});
  if (pinned.is.what == driver::code::invalid)
    refuse_to_lock(r, own, what, at);
  require(pinned.is, registering, what, "Raise the system's limit of locked pages (`ulimit -l`), or pin less", at);
}

registered_host_memory::~registered_host_memory() {
  if (!state_ || process_is_ending() || process_was_forked())
    return;
  // without a live runtime: the runtime's end unlocked it
  if (auto* const r = state_->of.if_alive())
    r->part<streams::locked_ranges>().unlock(state_->own);
}

}  // namespace weir
