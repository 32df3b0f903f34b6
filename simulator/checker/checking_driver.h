// The decorator: forwards every call to the inner driver and records its effect on order and memory.
// Threads: as the driver interface. What a call comes after is read before the call, and its place is
// assigned after it, so that calls of unsynchronized threads never count as ordered.
#pragma once
#include "runtime/base/os.h"
#include "simulator/checker/race_judge.h"
#include "simulator/machine/machine.h"

namespace weir::driver::check {

class checked final : public driver, public control, public witness {
 public:
  explicit checked(std::unique_ptr<driver> inner);
  ~checked() override;

  bool simulated() const noexcept override { return inner_->simulated(); }
  bool moves_by_itself() const noexcept override { return inner_->moves_by_itself(); }
  int device_count() const noexcept override { return inner_->device_count(); }
  driver* behind() noexcept override { return inner_.get(); }
  witness* watching() noexcept override { return this; }
  void recheck() override { inner_->recheck(); }
  void number_stream(int device, stream_handle, std::uint64_t number) override;
  bool nvtx_memory() override { return inner_->nvtx_memory(); }
  void block_taken(address at, std::size_t bytes) override { inner_->block_taken(at, bytes); }
  void block_given_back(address at) override { inner_->block_given_back(at); }

  result<device_info> info(int device) override { return noted(inner_->info(device), device); }
  status open(int device) override { return note(inner_->open(device), device); }
  result<memory_info> memory(int device) override { return noted(inner_->memory(device), device); }
  status make_current(int device) override { return inner_->make_current(device); }
  status synchronize_device(int device) override;
  result<peer_info> peer(int from, int to) override { return inner_->peer(from, to); }
  result<address> reserve(std::size_t bytes, std::size_t alignment) override;
  status unreserve(address, std::size_t bytes) override;
  result<memory_handle> create(int device, std::size_t bytes) override;
  status release(memory_handle) override;
  status map(address, std::size_t bytes, memory_handle) override;
  status unmap(address, std::size_t bytes) override;
  status grant(address at, std::size_t bytes, int device) override { return inner_->grant(at, bytes, device); }
  status grant_all(address at, std::size_t bytes, std::uint64_t devices) override {
    return inner_->grant_all(at, bytes, devices);
  }
  result<memory_handle> create_shared(int device, std::size_t bytes) override;
  result<int> export_handle(memory_handle) override;
  result<memory_handle> import_handle(int device, std::size_t bytes, int file) override;
  result<address> create_segment(int device, std::size_t bytes) override;
  status release_segment(int device, address) override;
  status pin(void* host, std::size_t bytes) override;
  status unpin(void* host) override;
  result<place> find(void const* at) override { return inner_->find(at); }

  result<stream_handle> create_stream(int device, stream_kind, int priority) override;
  status destroy_stream(int device, stream_handle) override;
  status query_stream(int device, stream_handle) override;
  status synchronize_stream(int device, stream_handle) override;
  result<bool> capturing(int device, stream_handle s) override { return noted(inner_->capturing(device, s), device); }
  result<stream_handle> adopt(int device, CUstream_st*) override;
  result<CUstream_st*> native(int device, stream_handle s) override { return noted(inner_->native(device, s), device); }
  result<event_handle> create_event(int device, event_kind) override;
  status destroy_event(int device, event_handle) override;
  result<CUevent_st*> native_event(event_handle e) override { return inner_->native_event(e); }
  status record(int device, stream_handle, event_handle) override;
  status wait(int device, stream_handle, event_handle) override;
  status query_event(event_handle) override;
  status synchronize_event(event_handle) override;
  result<float> elapsed_ms(event_handle start, event_handle end) override { return inner_->elapsed_ms(start, end); }
  status copy(int device, stream_handle, void* dst, void const* src, std::size_t bytes) override;
  status copy_peer(int device, stream_handle, void* dst, int dst_device, void const* src, int src_device,
                   std::size_t bytes) override;
  status fill(int device, stream_handle, void* dst, std::uint32_t pattern, int pattern_bytes,
              std::size_t count) override;
  status host_function(int device, stream_handle, work) override;
  status enqueue(int device, stream_handle, std::span<touch const>, work) override;
  void touched(int device, stream_handle, std::span<touch const>) override;
  status begin_capture(int device, stream_handle, capture_mode) override;
  result<graph_handle> end_capture(int device, stream_handle) override;
  result<executable_handle> instantiate(int device, graph_handle) override;
  status launch_graph(int device, stream_handle, executable_handle) override;
  status destroy_graph(graph_handle) override;
  status destroy_executable(executable_handle) override;
  result<gate_handle> hold(int device, stream_handle) override;
  status open_gate(gate_handle g) override { return inner_->open_gate(g); }

  std::vector<finding> findings() override;
  void on_finding(std::function<void(finding const&)>) override;
  late_waits counted() const override;
  std::vector<std::string> census() const override;
  epoch position(int device, stream_handle) override;
  bool ordered(epoch, int device, stream_handle) override;
  bool complete(epoch) override;

  void allocated(user home, address, std::size_t bytes, source_location) override;
  void freed(address, std::size_t bytes, waits_for, source_location) override;
  void handed_over(user to, address, std::size_t bytes, source_location) override;
  void wait_inserted(user waiter, user other, address, std::size_t bytes) override;
  void relied_on(user waiter, user other) override;

  void host_uses(address, std::size_t bytes, host_use, base::site);
  bool met_shield(std::uint64_t shield, os::bad_access const&);  // false: not a shield of this machine
  void print_findings() noexcept;  // only if findings() was never called
  void print_findings_at_a_fault() noexcept;  // the same, unless a thread holds the checker's lock
  std::string describe(address);   // the block there, for a report. Empty: none, or the lock is held

 private:
  moment before(int device, stream_handle);
  moment given(int device, stream_handle);         // complete once the driver reports the stream done
  status after(status, int device, moment const&, std::span<range const>, char const* operation);
  status seen(status, int device, moment const&);  // a successful call proves `moment` complete
  status note(status, int device);                 // notes a lost device
  template <class T> result<T> noted(result<T> r, int device) {
    (void)note(r.is, device);
    return r;
  }
  status note_of_recorder(status, moment const&);
  status note_stuck(status);                       // for calls in which the host waits
  status after_copy(status, int device, moment const&, void* dst, void const* src, std::size_t bytes);
  void saw_complete(moment const&);
  // Require: the checker's lock.
  void keep_host_away(knowledge&, epoch, std::span<range const>, base::site);
  void let_host_back(knowledge&);                               // lowers the shields of work that is complete
  void let_host_back(knowledge&, address, std::size_t bytes);   // lowers the shields of that memory
  void print(knowledge&);

  std::unique_ptr<driver> const inner_;
  sim::controls* const machine_;                   // null: not simulated
  mutable checker judge_;
  struct made {
    std::map<std::pair<int, stream_handle>, int> streams;
    std::unordered_map<std::uintptr_t, int> events;  // device of each event
    std::vector<bool> lost;                          // by device
  };
  base::guarded<made> made_;
  base::atomic<std::size_t> stuck_said_{0};        // number of machine findings at the last noted circle
};

}  // namespace weir::driver::check
