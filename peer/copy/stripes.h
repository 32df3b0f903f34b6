// Large copies between pinned memory and one device over several links at once. One part goes direct, the
// others through memory of lent devices, which forward them.
// Threads: any. A copy owns its lanes until its stream is ordered after them, so that copies of different
// streams never wait for each other here.
//
//   up    near: slot <- host    far: device <- slot        near: lent device's stream, far: copy's
//   down  far: slot <- device   near: host <- slot
//
// Invariant: in stream order, a slot is filled only after it was emptied, and emptied only after it was
// filled.
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
  static constexpr std::size_t slots = 3;  // of a lane, largest_chunk bytes each
  static constexpr int most_copies = 4;    // concurrent striped copies of one device

  explicit stripes(runtime::impl&);
  ~stripes();  // Blocks: until all striped copies are done

  // Whether any of these devices can carry for `device`. Makes no device work.
  bool any_reaches(int device, std::span<int const> lent);
  // Whether a copy takes lanes that are made alone, or makes them, which allocates.
  enum class lanes : std::uint8_t { made, to_be_made };
  // Requires: one end is pinned, the other is on the stream's device. Both are marked for the stream afterwards.
  // Ensures: the stream is ordered after the whole copy. If a lane refuses, its part goes direct.
  // Returns: false if no lane is available: nothing was enqueued.
  // Throws: device_lost, driver_error. Afterwards only a lost device may still access the host memory.
  bool carry(clock::stream_clock& stream, endpoint const& dst, endpoint const& src, std::size_t bytes,
             std::span<int const> lent, source_location, lanes = lanes::to_be_made);
  // Makes lanes for a copy to come, if there are none. Throws: as carry, bad_alloc
  void prepare(int device, std::span<int const> lent, source_location);

 private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace weir::peer
