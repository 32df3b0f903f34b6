// Copies of memory that copy engines cannot reach, through slots of pinned memory,
// in stream order and with bounded memory.
// Threads: any. Slots are blocks of the pinned pool: the streams' stamps say when one may be filled again.
//
// Invariant: a device's slots hold at most `room` bytes when one thread stages;
// what several fill at once comes on top.
#pragma once
#include <memory>

#include "runtime/clock/stream_clock.h"
#include "streams/copy/copy_workers.h"

namespace weir::streams {

class staging {  // a part of the runtime
 public:
  // when pinned memory is short, slots shrink to this
  static constexpr std::size_t smallest_chunk = std::size_t{64} << 10;
  static constexpr std::size_t room = std::size_t{64} << 20;          // bytes a device

  explicit staging(runtime::impl&);
  ~staging();

  // Pageable to the stream's device. Ensures: the source has been read when this returns.
  // Blocks: while `room` bytes of earlier staged copies to this device are not done.
  void to_device(clock::timeline&, void* dst, void const* src, std::size_t bytes, source_location);
  // What is still to come from a device to pageable memory.
  class coming {
   public:
    // Ensures: nothing touches that memory any more. Blocks: a moment, for bytes that come just now
    void cancel() const noexcept;
   private:
    friend class staging;
    std::shared_ptr<void> job_;
  };
  // The stream's device to pageable: the bytes arrive in stream order;
  // what is stamped after this covers them.
  // Blocks: as to_device; not for this copy itself.
  coming to_host(clock::timeline&, void* dst, void const* src, std::size_t bytes, source_location);
  // The same for a caller who waits anyway:
  // no function of the host holds the stream, which fills slots while others are emptied.
  // Ensures: the bytes are there. Blocks: until they are.
  void to_waiting_host(clock::timeline&, void* dst, void const* src, std::size_t bytes, source_location);
  // From the device of `from` to that of `to`, which may not reach each other. Ensures:
  // `to` is ordered after the copy.
  // Requires: both ordered after whatever made src and used dst.
  void between(clock::timeline& from, clock::timeline& to, void* dst, void const* src, std::size_t bytes,
               source_location);
  // All throw: out_of_memory (no room for even the smallest slot), device_lost, driver_error, invalid_use (a
  // captured stream). After a throw nothing reads src or writes dst on the host any more, and slots come
  // back; bytes of dst are unspecified.

  // How bytes go through slots. The defaults are the fastest of what `weir bench copy 'stage_*'` compares on
  // machines of H200s: docs/copies.md says what bounds them.
  struct manner {
    std::size_t chunk = std::size_t{4} << 20;    // bytes of a slot, up to largest_slot
    // bytes of the first slots to a device, each twice the one before; the last are smaller again
    std::size_t first = std::size_t{512} << 10;
    std::size_t piece = std::size_t{256} << 10;  // of a slot, that a thread takes at a time: several share it
    stores by = stores::plain;                   // of slots of 1 MiB and more
    // bytes of slots that one copy has in hand. To a device: not with the engine yet
    std::size_t room = std::size_t{48} << 20;
  };
  static constexpr std::size_t largest_slot = std::size_t{8} << 20;
  void fill_by(manner) noexcept;   // copies to a device, from now on
  void fetch_by(manner) noexcept;  // copies to a caller who waits; of others the room alone
  void work_by(copy_crew::manner) noexcept;  // threads: 0 as usual

  int threads() const noexcept;            // of the crew; 0: staged by the calling thread
  std::size_t in_use(int device) const;    // bytes of slots not known to be free

 private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace weir::streams
