// Threads allocate, stamp, share, copy, verify and free for minutes, and must show a valid outcome.
// Threads: a soak belongs to one; its workers are its own.
#pragma once
#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/soak/crooked.h"
#include "tests/soak/stamp.h"
#include "weir/copy.h"
#include "weir/observe.h"
#include "weir/peer.h"

namespace weir::soak {

// Paths of memory that a valid run takes often enough.
enum class path : std::uint8_t {
  same_stream,   // a stream reuses its own freed block
  ordered,       // another stream reuses it, known to be ordered after: no query
  polled,        // another stream reuses it after a query found its last use complete
  device_wait,   // another stream reuses it after a device wait for its last use
  marked,        // freed while marked for other streams
  other_thread,  // freed by another thread
  growth,        // new handles for one block
  refused,       // out of memory after every step of the ladder
  ladder,        // an allocation that used the ladder
  peer_up,       // copied to a device of higher ordinal
  peer_down,     // or lower
  peer_read,     // read by a kernel of another device
  staged_in,     // pageable to device
  staged_out,    // device to pageable
  pinned_in,     // pinned to device
  pinned_out,    // device to pinned
  pinned_reuse,  // a pinned block at a freed address
  unmapped,      // handles returned to the driver
  count,
};
inline constexpr std::size_t paths = static_cast<std::size_t>(path::count);
std::string_view name_of(path) noexcept;
bool possible(path, int devices) noexcept;

struct plan {
  int threads = 4, streams = 4;  // streams: of each thread on each device
  double seconds = 480;
  std::uint64_t seed = 1, least = 1000;
  bool soon = false;  // ends when each path was taken `least` times
  lie told = lie::none;
  std::size_t limit = 0;  // bytes a device; 0: chosen for the machine
};

struct outcome {
  std::array<std::uint64_t, paths> times{};
  std::uint64_t launched = 0, reported = 0;  // verifications
  std::uint64_t mismatches = 0;              // words, on devices and host
  std::uint64_t operations = 0;
  // allocations behind a device wait, and operations that their waits covered beyond the last use
  std::uint64_t waits = 0, over_wait = 0;
  double seconds = 0, caught_after = -1;  // of the first mismatch, or the loss of a device
  int devices = 0;
  bool lost = false;
  std::string machine, first_mismatch, failure;  // failure: a worker's exception
  bool clean() const noexcept { return mismatches == 0 && !lost && failure.empty() && launched == reported; }
};

// Runs the soak and calls `tick(share done, so far)` now and then. With a lie it ends at the first failure.
class soak {
 public:
  explicit soak(plan);
  ~soak();
  template <class Tick>
  outcome run(Tick tick) {
    start();
    while (!over())
      tick(progress(), so_far());
    return finish();
  }

  struct lane {  // a stream of one worker
    std::optional<stream> on;
    tally* found = nullptr;
    std::uint64_t launched = 0;  // by its owner
    stream_key key{};
  };
  struct held {  // a block
    std::byte* at = nullptr;
    std::size_t bytes = 0;
    std::uint64_t id = 0;
    int worker = 0, device = 0, stream = 0;
    std::vector<lane*> others;  // streams it is marked for
  };

 private:
  friend class worker;
  struct freed {  // freed memory
    std::size_t bytes = 0;
    stream_key home;
    std::vector<std::pair<stream_key, std::uint64_t>> last_use;
  };

  void start();
  bool over();  // sleeps briefly
  double progress() const;
  outcome so_far() const;
  bool enough() const;
  outcome finish();
  void count(path p, std::uint64_t n = 1) noexcept {
    times_[static_cast<std::size_t>(p)].fetch_add(n, std::memory_order_relaxed);
  }
  void gave_back(held const&);
  void handed_out(held const&, stream_key home, noted const&);
  void caught(std::string what, std::uint64_t mismatches);
  void failed(std::string what, bool lost);
  lane& lane_of(int worker, int device, int stream) {
    return lanes_[static_cast<std::size_t>((worker * devices_ + device) * plan_.streams + stream)];
  }

  plan plan_;
  crooked* machine_ = nullptr;
  std::unique_ptr<runtime> runtime_;
  bool simulated_ = false;
  int devices_ = 0;
  std::vector<lane> lanes_;
  std::array<std::atomic<std::uint64_t>, paths> times_{};
  std::atomic<std::uint64_t> operations_{0}, mismatches_{0}, next_id_{1}, waits_{0}, over_wait_{0};
  std::atomic<bool> stop_{false}, lost_{false};
  mutable std::mutex lock_;
  std::vector<std::map<std::byte*, freed>> ledger_;     // by device. under lock_
  std::vector<std::vector<held>> inbox_;                // by worker. under lock_
  std::map<std::byte*, std::size_t> pinned_free_;       // under lock_
  std::string first_mismatch_, failure_, description_;  // under lock_
  double caught_after_ = -1;                            // under lock_
  std::int64_t began_ns_ = 0, moved_ns_ = 0;
  std::uint64_t moved_operations_ = 0;
  std::vector<std::thread> threads_;
};

std::string table(plan const&, outcome const&);

}  // namespace weir::soak
