// How pages of the host are made ready for copy engines, and given back.
// Threads: any; take_pages may start threads of its own and joins them before it returns.
#include "streams/pinned_pages.h"

#include <algorithm>
#include <vector>

#include "runtime/base/os.h"
#include "runtime/base/sync.h"

namespace weir::streams {
namespace {

constexpr std::size_t worth_a_thread = std::size_t{32} << 20;
constexpr int most_threads = 16;

std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

void touch(std::byte* from, std::byte* to, std::size_t page) {
  for (std::byte* at = from; at < to; at += page) *const_cast<std::byte volatile*>(at) = std::byte{0};
}

void touch_by_many(std::byte* base, std::size_t bytes) {
  std::size_t const page = os::page_size();
  int const threads = static_cast<int>(std::min<std::size_t>({bytes / worth_a_thread, most_threads, static_cast<std::size_t>(os::usable_processors())}));
  if (threads < 2) return touch(base, base + bytes, page);
  std::size_t const share = round_up(bytes / static_cast<std::size_t>(threads) + 1, huge_page);
  std::vector<base::thread> crew;
  std::size_t from = share;
  try {
    for (; from < bytes; from += share) {
      std::byte* const first = base + from;
      std::byte* const last = base + std::min(bytes, from + share);
      crew.emplace_back([=] { touch(first, last, page); });
    }
  } catch (...) {  // no more threads to be had: the rest is touched here
    touch(base + from, base + bytes, page);
  }
  touch(base, base + share, page);
  for (auto& one : crew) one.join();
}

}  // namespace

driver::result<host_pages> take_pages(driver::driver& machine, std::size_t bytes) {
  bytes = round_up(bytes, os::page_size());
  // A system that promises more than it has would end the process when the pages are touched.
  if (std::size_t const there_is = os::memory_of_host(); there_is && bytes > there_is) return {{driver::code::out_of_memory, 0}, {}};
  std::size_t const mapped = bytes + huge_page;  // the surplus lets the base lie on a huge page, and goes back at once
  auto* const first = static_cast<std::byte*>(os::map_memory(mapped));
  if (!first) return {{driver::code::out_of_memory, 0}, {}};
  auto* const base = first + (huge_page - reinterpret_cast<driver::address>(first) % huge_page) % huge_page;
  if (base != first) os::return_addresses(first, static_cast<std::size_t>(base - first));
  std::byte* const end = base + bytes;
  if (end != first + mapped) os::return_addresses(end, static_cast<std::size_t>(first + mapped - end));
  os::advise(base, bytes, os::advice::huge_pages);
  touch_by_many(base, bytes);
  if (auto const pinned = machine.pin(base, bytes); !pinned.ok()) {
    os::return_addresses(base, bytes);
    return {pinned, {}};
  }
  os::advise(base, bytes, os::advice::not_to_children);  // a copy on write after fork would move the page away from under the engine
  return {{}, {base, bytes}};
}

driver::status return_pages(driver::driver& machine, host_pages pages) {
  auto const unpinned = machine.unpin(pages.base);
  if (unpinned.ok()) os::return_addresses(pages.base, pages.bytes);
  return unpinned;
}

}  // namespace weir::streams
