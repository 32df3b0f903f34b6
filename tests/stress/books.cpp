// Leftovers after a program of real threads.
// Threads: one.
#include "runtime/core/parts.h"
#include "runtime/memory/device/device_memory.h"
#include "tests/stress/programs.h"
#include "weir/device.h"

namespace weir::tests {

std::string books_after(runtime& r, int device) {
  auto& all = r.get().part<memory::device_memory>().on(device);
  for (auto const& what : all.validate())
    return what;
  all.empty_cache();
  auto const n = all.statistics();
  if (n.allocation.all.current || n.requested_bytes.all.current)
    return "blocks are counted that all were given back";
  if (n.reserved_bytes.all.current)
    return std::to_string(n.reserved_bytes.all.current) + " B stay reserved although all was given back";
  return {};
}

std::string wrong_in(crowd& all, runtime& own) {
  if (std::string wrong = all.run(); !wrong.empty())
    return wrong;
  runtime_guard const in(own);
  synchronize(0);
  return books_after(own);
}

}  // namespace weir::tests
