// The links between devices (claimed by the driver, verified by a link test, or found wrong), and the memory
// worth opening to a peer.
// Threads: any. Each pair is tested once; a second thread that needs it waits.
#pragma once
#include <memory>
#include <span>
#include <string_view>

#include "runtime/memory/device/device_memory.h"

namespace weir::peer {

class links {  // a part of the runtime
 public:
  enum class link_state : std::uint8_t {
    refused,  // `from` has no access to memory of `to`
    claimed,  // the driver reports access
    proven,   // and a link test passed
    wrong,    // and a link test read back wrong bytes
  };
  // A peer that has copied this many times a block's size gets it opened: a grant costs 0.2 ms a handle.
  static constexpr std::size_t worth_times = 8;
  static constexpr std::size_t least_handle = std::size_t{2} << 20;  // bytes
  // Maximum number of peers of a device without a switch, in either direction: a limit of the driver.
  static constexpr int most_peers = 8;

  explicit links(runtime::impl&);
  ~links();

  // The driver's answer, queried until it succeeds once.
  driver::result<driver::peer_info> driver_claim(int from, int to);
  link_state known(int from, int to);  // makes no device work; refused if the driver gives no answer
  // Tests a claimed link. Stays claimed if no connection is left or no memory of `to` can be opened.
  // Blocks: the first time. Throws: out_of_memory, device_lost, driver_error
  link_state prove(int from, int to, source_location);
  // false for memory in segments. Queries the driver once.
  bool may_be_opened(int device);
  // Whether no collectives are under way. A link test and the creation of a stream may wait for work of all
  // devices; a collective may wait for a rank of this thread. Makes no driver call without collectives.
  bool may_try();
  // Tests every claimed pair, unless collectives are under way. Blocks: the first time.
  void prove_all(std::span<int const> devices, source_location) noexcept;
  // With options::peer_access, opens all memory of either device to the other if the link passes its test.
  // Tries again at the next call after a failure. Blocks: the first time.
  // Returns: true if a link state or a grant may have changed.
  bool open_to_each_other(int a, int b, source_location) noexcept;
  std::uint64_t readers(int device);  // readers that all memory is open to or about to be, a bit each
  // Opens all memory of this stream of `to` (null: of all its streams). Throws: as enable_peer_access
  void enable_peer_access(int to, clock::stream_clock* home, std::span<int const> readers, source_location);
  // Throws: not_supported naming the pair (no link, wrong bytes, no connection, segments); as prove()
  void must_reach(int from, int to, std::string_view operation, source_location);
  // Counts bytes copied between `from` and a block of another device. After enough bytes, grants the block to
  // `from` if the link passes its test. A refusal is no error: copies work without a grant.
  void count_bytes(int from, memory::allocator& of, memory::block const&, std::size_t bytes, source_location) noexcept;

 private:
  driver::status open_all(int to, std::uint64_t readers);  // allocations and memory shared with other processes
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace weir::peer
