// One thread of the soak: its blocks, and its next action.
// Threads: one.
#pragma once
#include "tests/soak/soak.h"

namespace weir::soak {

class worker {
 public:
  worker(soak& in, int number);
  void run();  // until the soak stops; then frees everything

 private:
  using held = soak::held;
  using lane = soak::lane;

  void step();
  void make();
  void check();
  void share();
  void drop();
  void hand_over();
  void take_over();
  void to_peer();
  void read_from_peer();
  void staged_in();
  void staged_out();
  void pinned_in();
  void pinned_out();
  void crowd();
  void empty();
  void fetch();

  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % n); }
  // Cycles. Sometimes long, so that much memory is freed and requested while still in use.
  unsigned long_delay() const { return in_.simulated_ ? 50'000 : 2'000'000; }
  unsigned delay() { return static_cast<unsigned>(below(in_.simulated_ ? 3'000 : 100'000) * (below(12) ? 1 : 30)); }
  lane& lane_of(int device, int stream) { return in_.lane_of(number_, device, stream); }
  lane& home_of(held const& h) { return in_.lane_of(h.worker, h.device, h.stream); }
  std::size_t some_bytes();
  bool has_room(int device) const { return bytes_[static_cast<std::size_t>(device)] <= share_; }
  // none: out of memory; some of this thread's blocks are then freed
  std::optional<held> take(int device, int stream, std::size_t bytes);
  void give(held);
  void keep(held h);
  held pick();  // from mine_. Requires: mine_ is not empty
  void verify_on(lane&, held const&, unsigned delay);
  void free_verified(held h);
  buffer pin(std::size_t bytes);
  void unpin(buffer&);
  void compare(std::uint32_t const* words, std::size_t bytes, std::uint64_t id, char const* where);

  soak& in_;
  int const number_;
  std::mt19937_64 random_;
  std::vector<held> mine_;
  std::vector<std::size_t> bytes_;  // in use, by device
  std::size_t share_ = 0;           // part of a device's limit
  std::vector<std::uint32_t> scratch_;
  std::map<lane*, std::uint64_t> seen_;  // mismatches fetched so far
  std::uint64_t steps_ = 0;
};

}  // namespace weir::soak
