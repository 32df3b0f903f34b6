// The fast path of a copy between a device and weir's pinned memory, or within a device, without a
// route_guard. Builds no string, allocates nothing once the blocks are known, and takes at most the lock of
// the device's memory. Every other case, wrong arguments included, is left to copy.cpp.
// Threads: any; `copy_settings` belong to one thread.
#pragma once
#include <boost/container/small_vector.hpp>
#include <span>
#include <vector>

#include "runtime/base/byte_range.h"
#include "runtime/memory/device/device_memory.h"
#include "streams/copy/copy_engine.h"
#include "streams/pinned/pinned_memory.h"
#include "streams/stream/context.h"
#include "weir/copy.h"

namespace weir::peer {

struct copy_settings {  // a thread's route settings, and a memo of its last copy
  copy_route by = copy_route::automatic;
  bool down = false;           // its last fast copy left the device
  std::vector<int> helpers{};  // ordinals
  streams::pinned_uses known{};

  using own =
      base::thread_pointer<copy_settings, static_cast<copy_settings*>(nullptr)>;  // null: none yet, or the thread ends
  ~copy_settings() { own::value = nullptr; }
};
copy_settings& make_copy_settings();
inline copy_settings& settings() {
  if (copy_settings* const mine = copy_settings::own::value) [[likely]]
    return *mine;
  return make_copy_settings();
}

struct asked {
  void* dst;
  void const* src;
  std::size_t bytes;
};

class fast_copy {
 public:
  // Whether the copy takes the fast path. If so, its blocks are found, and device blocks are marked for the
  // stream. If not, the only side effect is a possible mark.
  // given: null: the current stream of the copy's device. Requires: bytes > 0. Throws: as current_clock
  bool find(runtime::impl&, clock::stream_clock* given, asked const&, source_location const&);
  // Whether both ranges lie in the blocks of the last find().
  bool holds(asked const& a) const noexcept {
    if (!pinned.last)
      return false;  // within the device: only one of the two blocks is kept
    return up ? in_device(a.dst, a.bytes) && pinned.holds(number(a.src), a.bytes)
              : in_device(a.src, a.bytes) && pinned.holds(number(a.dst), a.bytes);
  }

  // Ensures: the use of pinned memory is noted, also on a refusal: the engine may have begun.
  driver::status enqueue(asked const& a, source_location const& at) const {
    notes_use const at_the_end{*this};
    return streams::try_copy(*stream, a.dst, a.src, a.bytes, at);
  }
  void note_use() const noexcept {
    if (pinned.last)
      streams::pinned_memory::record_use(pinned, stream->now());
  }

  clock::stream_clock* stream = nullptr;
  streams::pinned_spot pinned{};  // last null: both ends are on the device
  bool up = false;                // from host to device

 private:
  struct notes_use {
    fast_copy const& of;
    ~notes_use() { of.note_use(); }
  };
  static driver::address number(void const* p) noexcept { return reinterpret_cast<driver::address>(p); }
  static bool within(memory::allocator::range const& block, void const* at, std::size_t n) noexcept {
    return base::byte_range{number(block.base), block.bytes}.holds(number(at), n);
  }
  bool in_device(void const* at, std::size_t n) const noexcept { return within(device_, at, n); }
  // Sets `up`, and marks the block of dst or src. Returns: false if no block of the device holds either
  bool find_device_end(memory::allocator& on, asked const&, bool up_first);

  memory::allocator::range device_{};
};

// The same for a fill. Returns: the given or current stream, for which the device block that holds the range
// is marked; null: not a fast case.
clock::stream_clock* find_to_fill(runtime::impl&, clock::stream_clock* given, void* dst, std::size_t bytes,
                                  source_location const&);

// Several copies on one stream: all are found before the first is enqueued.
class fast_copies {
 public:
  // Whether all take the fast path. Zero-byte items do, if another item does.
  bool find(runtime::impl&, clock::stream_clock& stream, std::span<copy_item const>, source_location const&);
  // Enqueues in order. Returns: the refusal of the item after the first `done`
  driver::status enqueue(std::span<copy_item const>, std::size_t& done, source_location const&);
  bool of_host() const noexcept { return of_host_; }
  fast_copy const& last() const noexcept { return all_.back(); }

 private:
  boost::container::small_vector<fast_copy, 4> all_;  // one for each run of items in the same blocks
  bool of_host_ = false;
};

}  // namespace weir::peer
