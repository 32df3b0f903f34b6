// Staged copies: memory that copy engines cannot reach goes through slots of pinned memory, in stream order.
// Threads: any. Slots are blocks of the pinned pool: the streams' stamps tell when one can be reused.
//
// Invariant: one staging thread uses at most `budget` bytes of slots per device; several may exceed it.
#pragma once
#include <memory>
#include <optional>

#include "runtime/clock/stream_clock.h"
#include "streams/copy/copy_workers.h"

namespace weir::streams {

class staging {  // a part of the runtime
 public:
  // slots shrink to this if pinned memory is short
  static constexpr std::size_t smallest_chunk = std::size_t{64} << 10;
  static constexpr std::size_t budget = std::size_t{64} << 20;  // bytes per device

  explicit staging(runtime::impl&);
  ~staging();

  // Host memory to the stream's device. Ensures: the source has been read.
  // Blocks: while earlier staged copies to this device use all of `budget`.
  void to_device(clock::stream_clock&, void* dst, void const* src, std::size_t bytes, bool is_pageable,
                 source_location);
  // A copy from a device to pageable memory, perhaps still in progress.
  class download {
   public:
    // Ensures: the memory is no longer accessed. Blocks: briefly, if bytes are being copied
    void cancel() const noexcept;
    // The copy's stamp, if the call waited: it is known to be complete.
    std::optional<clock::stamp> arrived() const noexcept { return arrived_; }

   private:
    friend class staging;
    std::shared_ptr<void> job_;
    std::optional<clock::stamp> arrived_;
  };
  // The stream's device to host memory. The bytes arrive in stream order; later stamps cover them.
  // Blocks: as to_device; not for this copy, or for a small one of an idle stream, 64 polls at most.
  download to_host(clock::stream_clock&, void* dst, void const* src, std::size_t bytes, bool is_pageable,
                   source_location);
  // The same for a caller that waits: no host function delays the stream. Ensures: the bytes have arrived.
  download to_waiting_host(clock::stream_clock&, void* dst, void const* src, std::size_t bytes, source_location);
  // From the device of `from` to that of `to`. Ensures: `to` is ordered after the copy.
  // Requires: both streams are ordered after earlier work on src and dst.
  void between(clock::stream_clock& from, clock::stream_clock& to, void* dst, void const* src, std::size_t bytes,
               source_location);
  // All throw: out_of_memory (not even a smallest slot), device_lost, driver_error, invalid_use (a captured
  // stream). Then no host thread accesses src or dst, slots are returned, and bytes of dst are unspecified.

  // How bytes pass through slots. docs/reference/copies.md explains the defaults.
  struct tuning {
    std::size_t chunk = std::size_t{4} << 20;  // bytes per slot, at most largest_slot
    // bytes of the first slot to a device; slots double up to chunk, and the last ones shrink again
    std::size_t first = std::size_t{512} << 10;
    std::size_t grain = std::size_t{256} << 10;  // bytes of a slot that one thread takes at a time
    stores by = stores::plain;                   // for slots of at least 1 MiB
    // bytes of slots per copy. To a device: without those that the engine reads
    std::size_t budget = std::size_t{48} << 20;
  };
  static constexpr std::size_t largest_slot = std::size_t{8} << 20;
  void fill_by(tuning) noexcept;                // copies to a device, from now on
  void fetch_by(tuning) noexcept;               // copies to a waiting caller; only `budget` also for others
  void work_by(copy_workers::tuning) noexcept;  // threads 0: the default

  int threads() const noexcept;          // copy workers; 0: the calling thread copies
  std::size_t in_use(int device) const;  // bytes of slots not known to be free

 private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace weir::streams
