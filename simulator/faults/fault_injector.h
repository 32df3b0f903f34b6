// A decorator of any driver that refuses calls on demand: the k-th of a kind, or several from there.
// Threads: as the driver interface; any thread may place and cancel orders.
#pragma once
#include <span>
#include <string_view>

#include "runtime/base/sync.h"
#include "runtime/driver/calls.h"

namespace weir::driver {

class faulty : public driver {
 public:
  explicit faulty(std::unique_ptr<driver> inner) : inner_(std::move(inner)) {}
  driver& inner() const noexcept { return *inner_; }
  std::string why_stuck() override { return inner_->why_stuck(); }

  static constexpr std::uint64_t without_end = ~std::uint64_t{0};
  struct order {
    call of = call::any;
    std::uint64_t k = 1;       // the k-th call from now; 1 is the next
    code with = code::failed;
    // further calls to refuse after it. without_end: all. A few: also the calls that unwind the first
    std::uint64_t more = 0;
    bool by_contract = true;   // only the k-th, or the first after it, whose contract allows the code
  };
  // A refused call does not reach the inner driver, except end_capture. Orders are independent.
  // Returns: the number for cancel(). 0: nothing is ordered (k is 0, or `with` is ok).
  std::uint64_t refuse(order);
  // The same by name, whatever the call's contract allows. Returns: also 0 for a name not in call_names().
  std::uint64_t fail_call(std::string_view call, std::uint64_t k, code);
  bool cancel(std::uint64_t number);  // Returns: whether it was still pending
  void forget_orders();
  std::size_t orders_left() const;
  // that an order could refuse
  std::uint64_t calls_so_far() const noexcept { return calls_.load(base::memory_order_relaxed); }
  // every call that an order can refuse, then "any"
  static std::span<std::string_view const> call_names() noexcept { return weir::driver::call_names; }

  // Observes every call, on the caller's thread. Set it only while no call is in progress; null removes it.
  class watcher {
   public:
    virtual ~watcher() = default;
    virtual void comes(call) noexcept {}          // before every call, refused or not
    virtual void refused(call, code) noexcept {}
    virtual void enters(call) noexcept {}         // the inner driver
    virtual void leaves(call) noexcept {}
  };
  void watch(watcher* w) noexcept { watcher_.store(w); }

  bool simulated() const noexcept override { return inner_->simulated(); }
  bool moves_by_itself() const noexcept override { return inner_->moves_by_itself(); }
  int device_count() const noexcept override { return inner_->device_count(); }
  void touched(int device, stream_handle s, std::span<touch const> t) override { inner_->touched(device, s, t); }
  void recheck() override;
  void number_stream(int device, stream_handle s, std::uint64_t number) override {
    inner_->number_stream(device, s, number);
  }
  bool nvtx_memory() override { return inner_->nvtx_memory(); }
  void block_taken(address at, std::size_t bytes) override { inner_->block_taken(at, bytes); }
  void block_given_back(address at) override { inner_->block_given_back(at); }

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
  status grant_all(address, std::size_t bytes, std::uint64_t devices) override;
  result<memory_handle> create_shared(int device, std::size_t bytes) override;
  result<int> export_handle(memory_handle) override;
  result<memory_handle> import_handle(int device, std::size_t bytes, int file) override;
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
  status copy_peer(int device, stream_handle, void* dst, int dst_device, void const* src, int src_device,
                   std::size_t bytes) override;
  status fill(int device, stream_handle, void* dst, std::uint32_t pattern, int pattern_bytes,
              std::size_t count) override;
  status host_function(int device, stream_handle, work) override;
  status enqueue(int device, stream_handle, std::span<touch const>, work) override;
  status begin_capture(int device, stream_handle, capture_mode) override;
  result<graph_handle> end_capture(int device, stream_handle) override;
  result<executable_handle> instantiate(int device, graph_handle) override;
  status launch_graph(int device, stream_handle, executable_handle) override;
  status destroy_graph(graph_handle) override;
  status destroy_executable(executable_handle) override;
  result<gate_handle> hold(int device, stream_handle) override;
  status open_gate(gate_handle) override;

 protected:
  // A call that names this device was refused with the sticky code::lost. every_device: pin() loses all.
  static constexpr int every_device = -2;
  virtual void refused_as_lost(int /*device*/) {}
  virtual int device_of(event_handle) const { return no_device; }  // for calls that only name an event
  static constexpr int no_device = -1;

 private:
  struct subject {  // the device or event that a code::lost would concern
    subject(int d) noexcept : device(d) {}
    subject(event_handle e) noexcept : event(e) {}
    int device = no_device;
    event_handle event = event_handle::none;
  };
  struct standing {
    std::uint64_t number;
    faulty::order order;  // k: further calls until the refusal; 0: the next call that may be refused
  };
  template <class F>
  auto through(call, F&& behind) -> decltype(behind());
  template <class F>
  auto pass(call, subject, F&& behind) -> decltype(behind());
  status refusal(call, subject);
  status look_through_orders(call, subject);

  std::unique_ptr<driver> inner_;
  base::atomic<std::uint64_t> calls_{0};
  base::atomic<bool> any_orders_{false};
  base::atomic<watcher*> watcher_{nullptr};
  base::guarded<std::vector<standing>> orders_;
  std::uint64_t next_number_ = 1;  // under orders_
};

// Returns null if no injector is in front of that driver.
inline faulty* faulty_of(driver& d) noexcept {
  for (driver* at = &d; at; at = at->behind()) {
    if (auto* const found = dynamic_cast<faulty*>(at)) return found;
  }
  return nullptr;
}

}  // namespace weir::driver
