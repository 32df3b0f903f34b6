// A driver in front of any other that tracks which closed gates each stream is behind, from calls alone.
// Threads: as the seam.
#pragma once
#include <set>

#include "tests/soak/crooked.h"

namespace weir::soak {

// A host wait for a held stream opens all gates first, because nothing else would.
class gatekeeper final : public crooked {
 public:
  using gates = std::set<weir::driver::gate_handle>;
  explicit gatekeeper(std::unique_ptr<weir::driver::driver> inner) : crooked(std::move(inner), lie::none) {}

  gates gates_of(stream_key) const;
  gates still_closed(gates const&) const;
  std::size_t closed() const;
  void open_all();
  int host_waits() const noexcept { return host_waits_.load(); }    // started so far; each may have opened gates
  void keep_closed(bool yes) noexcept { keep_closed_.store(yes); }  // a host wait then opens no gates: the test does

  weir::driver::result<weir::driver::gate_handle> hold(int device, weir::driver::stream_handle) override;
  weir::driver::status open_gate(weir::driver::gate_handle) override;
  weir::driver::status record(int device, weir::driver::stream_handle, weir::driver::event_handle) override;
  weir::driver::status wait(int device, weir::driver::stream_handle, weir::driver::event_handle) override;
  weir::driver::status synchronize_event(weir::driver::event_handle) override;
  weir::driver::status synchronize_stream(int device, weir::driver::stream_handle) override;
  weir::driver::status synchronize_device(int device) override;
  weir::driver::status unpin(void*) override;
  weir::driver::status release_segment(int device, weir::driver::address) override;

 private:
  void host_waits_now();
  mutable std::mutex book_;
  gates closed_;                                                    // under book_
  std::map<stream_key, gates> behind_;                              // under book_
  std::unordered_map<weir::driver::event_handle, gates> recorded_;  // under book_
  base::atomic<int> host_waits_{0};
  base::atomic<bool> keep_closed_{false};
};

}  // namespace weir::soak
