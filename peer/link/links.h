// What is known of the links between devices: claimed, proven by writing and reading back, or found wrong;
// and which memory is worth opening to a peer.
// Threads: any. A pair is proven once; a second thread that asks meanwhile waits.
#pragma once
#include <memory>
#include <span>
#include <string_view>

#include "runtime/memory/device/device_memory.h"

namespace weir::peer {

class links {  // a part of the runtime
 public:
  enum class trust : std::uint8_t {
    refused,  // the driver does not let `from` reach memory of `to`
    claimed,  // the driver says it does
    proven,   // and bytes arrived
    wrong,    // and bytes arrived changed
  };
  // A block is opened to a peer that has copied this many times its size:
  // a grant costs about 0.2 ms a handle.
  static constexpr std::size_t worth_times = 8;
  static constexpr std::size_t least_handle = std::size_t{2} << 20;  // bytes
  // A device without a switch between it and the others has memory open, either way, with at most so many:
  // the driver has no more connections.
  static constexpr int most_peers = 8;

  explicit links(runtime::impl&);
  ~links();

  // the driver's word, asked once; when it would not say, again
  driver::result<driver::peer_info> told(int from, int to);
  trust known(int from, int to);  // no device work. Refused, too, when the driver would not say
  // Blocks: the first time. What cannot be tried now, or never, for want of connections or because no memory
  // of `to` could be opened, stays claimed.
  // Throws: out_of_memory, device_lost, driver_error
  trust prove(int from, int to, source_location);
  // its memory is mapped; segments never are open. The driver is asked once
  bool may_be_opened(int device);
  // A trial, and the making of streams, may wait for work of all devices. Not while collectives are under
  // way: it could be a rank of this very thread that they wait for. No driver call unless there are some
  bool may_try();
  // Every claimed pair of these devices, unless collectives are under way. What cannot be tried now stays
  // claimed. Blocks: the first time
  void prove_all(std::span<int const> devices, source_location) noexcept;
  // With options::peer_access: all memory of either device is open to the other from now on, where the link
  // was proven. Blocks: the first time. What cannot be tried or opened now is asked for at the next.
  // Returns: something may be known or open that was not
  bool meet(int a, int b, source_location) noexcept;
  std::uint64_t readers(int device);  // to whom all memory of that device is open or about to be, a bit each
  // All memory that allocations of that stream of `to`, null: of all its streams, draw on is open to these
  // devices. Throws: as enable_peer_access
  void enable_peer_access(int to, clock::timeline* home, std::span<int const> readers, source_location);
  // Throws: not_supported (no link, one that gives wrong bytes, no connection left,
  // memory in segments), naming the pair; as prove()
  void must_reach(int from, int to, std::string_view operation, source_location);
  // Bytes were copied between `from` and that block of another device. Ensures: once that was worth it, the
  // block is granted to `from`, if the link is proven. Refusals are no errors here: copies work without.
  void flowed(int from, memory::allocator& of, memory::block const&, std::size_t bytes, source_location) noexcept;

 private:
  bool wants_to_meet(int from, int to);  // options::peer_access, and they have not yet
  void have_met(int from, int to);
  driver::status open_all(int to, std::uint64_t readers);  // allocations and what is shared with other processes
  memory::allocator& memory_of(int device);
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace weir::peer
