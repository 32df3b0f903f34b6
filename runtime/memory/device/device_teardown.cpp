// The end of one device's memory: allocated blocks keep their pages, the rest goes back to the driver.
// Threads: no other thread uses the allocator. Blocks: until the device is idle.
#include <cstdio>

#include "runtime/memory/device/device_allocator.h"
#include "runtime/memory/space/mapped_spaces.h"
#include "runtime/options/options.h"

namespace weir::memory {

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
    for (auto const& m : heaps_.at_the_end()) {
      bool still_used = false;  // by streams of other devices, which are not idle yet
      m->pending.each([&](pending_block const& b) {
        for (clock::stamp const s : b.stamps) {
          clock::stream_clock const* const by = clock::find(s.stream);
          if (!by || by->device() == of_.device || of_.clocks.complete(s))
            continue;
          driver::status const done = of_.clocks.synchronize_device(by->device());
          still_used |= !done.ok() && done.what != driver::code::lost;
        }
      });
      while (slab* const s = m->slots.any_empty())
        m->return_run(*s);
      m->blocks.each_block([&](heap_block const& p) {  // blocks in use keep their pages
        bool const held = p.is == state::live || (p.is == state::slab && p.in_slab->held());
        bool const used = still_used && (p.is == state::pending || (p.is == state::slab && p.in_slab->pending));
        if (!held && !used)
          return;
        for (address a = p.at; a < p.end();) {
          handle* const h = p.in->page(a);
          a = h->at + h->bytes;
          h->kept = true;
        }
      });
      for (auto const& [at, h] : m->handles) {
        if (h.asleep)
          continue;
        if (h.kept) {
          of_.space.abandon();
        } else if (h.physical == driver::memory_handle::none) {
          (void)of_.machine.release_segment(of_.device, at);
        } else if (of_.machine.unmap(at, h.bytes).ok()) {
          (void)of_.machine.release(h.physical);
        }
      }
    }
    memory_.return_orphans();
  } catch (...) {  // out of host memory: what is left goes with the process
    of_.space.abandon();
  }
}

}  // namespace weir::memory
