// The end of one device's memory: allocated blocks keep their pages, the rest goes back to the driver.
// Threads: no other thread uses the allocator. Blocks: until the device is idle.
#include <bit>
#include <cstdio>

#include "runtime/memory/device/device_allocator.h"
#include "runtime/memory/space/mapped_spaces.h"
#include "runtime/options/options.h"

namespace weir::memory {
// No host memory may be left for what follows: it allocates none.
namespace {

// Other devices whose work may use pending blocks, a bit each
std::uint64_t devices_that_use(stream_heap& m, int own, clock::clocks const& clocks) {
  std::uint64_t all = 0;
  quiet_session(m).each_pending([&](pending_block const& b) {
    for (clock::stamp const s : b.stamps) {
      clock::stream_clock const* const by = clock::find(s.stream);
      if (by && by->device() != own && !clocks.complete(s))
        all |= std::uint64_t{1} << by->device();
    }
  });
  return all;
}

// Blocks in use keep their pages: `kept` says so. pending: such blocks are in use, too
void mark_what_is_in_use(stream_heap& m, bool pending) {
  session in(m);
  in.return_empty_runs();
  in.each_block([&](heap_block const& p) {
    bool const held = p.is == state::live || (p.is == state::slab && p.in_slab->held());
    bool const used = pending && (p.is == state::pending || (p.is == state::slab && p.in_slab->pending));
    if (!held && !used)
      return;
    for (address a = p.at; a < p.end();) {
      handle* const h = p.in->page(a);
      a = h->at + h->bytes;
      h->kept = true;
    }
  });
}

}  // namespace

// Of that heap, from the lowest address up.
void device_allocator::return_at_the_end(stream_heap& m) {
  bool still_used = false;
  for (std::uint64_t left = devices_that_use(m, of_.device, of_.clocks); left; left &= left - 1) {
    driver::status const done = of_.clocks.synchronize_device(std::countr_zero(left));
    still_used |= !done.ok() && done.what != driver::code::lost;
  }
  mark_what_is_in_use(m, still_used);
  while (auto const h = session(m).take_any_handle()) {
    if (h->asleep)
      continue;
    if (h->kept)
      of_.space.abandon();
    else if (h->physical == driver::memory_handle::none)
      (void)of_.machine.release_segment(of_.device, h->at);
    else if (of_.machine.unmap(h->at, h->bytes).ok())
      (void)of_.machine.release(h->physical);
  }
}

device_allocator::~device_allocator() {
  if (of_.space.maps())
    mapped_spaces::leave(of_.space.base());
  if (!process_was_forked()) {
    for (auto const& m : heaps_.at_the_end())
      thread_caches::close(*m);
  }
  bool const reachable = !of_.lost() && !process_is_ending() && !process_was_forked();
  try {
    memory_statistics const n = audit_.counted();
    if (n.allocation.all.current) {
      std::fprintf(stderr,
                   "weir-104: gpu:%d: %lld block%s (%s) not freed before the runtime ended; the memory stays "
                   "mapped\n",
                   of_.device, static_cast<long long>(n.allocation.all.current),
                   n.allocation.all.current == 1 ? "" : "s",
                   bytes_text(static_cast<std::size_t>(n.allocated_bytes.all.current)).c_str());
    }
  } catch (...) {}  // no host memory to count with
  if (!reachable) {
    of_.space.abandon();
    return;
  }
  try {
    if (auto const idle = of_.machine.synchronize_device(of_.device); !idle.ok() && idle.what != driver::code::lost) {
      of_.space.abandon();  // work may still run: its pages must stay mapped
      return;
    }
    for (auto const aliases = mover_.take_all(); auto const& [at, g] : aliases)
      (void)of_.machine.unmap(at, g.bytes);
    for (auto const& m : heaps_.at_the_end())
      return_at_the_end(*m);
    memory_.return_orphans();
  } catch (...) {  // out of host memory: what is left goes with the process
    of_.space.abandon();
  }
}

}  // namespace weir::memory
