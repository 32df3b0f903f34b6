// Looks for memory that stays free.
// Threads: as idle_return.h.
#include "runtime/memory/device/idle_return.h"

#include <algorithm>

#include "runtime/base/process.h"
#include "runtime/memory/device/searches.h"

namespace weir::memory {

idle_return::idle_return(device_context& of, heap_table& heaps, completion_poller& completion, handle_return& back)
    : of_(of),
      heaps_(heaps),
      completion_(completion),
      return_(back),
      watch_(std::chrono::nanoseconds(of.runtime.options().device_idle).count()) {}

std::size_t idle_return::look() noexcept {
  if (!watch_.after()) [[likely]]
    return 0;
  std::int64_t const now = base::now_ns();
  if (!watch_.is_time(now) || of_.lost() || process_was_forked())
    return 0;
  bool const another_looks = looking_.exchange(true);
  if (another_looks)
    return 0;
  std::size_t bytes = 0;
  try {
    base::internal_ordering const own_affair(of_.runtime.observer());
    // The release of a segment waits for all work, which may wait for a rank of this thread.
    if (of_.space.maps() || of_.clocks.collectives_given().empty()) {
      bytes = return_.retry_refused();
      for (stream_heap* m : heaps_.all())
        bytes += look_at(*m, now);
    }
  } catch (std::bad_alloc const&) {}  // the host's memory: the next look does the rest
  looking_.store(false);
  return bytes;
}

std::size_t idle_return::look_at(stream_heap& m, std::int64_t now) {
  if (m.rules().pages_stay)
    return 0;
  (void)completion_.poll(m, asked_a_miss);
  if (m.number() >= marks_.size())
    marks_.resize(m.number() + 1);
  auto& marks = marks_[m.number()];
  set_mark(m, marks);
  auto const young =
      std::find_if(marks.begin(), marks.end(), [&](mark const& k) { return now - k.since < watch_.after(); });
  if (young == marks.begin())
    return 0;
  // The newest of the old ones counts.
  marks.erase(marks.begin(), young - 1);
  return return_.of(m, ~std::size_t{0}, &marks.front().upto);
}

// Blocks that are freed from here on have a later stamp than the mark.
void idle_return::set_mark(stream_heap& m, std::vector<mark>& marks) {
  clock::stream_clock* home = nullptr;
  clock::stamp newest;
  {
    session const in(m);
    home = &m.home();
    newest = in.newest_freed();
  }
  // Another home has the heap by now.
  if (!marks.empty() && marks.back().upto.stream != newest.stream)
    marks.clear();
  // Nothing came free since the last mark.
  if (!newest.n || (!marks.empty() && marks.back().upto.n >= newest.n))
    return;
  // The question may record the fence that separates the mark from later frees. Else it is recorded now.
  (void)of_.is_complete(newest);
  if (home->now().n <= newest.n) {
    if (home->has_no_stream())
      of_.clocks.pass(*home);
    else
      (void)home->fence();
  }
  // If the fence was refused, what was freed since the last one waits for the next look.
  newest.n = std::min(newest.n, home->now().n - 1);
  if (newest.n && (marks.empty() || marks.back().upto.n < newest.n))
    marks.push_back({newest, base::now_ns()});
}

}  // namespace weir::memory
