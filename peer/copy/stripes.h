// Large copies between pinned memory and one device over several links at once: a part of the bytes goes
// straight, the others through memory of lent devices, which pass them on from device to device.
// Threads: any. What a copy needs of a lent device it has for itself until its stream is ordered after it:
// copies of different streams never wait for each other here.
//
//   up    near: slot <- host    far: device <- slot        near is a stream of the lent device, far one of
//                                                          the copy's device
//   down  far: slot <- device   near: host <- slot
//
// Invariant: a slot is filled when what emptied it is ordered before, and emptied when what filled it is.
#pragma once
#include <memory>
#include <span>

#include "peer/copy/endpoint.h"

namespace weir::peer {

class stripes {  // a part of the runtime
 public:
  static constexpr std::size_t worth = std::size_t{16} << 20;  // bytes: smaller copies are not faster
  static constexpr std::size_t largest_chunk = std::size_t{8} << 20;
  static constexpr std::size_t smallest_chunk = std::size_t{1} << 20;
  static constexpr std::size_t slots = 3;                      // of a lane, of largest_chunk each
  static constexpr int most_copies = 4;                        // of one device, that may be under way over lent links

  explicit stripes(runtime::impl&);
  ~stripes();  // Blocks: until what was carried is done

  // Could any of these carry for that device? No device work
  bool any_reaches(int device, std::span<int const> lent);
  // Requires: one end is pinned, the other lies on the line's device;
  // both are marked for the line afterwards.
  // Ensures: the line is ordered after all of it. A lane that refuses is left out, its part goes straight.
  // Returns: false when no lane can be had now: nothing was enqueued.
  // Throws: device_lost, driver_error: nothing touches the host's memory any more but what a lost device
  // still may
  bool carry(clock::timeline& line, end const& dst, end const& src, std::size_t bytes, std::span<int const> lent,
             source_location);

 private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace weir::peer
