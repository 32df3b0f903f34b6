// Gives handles back to the driver that have been free for options::device_idle.
// Threads: any; one looks at a time, and others pass by. Holds a heap's lock to look and to choose, never
// over a driver call. A look makes an event query or record for a heap at most, and the calls that give
// handles back.
//
// Invariant: a handle goes only if all of its block was freed before a mark of that age. A fence separates
// the frees before a mark from those after it. A merged free block is as young as its youngest part. Where a
// block comes free that has no stamp of the home, because another stream had borrowed it, no handle of the
// heap goes by an older mark.
#pragma once
#include <vector>

#include "runtime/base/idle_watch.h"
#include "runtime/memory/device/completion_poller.h"
#include "runtime/memory/supply/handle_return.h"

namespace weir::memory {

class idle_return {
 public:
  idle_return(device_context& of, heap_table& heaps, completion_poller& completion, handle_return& back);

  // Does something four times in that time, at most. Returns: bytes that the driver has back
  std::size_t look() noexcept;
  void set_after(std::int64_t ns) noexcept { watch_.set_after(ns, 0); }  // 0: never

 private:
  struct mark {
    clock::stamp upto;   // of the home
    std::int64_t since;  // ns: frees up to there are older
  };
  std::size_t look_at(stream_heap&, std::int64_t now);
  void set_mark(stream_heap&, std::vector<mark>&);

  device_context& of_;
  heap_table& heaps_;
  completion_poller& completion_;
  handle_return& return_;
  base::idle_watch watch_;
  base::atomic<bool> looking_{false};
  std::vector<std::vector<mark>> marks_;  // by number of the heap, oldest first; of the thread that looks
};

}  // namespace weir::memory
