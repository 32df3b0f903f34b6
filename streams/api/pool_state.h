// What a pool of the program is, and how it falls asleep and wakes.
// Threads: any.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "runtime/core/parts.h"
#include "runtime/memory/device/device_memory.h"
#include "runtime/memory/space/memory_pool.h"
#include "streams/api/host_store.h"
#include "weir/pool.h"

namespace weir::streams {

struct pool_state {
  std::string name;
  weir::device on;
  known_runtime of;
  memory::allocator* memory;
  memory::memory_pool* here;
  bool usable() const noexcept { return !process_was_forked() && of.if_alive(); }
  // As pool::sleep; null: drops its bytes. None: the store has no room, which short_of explains
  std::optional<std::size_t> sleep(std::unique_ptr<copied_store>, memory_report& short_of, source_location);
  void wake(source_location);
};

}  // namespace weir::streams

struct WEIR_LOCAL weir::pool::state : streams::pool_state {};
