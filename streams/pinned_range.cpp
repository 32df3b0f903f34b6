// Memory of the program's own, page-locked where it lies.
// Threads: any; one object is made and destroyed by one thread.
#include "runtime/base/os.h"
#include "runtime/base/process.h"
#include "runtime/base/round_up.h"
#include "streams/context.h"
#include "streams/engine.h"
#include "weir/memory.h"

namespace weir {

pinned_range::pinned_range(std::span<std::byte> memory, here at) : first_(nullptr), of_(nullptr) {
  auto& r = streams::current_runtime();
  std::string const what = streams::range_text(memory.data(), memory.size());
  if (!memory.data()) throw invalid_use("pinned_range", what, "Pass memory of the host", at);
  if (memory.empty()) return;
  auto const page = static_cast<driver::address>(os::page_size());
  auto const begin = reinterpret_cast<driver::address>(memory.data()) / page * page;
  auto const end = base::round_up(reinterpret_cast<driver::address>(memory.data()) + memory.size(), page);
  r.open_any(streams::current_ordinal(r), "pinned_range", at);  // a driver locks pages for every device, once one is open
  void* const first = memory.data() - (reinterpret_cast<driver::address>(memory.data()) - begin);
  auto const pinned = r.machine().pin(first, end - begin);
  if (pinned.what == driver::code::invalid) throw invalid_use("pinned_range", what, "Some of its pages are page-locked already, or are no memory of the host", at);
  require(pinned, "pinned_range", what, "The system locks no more pages: `ulimit -l`, or pin less", at);
  first_ = first;
  of_ = &r.facade();
}

pinned_range::~pinned_range() {
  if (!first_ || process_is_ending() || process_was_forked()) return;
  static_cast<void>(of_->get().has_come_to_rest());  // no engine reads or writes it any more
  static_cast<void>(of_->get().machine().unpin(first_));
}

}  // namespace weir
