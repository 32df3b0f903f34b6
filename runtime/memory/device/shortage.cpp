// Asks the program for memory, and tells it that there is none.
// Threads: as shortage.h.
#include "runtime/memory/device/shortage.h"

#include "runtime/core/log.h"
#include "runtime/memory/device/device_memory.h"
#include "runtime/observe/history.h"

namespace weir::memory {

bool ask_program(shortage const& s, memory_report const& why) {
  auto* const memory = s.of ? s.of->part_if_made<device_memory>() : nullptr;
  return memory && memory->call_back(why);
}

void run_out(shortage const& s, memory_report why) {
  int const place = why.on.is_cpu() ? observe::pinned_memory_place : why.on.index();
  if (s.of) {
    if (logs(*s.of, log_level::error))
      log(log_level::error, log_about{place, s.stream, why.requested}, "out of memory: " + why.text());
    observe::note(observe::action::out_of_memory, nullptr, why.requested, s.stream, s.of->id(), place, s.at);
  }
  throw out_of_memory(std::string(s.operation), std::move(why), s.at);
}

}  // namespace weir::memory
