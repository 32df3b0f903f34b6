// The decorator: forwards every call to the inner driver and records its effect on order and memory.
// Threads: as the driver interface. What a call comes after is read before the call, and its place is
// assigned after it, so that calls of unsynchronized threads never count as ordered.
#pragma once
#include "runtime/base/os.h"
#include "runtime/driver/driver_front.h"
#include "simulator/checker/checking_calls.h"
#include "simulator/checker/race_judge.h"
#include "simulator/machine/machine.h"

namespace weir::driver::check {

class checking_driver final : public driver_front<checking_driver>, public test_control, public allocation_observer {
 public:
  explicit checking_driver(std::unique_ptr<driver> inner);
  ~checking_driver() override;

  driver* behind() noexcept override { return inner_.get(); }
  allocation_observer* watching() noexcept override { return this; }
  control* checker() noexcept override { return this; }
  void number_stream(int device, stream_handle, std::uint64_t number) override;

  result<device_info> info(int device) override { return noted(inner_->info(device), device); }
  status open(int device) override { return note(inner_->open(device), device); }
  result<memory_info> memory(int device) override { return noted(inner_->memory(device), device); }
  status synchronize_device(int device) override;
  result<address> reserve(std::size_t bytes, std::size_t alignment) override;
  status unreserve(address, std::size_t bytes) override;
  result<memory_handle> create(int device, std::size_t bytes) override;
  status release(memory_handle) override;
  status map(address, std::size_t bytes, memory_handle) override;
  status unmap(address, std::size_t bytes) override;
  result<memory_handle> create_shared(int device, std::size_t bytes) override;
  result<memory_handle> import_handle(int device, std::size_t bytes, int file) override;
  result<address> create_segment(int device, std::size_t bytes) override;
  status release_segment(int device, address) override;
  status pin(void* host, std::size_t bytes) override;
  status unpin(void* host) override;

  result<stream_handle> create_stream(int device, stream_kind, int priority) override;
  status destroy_stream(int device, stream_handle) override;
  status query_stream(int device, stream_handle) override;
  status synchronize_stream(int device, stream_handle) override;
  result<bool> capturing(int device, stream_handle s) override { return noted(inner_->capturing(device, s), device); }
  result<std::uint64_t> capture_of(int device, stream_handle s) override {
    return noted(inner_->capture_of(device, s), device);
  }
  result<stream_handle> adopt(int device, CUstream_st*) override;
  result<CUstream_st*> native(int device, stream_handle s) override { return noted(inner_->native(device, s), device); }
  result<event_handle> create_event(int device, event_kind) override;
  result<CUevent_st*> native_event(event_handle) override;
  status destroy_event(int device, event_handle) override;
  status record(int device, stream_handle, event_handle) override;
  status wait(int device, stream_handle, event_handle) override;
  status query_event(event_handle) override;
  status synchronize_event(event_handle) override;
  status copy(int device, stream_handle, void* dst, void const* src, std::size_t bytes) override;
  status upload(int device, stream_handle, void* dst, void const* src, std::size_t bytes) override;
  status copy_peer(int device, stream_handle, void* dst, int dst_device, void const* src, int src_device,
                   std::size_t bytes) override;
  status fill(int device, stream_handle, void* dst, std::uint32_t pattern, int pattern_bytes,
              std::size_t count) override;
  status host_function(int device, stream_handle, work) override;
  status enqueue(int device, stream_handle, std::span<touch const>, work) override;
  void touched(int device, stream_handle, std::span<touch const>) override;
  status begin_capture(int device, stream_handle, capture_mode) override;
  result<graph_handle> end_capture(int device, stream_handle) override;
  status keep_with_graph(int device, stream_handle, void (*drop)(void*), void* state) override;
  status update(int device, executable_handle, graph_handle) override;
  result<executable_handle> instantiate(int device, graph_handle) override;
  status launch_graph(int device, stream_handle, executable_handle) override;
  status destroy_graph(graph_handle) override;
  status destroy_executable(executable_handle) override;
  result<gate_handle> hold(int device, stream_handle) override;

  std::vector<finding> findings() override;
  void on_finding(std::function<void(finding const&)>) override;
  check::unjudged unseen() const override { return unseen(*judge_.lock()); }
  seen_calls* calls() override;
  late_waits counted() const override;
  std::vector<std::string> census() const override;
  epoch position(int device, stream_handle) override;
  bool ordered(epoch, int device, stream_handle) override;
  bool complete(epoch) override;
  void manages(void const* block, managed_block) override;
  void is_weirs_own(int device, stream_handle) override;

  void stream_made(user, source_location) override;
  void allocated(user home, address, std::size_t bytes, source_location) override;
  void marked(user, address) override;
  void freed(address, std::size_t bytes, std::span<user const> behind, source_location) override;
  void stream_handed_out(user) override;
  void event_handed_out(event_handle) override;
  void handed_over(user to, address, std::size_t bytes, source_location) override;
  void wait_inserted(user waiter, user other, address, std::size_t bytes) override;
  void relied_on(user waiter, user other) override;

  void host_uses(address, std::size_t bytes, host_use, base::site);
  bool met_shield(std::uint64_t shield, os::bad_access const&);  // false: not a shield of this machine
  void print_findings() noexcept;                                // only if findings() was never called
  void print_findings_at_a_fault() noexcept;                     // the same, unless a thread holds the checker's lock
  std::string describe(address);  // the block there, for a report. Empty: none, or the lock is held

 private:
  friend class driver_front<checking_driver>;
  friend class checking_calls;
  template <class Behind>
  auto pass(call, call_subject, Behind&& behind) {
    return behind();
  }
  check::unjudged unseen(knowledge const&) const;
  moment before(int device, stream_handle, trust = trust::promised);
  stream_id asked(int device, stream_handle);  // a stream of the program, of a kind that is then known
  moment given(int device, stream_handle);     // complete once the driver reports the stream done
  status after(status, int device, moment const&, std::span<range const>, char const* operation);
  status seen(status, int device, moment const&);  // a successful call proves `moment` complete
  status note(status, int device);                 // notes a lost device
  result<memory_handle> created(result<memory_handle>, int device, std::size_t bytes);
  template <class T>
  result<T> noted(result<T> r, int device) {
    (void)note(r.is, device);
    return r;
  }
  status note_of_recorder(status, moment const&);
  template <class Ask>
  status of_event(event_handle, Ask);
  status note_stuck(status);  // for calls in which the host waits
  void may_write(std::span<touch const>);
  status after_copy(status, int device, moment const&, void* dst, void const* src, std::size_t bytes);
  void saw_complete(moment const&);
  // Require: the checker's lock.
  void keep_host_away(knowledge&, epoch, std::span<range const>, base::site);
  void let_host_back(knowledge&);                              // lowers the shields of work that is complete
  void let_host_back(knowledge&, address, std::size_t bytes);  // lowers the shields of that memory
  void print(knowledge&);

  sim::controls* const machine_;  // null: not simulated
  mutable race_judge judge_;
  struct made {
    std::map<std::pair<int, stream_handle>, int> streams;
    std::unordered_map<std::uintptr_t, int> events;  // device of each event
    std::vector<bool> lost;                          // by device
  };
  base::guarded<made> made_;
  checking_calls calls_{*this};
  base::atomic<std::size_t> stuck_said_{0};  // number of machine findings at the last noted circle
};

}  // namespace weir::driver::check
