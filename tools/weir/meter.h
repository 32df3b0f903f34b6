// A meter: a driver in front of another one that counts and times its calls.
// Threads: as the driver interface; read() only between calls.
#pragma once
#include <unordered_map>

#include "runtime/base/sync.h"
#include "simulator/faults/fault_injector.h"

namespace weir::tool {

class meter final : public driver::fault_injector {
 public:
  struct reading {
    std::int64_t spent_ns = 0;     // in calls, by this machine's clock
    std::int64_t modelled_ns = 0;  // the same calls on an H200, see meter.cpp
    std::uint64_t created = 0;     // handles and segments
    std::uint64_t moved = 0;       // mappings of a handle that was mapped before
  };
  using fault_injector::fault_injector;
  reading read() const noexcept;

  weir::driver::result<weir::driver::address> reserve(std::size_t bytes, std::size_t alignment) override;
  weir::driver::result<weir::driver::memory_handle> create(int device, std::size_t bytes) override;
  weir::driver::status release(weir::driver::memory_handle) override;
  weir::driver::status map(weir::driver::address, std::size_t bytes, weir::driver::memory_handle) override;
  weir::driver::status unmap(weir::driver::address, std::size_t bytes) override;
  weir::driver::status grant(weir::driver::address, std::size_t bytes, int device) override;
  weir::driver::result<weir::driver::address> create_segment(int device, std::size_t bytes) override;
  weir::driver::status release_segment(int device, weir::driver::address) override;
  weir::driver::result<weir::driver::memory_info> memory(int device) override;
  weir::driver::status query_stream(int device, weir::driver::stream_handle) override;
  weir::driver::status synchronize_stream(int device, weir::driver::stream_handle) override;
  weir::driver::result<bool> capturing(int device, weir::driver::stream_handle) override;
  weir::driver::result<weir::driver::event_handle> create_event(int device, weir::driver::event_kind) override;
  weir::driver::status destroy_event(int device, weir::driver::event_handle) override;
  weir::driver::status record(int device, weir::driver::stream_handle, weir::driver::event_handle) override;
  weir::driver::status wait(int device, weir::driver::stream_handle, weir::driver::event_handle) override;
  weir::driver::status query_event(weir::driver::event_handle) override;
  weir::driver::status synchronize_event(weir::driver::event_handle) override;
  weir::driver::status synchronize_device(int device) override;
  weir::driver::result<weir::driver::gate_handle> hold(int device, weir::driver::stream_handle) override;
  weir::driver::status open_gate(weir::driver::gate_handle) override;

 private:
  template <class Call>
  auto timed(double modelled_us, Call call);

  std::uint64_t const first_ticks_ = base::ticks();
  std::int64_t const first_ns_ = base::now_ns();
  base::atomic<std::uint64_t> spent_ticks_{0};
  base::atomic<std::int64_t> modelled_ns_{0};
  base::atomic<std::uint64_t> created_{0}, moved_{0};
  struct physical {
    std::size_t bytes = 0;
    bool mapped = false;  // at least once
  };
  base::guarded<std::unordered_map<std::uint64_t, physical>> handles_;
};

}  // namespace weir::tool
