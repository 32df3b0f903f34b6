// A driver in front of any other that refuses calls on demand: the k-th of a kind, with a given code.
// Threads: as the seam.
#pragma once
#include <span>
#include <string_view>

#include "runtime/base/sync.h"
#include "runtime/driver/driver.h"

namespace weir::driver {

class faulty : public driver {
 public:
  explicit faulty(std::unique_ptr<driver> inner) : inner_(std::move(inner)) {}
  driver& inner() const noexcept { return *inner_; }

  // The k-th call from now of that name is refused with that code and does not reach the driver behind; k = 1 is the next.
  // "any": of whatever name. Orders add up. Requires: k > 0 and a name in call_names(), else nothing happens and false comes back.
  bool fail_call(std::string_view call, std::uint64_t k, code);
  void forget_orders();
  std::uint64_t calls_so_far() const noexcept { return calls_.load(base::memory_order_relaxed); }  // that can be refused
  static std::span<std::string_view const> call_names() noexcept;  // every call that can be refused, then "any"

  bool simulated() const noexcept override { return inner_->simulated(); }
  bool moves_by_itself() const noexcept override { return inner_->moves_by_itself(); }
  int device_count() const noexcept override { return inner_->device_count(); }
  void touched(int device, stream_handle s, std::span<touch const> t) override { inner_->touched(device, s, t); }
  void recheck() override { inner_->recheck(); }

  result<device_info> info(int device) override;
  status open(int device) override;
  result<memory_info> memory(int device) override;
  status make_current(int device) override;
  status synchronize_device(int device) override;
  result<peer_info> peer(int from, int to) override;
  result<address> reserve(std::size_t bytes, std::size_t alignment) override;
  status unreserve(address, std::size_t bytes) override;
  result<memory_handle> create(int device, std::size_t bytes) override;
  status release(memory_handle) override;
  status map(address, std::size_t bytes, memory_handle) override;
  status unmap(address, std::size_t bytes) override;
  status grant(address, std::size_t bytes, int device) override;
  result<address> create_segment(int device, std::size_t bytes) override;
  status release_segment(int device, address) override;
  status pin(void* host, std::size_t bytes) override;
  status unpin(void* host) override;
  result<place> find(void const*) override;
  result<stream_handle> create_stream(int device, stream_kind, int priority) override;
  status destroy_stream(int device, stream_handle) override;
  status query_stream(int device, stream_handle) override;
  status synchronize_stream(int device, stream_handle) override;
  result<bool> capturing(int device, stream_handle) override;
  result<stream_handle> adopt(int device, CUstream_st*) override;
  result<CUstream_st*> native(int device, stream_handle) override;
  result<event_handle> create_event(int device, event_kind) override;
  status destroy_event(int device, event_handle) override;
  result<CUevent_st*> native_event(event_handle) override;
  status record(int device, stream_handle, event_handle) override;
  status wait(int device, stream_handle, event_handle) override;
  status query_event(event_handle) override;
  status synchronize_event(event_handle) override;
  result<float> elapsed_ms(event_handle start, event_handle end) override;
  status copy(int device, stream_handle, void* dst, void const* src, std::size_t bytes) override;
  status copy_peer(int device, stream_handle, void* dst, int dst_device, void const* src, int src_device, std::size_t bytes) override;
  status fill(int device, stream_handle, void* dst, std::uint32_t pattern, int pattern_bytes, std::size_t count) override;
  status host_function(int device, stream_handle, work) override;
  status enqueue(int device, stream_handle, std::span<touch const>, work) override;
  result<gate_handle> hold(int device, stream_handle) override;
  status open_gate(gate_handle) override;

 protected:
  virtual void refused_as_lost(int /*device*/) {}  // a call naming this device was refused with code::lost: sticky, so say so

 private:
  struct order {
    std::size_t call;  // index in call_names()
    std::uint64_t left;
    code with;
  };
  status refusal(std::size_t call, int device);
  status look_through_orders(std::size_t call, int device);

  std::unique_ptr<driver> inner_;
  base::atomic<std::uint64_t> calls_{0};
  base::atomic<bool> any_orders_{false};
  base::guarded<std::vector<order>> orders_;
};

}  // namespace weir::driver
