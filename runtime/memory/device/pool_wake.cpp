// A pool of one device sleeps and wakes: what frees memory when waking finds none.
// Threads: any.
#include "runtime/memory/device/device_allocator.h"
#include "runtime/memory/device/shortage.h"

namespace weir::memory {

// The program relies on these waits of the host, so that they are no internal ordering.
driver::status device_allocator::sleep(memory_pool& pool, std::unique_ptr<page_store>&& store, std::size_t& given) {
  graphs_.end_those_over();  // they hold blocks that were freed in a capture
  driver::status const s = sleep_.sleep(pool, std::move(store), given);
  // A stream is captured, or a graph holds a block. A graph that the program has let go is waited for.
  if (s.what == driver::code::not_permitted && graphs_.await_those_ending())
    return sleep_.sleep(pool, std::move(store), given);
  return s;
}

memory_report device_allocator::why_no_wake(memory_pool const& pool) const {
  memory_report out = audit_.report();
  out.requested = pool.now().asleep;
  out.rounded = sleep_.bytes_to_map(pool);
  audit_.add_pool(out, pool);
  audit_.explain(out, nullptr, pool);
  return out;
}

// In all heaps, of what thread caches hold, too. Waits for nothing.
void device_allocator::free_what_is_complete() {
  for (stream_heap* const m : heaps_.all()) {
    if (m->rules().pages_stay)
      continue;
    (void)m->empty_caches();
    (void)completion_.poll(*m);
  }
}

driver::status device_allocator::wake(memory_pool& pool, source_location at) {
  driver::status s = sleep_.wake(pool);
  auto const short_of_memory = [&] { return s.what == driver::code::out_of_memory; };
  if (short_of_memory()) {
    free_what_is_complete();
    s = sleep_.wake(pool);
  }
  if (short_of_memory() && callbacks_.call(why_no_wake(pool)))
    s = sleep_.wake(pool);
  constexpr int most_rounds = 64;  // other threads may take the room first
  for (int round = 0; round < most_rounds && short_of_memory(); ++round) {
    while (short_of_memory()) {
      bool const came_free =
          completion_.wait_for_oldest({}) || graphs_.await_those_ending() || callbacks_.wait(why_no_wake(pool));
      if (!came_free)
        break;
      s = sleep_.wake(pool);
    }
    // Before other pools are spilled, all that is free goes. empty_cache() waits for work, which it may not
    // while ranks may wait for this thread.
    if (short_of_memory() && callbacks_.spills() && of_.clocks.collectives_given().empty()) {
      if (empty_cache() > 0)
        s = sleep_.wake(pool);
    }
    if (!short_of_memory())
      break;
    if (!callbacks_.spill(why_no_wake(pool)))
      break;
    s = sleep_.wake(pool);
  }
  if (!short_of_memory())
    return s;
  of_.counts.ran_out();
  run_out({&of_.runtime, "allocate", at}, why_no_wake(pool));
}

}  // namespace weir::memory
