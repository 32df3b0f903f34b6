// The host part of a staged copy to pageable memory. Host functions run it, perhaps after the call.
// Threads: those of host functions; cancel() by any.
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "streams/copy/copy_workers.h"

namespace weir::streams {

struct fetch {
  fetch(std::shared_ptr<copy_workers> c, std::size_t chunks) : workers(std::move(c)), chunk(chunks) {}
  // Bytes of a copy of one slot that workers share with its caller or host function. They wake while one thread copies
  // half a MiB.
  static constexpr std::size_t least_shared = std::size_t{768} << 10;

  std::shared_ptr<copy_workers> workers;
  std::vector<copy_workers::task> chunk;  // ranges are set before their host function is enqueued
  std::size_t slots = 0;

  // A lost stream drops its host functions. No chunk has arrived then, and none may be touched.
  ~fetch() { cancel(); }
  void cancel() noexcept {
    for (auto& one : chunk)
      workers->cancel(one);
  }

  // Chunk i is in its slot. Copy workers bring it to the host while the engine fills the next slots. Before the stream
  // continues, the engine's next slot must be empty; after the last chunk, all slots.
  void arrived(std::size_t i) {
    bool const is_last = i + 1 == chunk.size();
    if (!is_last || chunk[i].bytes >= least_shared)
      workers->submit(chunk[i]);  // finish() below copies the last, too
    if (i + 1 < slots)
      return;  // the next slot is unused. The last chunk comes later: slots never exceed chunks
    std::size_t const in_next_slot = i + 1 - slots;
    workers->finish(chunk[in_next_slot]);
    if (!is_last)
      return;
    for (std::size_t k = in_next_slot + 1; k <= i; ++k)
      workers->finish(chunk[k]);
  }
};

struct arrival {
  std::shared_ptr<fetch> of;
  std::size_t i;
  static void run(void* self) {
    auto* const me = static_cast<arrival*>(self);
    me->of->arrived(me->i);
  }
  static void drop(void* self) { delete static_cast<arrival*>(self); }
};

}  // namespace weir::streams
