// Memory of the program's own, page-locked where it lies.
// Threads: any; one object is made and destroyed by one thread.
#include "runtime/base/os.h"
#include "runtime/base/process.h"
#include "runtime/base/round_up.h"
#include "runtime/driver/witness.h"
#include "runtime/observe/memory_beside.h"
#include "streams/context.h"
#include "streams/engine.h"
#include "weir/memory.h"

namespace weir {

pinned_range::pinned_range(std::span<std::byte> memory, here at) : first_(nullptr), of_(nullptr) {
  auto& r = streams::current_runtime();
  std::string const what = streams::range_text(memory.data(), memory.size());
  if (!memory.data()) throw invalid_use("pinned_range", what, "Pass memory of the host", at);
  if (memory.empty()) return;
  if (memory.size() > ~std::size_t{0} - reinterpret_cast<driver::address>(memory.data()) - os::page_size()) {
    throw invalid_use("pinned_range", what + ", which ends beyond all addresses", "The size has overflowed: check the product it was made from", at);
  }
  auto const page = static_cast<driver::address>(os::page_size());
  auto const begin = reinterpret_cast<driver::address>(memory.data()) / page * page;
  auto const end = base::round_up(reinterpret_cast<driver::address>(memory.data()) + memory.size(), page);
  r.open_any(streams::current_ordinal(r), "pinned_range", at);  // a driver locks pages for every device, once one is open
  void* const first = memory.data() - (reinterpret_cast<driver::address>(memory.data()) - begin);
  auto& books = r.part<observe::memory_beside>();
  auto const pinned = r.machine().pin(first, end - begin);
  if (pinned.what == driver::code::invalid) throw invalid_use("pinned_range", what, "Some of its pages are page-locked already, or are no memory of the host", at);
  require(pinned, "pinned_range", what, "The system locks no more pages: `ulimit -l`, or pin less", at);
  auto const own = reinterpret_cast<driver::address>(memory.data());
  bool const booked = books.pinned(own, memory.size(), at);
  try {
    if (r.witness() && booked) [[unlikely]] r.witness()->allocated({}, own, memory.size(), at);
  } catch (...) {
    static_cast<void>(books.unpinned(begin, page));
    static_cast<void>(r.machine().unpin(first));
    throw;
  }
  first_ = first;
  of_ = &r.facade();
}

pinned_range::~pinned_range() {
  if (!first_ || process_is_ending() || process_was_forked()) return;
  auto& r = of_->get();
  static_cast<void>(r.has_come_to_rest());  // no engine reads or writes it any more
  auto const was = r.part<observe::memory_beside>().unpinned(reinterpret_cast<driver::address>(first_), os::page_size());
  constexpr here its_end{"the end of its pinned_range", "", 0};  // nobody's line
  try {
    if (r.witness() && was) [[unlikely]] r.witness()->freed(was->at, was->requested, {}, its_end);
  } catch (...) {}  // it is not heard of
  static_cast<void>(r.machine().unpin(first_));
}

}  // namespace weir
