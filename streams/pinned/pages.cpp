// Prepares host pages for copy engines, and returns them.
// Threads: any; take_pages may start threads of its own and joins them before it returns.
#include "streams/pinned/pages.h"

#include <algorithm>
#include <vector>

#include "runtime/base/os.h"
#include "runtime/base/os_numa.h"
#include "runtime/base/sync.h"

namespace weir::streams {
namespace {

constexpr std::size_t worth_a_thread = std::size_t{32} << 20;
constexpr int most_pinning_threads = 32;  // more threads gain nothing

void touch(std::byte* from, std::byte* to, std::size_t page) {
  for (std::byte* at = from; at < to; at += page)
    *const_cast<std::byte volatile*>(at) = std::byte{0};
}

// Several threads touch the pages in order. The registration follows and faults in missing ones.
class touching {
 public:
  touching(std::byte* base, std::size_t bytes) : base_(base), bytes_(bytes) {
    int const threads = static_cast<int>(std::min<std::size_t>(
        {bytes / worth_a_thread, most_pinning_threads, static_cast<std::size_t>(os::usable_processors())}));
    try {
      while (static_cast<int>(workers_.size()) + 1 < threads)
        workers_.emplace_back([this] { run(bytes_); });
    } catch (...) {}  // fewer threads are slower
    // This thread then registers: with others at work, it touches only the first pages.
    run(workers_.empty() ? bytes_ : bytes_ / head_start);
  }
  ~touching() {
    for (auto& one : workers_)
      one.join();
  }
  touching(touching const&) = delete;
  touching& operator=(touching const&) = delete;

 private:
  void run(std::size_t until) {
    std::size_t const page = os::page_size();
    while (next_.load(base::memory_order_relaxed) < until) {
      std::size_t const from = next_.fetch_add(huge_page, base::memory_order_relaxed);
      if (from < bytes_)
        touch(base_ + from, base_ + std::min(bytes_, from + huge_page), page);
    }
  }

  static constexpr std::size_t head_start = 4;  // the registration starts after 1/4 of the pages
  std::byte* const base_;
  std::size_t const bytes_;
  base::atomic<std::size_t> next_{0};
  std::vector<base::thread> workers_;
};

}  // namespace

driver::result<host_pages> take_pages(driver::driver& machine, std::size_t bytes, int node) {
  // On an overcommitting system, touching more pages than exist would end the process.
  if (std::size_t const there_is = os::memory_of_host(); there_is && bytes > there_is)
    return {{driver::code::out_of_memory, 0}, {}};
  auto* const base = static_cast<std::byte*>(os::map_memory(bytes, huge_page));
  if (!base)
    return {driver::no_addresses, {}};
  os::advise(base, bytes, os::advice::huge_pages);
  if (node >= 0)
    os::prefer_node(base, bytes, node);
  driver::status pinned;
  {
    touching const ahead(base, bytes);
    pinned = machine.pin(base, bytes);
  }
  if (!pinned.ok()) {
    os::return_addresses(base, bytes);
    return {pinned, {}};
  }
  // Without this advice, the first write after a fork would move the page while an engine uses it.
  if (!machine.simulated() && !os::forks_copy_pinned_pages())
    os::advise(base, bytes, os::advice::not_to_children);
  return {{}, {base, bytes}};
}

driver::status return_pages(driver::driver& machine, host_pages pages) {
  auto const unpinned = machine.unpin(pages.base);
  if (unpinned.ok())
    os::return_addresses(pages.base, pages.bytes);
  return unpinned;
}

}  // namespace weir::streams
