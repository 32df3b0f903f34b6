// The table that finds a stream clock by its id.
// Threads: any. A chunk is made, and its pages are counted, under one lock.
#include "runtime/base/lasting.h"
#include "runtime/base/os.h"
#include "runtime/clock/shared_state.h"

namespace weir::clock {

namespace detail {

base::atomic<base::atomic<stream_clock*>*> directory[chunks];

namespace {
using entry = base::atomic<stream_clock*>;
base::mutex& growing() noexcept {
  static base::lasting<base::mutex> m;
  return *m;
}
std::uint16_t* entries_gone[chunks];  // by page of a mapped chunk; under growing()

std::uint64_t entries_a_page() noexcept {
  return os::page_size() / sizeof(entry);
}
// Small chunks stay. Of a larger one, pages come when they are touched, and go when no entry is left.
bool is_mapped(int chunk) noexcept {
  return first_chunk << chunk >= 4 * entries_a_page();
}

entry* make_chunk(int number) {  // Throws: bad_alloc
  std::uint64_t const n = first_chunk << number;
  if (!is_mapped(number))
    return new entry[n]{};
  std::unique_ptr<std::uint16_t[]> gone(new std::uint16_t[n / entries_a_page()]{});
  void* const got = os::map_memory(n * sizeof(entry));
  if (!got)
    throw std::bad_alloc();
  entries_gone[number] = gone.release();
  return static_cast<entry*>(got);  // zeroed: null pointers
}
}  // namespace

void enter(std::uint64_t id, stream_clock* t) {
  auto const at = place(id);
  entry* chunk = directory[at.chunk].load(base::memory_order_acquire);
  if (!chunk) {
    base::no_switch const one_step;  // a scheduled run must not depend on how many ids this process has used
    base::lock_guard const hold(growing());
    chunk = directory[at.chunk].load(base::memory_order_acquire);
    if (!chunk) {
      chunk = make_chunk(at.chunk);
      directory[at.chunk].store(chunk, base::memory_order_release);
    }
  }
  chunk[at.index].store(t, base::memory_order_release);
}

void leave(std::uint64_t id) noexcept {
  auto const at = place(id);
  entry* const chunk = directory[at.chunk].load(base::memory_order_acquire);
  chunk[at.index].store(nullptr, base::memory_order_release);
  if (!is_mapped(at.chunk))
    return;
  base::no_switch const one_step;
  base::lock_guard const hold(growing());
  std::uint64_t const page = at.index / entries_a_page();
  std::uint16_t& gone = entries_gone[at.chunk][page];
  ++gone;
  // Ids are not used twice: the page is never needed again.
  if (gone == entries_a_page())
    (void)os::advise(chunk + page * entries_a_page(), os::page_size(), os::advice::not_needed);
}

}  // namespace detail

}  // namespace weir::clock
