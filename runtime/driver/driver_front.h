// A driver in front of another: each call that can be refused goes on to it by way of one function of the
// class that derives from this, `pass`. What the class changes beyond that it overrides.
// Threads: as the driver interface.
//
// Requires: Self::pass(call, call_subject, behind) returns what behind() does.
#pragma once
#include <memory>
#include <span>
#include <utility>

#include "runtime/driver/calls.h"

namespace weir::driver {

struct call_subject {  // whose loss a call would speak of
  static constexpr int no_device = -1, every_device = -2;
  call_subject(int d) noexcept : device(d) {}
  call_subject(event_handle e) noexcept : event(e) {}
  int device = no_device;
  event_handle event = event_handle::none;
};

template <class Self>
class driver_front : public driver {
 public:
  explicit driver_front(std::unique_ptr<driver> inner) : inner_(std::move(inner)) {}

  std::string why_stuck() override { return inner_->why_stuck(); }
  bool simulated() const noexcept override { return inner_->simulated(); }
  bool moves_by_itself() const noexcept override { return inner_->moves_by_itself(); }
  bool schedules_threads() const noexcept override { return inner_->schedules_threads(); }
  int device_count() const noexcept override { return inner_->device_count(); }
  void recheck() override { inner_->recheck(); }
  void number_stream(int d, stream_handle s, std::uint64_t number) override { inner_->number_stream(d, s, number); }
  void touched(int d, stream_handle s, std::span<touch const> t) override { inner_->touched(d, s, t); }
  bool nvtx_memory() override { return inner_->nvtx_memory(); }
  void block_taken(address at, std::size_t bytes) override { inner_->block_taken(at, bytes); }
  void block_given_back(address at) override { inner_->block_given_back(at); }

// The same call of the driver behind, by way of pass.
#define WEIR_ON(name, whose, ...) return self().pass(call::name, whose, [&] { return inner_->name(__VA_ARGS__); })
  result<device_info> info(int d) override {
    WEIR_ON(info, d, d);
  }
  status open(int d) override {
    WEIR_ON(open, d, d);
  }
  result<memory_info> memory(int d) override {
    WEIR_ON(memory, d, d);
  }
  status make_current(int d) override {
    WEIR_ON(make_current, d, d);
  }
  result<int> current_device() override {
    WEIR_ON(current_device, no_device);
  }
  status synchronize_device(int d) override {
    WEIR_ON(synchronize_device, d, d);
  }
  result<peer_info> peer(int from, int to) override {
    WEIR_ON(peer, from, from, to);
  }

  result<address> reserve(std::size_t bytes, std::size_t alignment) override {
    WEIR_ON(reserve, no_device, bytes, alignment);
  }
  status unreserve(address at, std::size_t n) override {
    WEIR_ON(unreserve, no_device, at, n);
  }
  result<memory_handle> create(int d, std::size_t bytes) override {
    WEIR_ON(create, d, d, bytes);
  }
  status release(memory_handle h) override {
    WEIR_ON(release, no_device, h);
  }
  status map(address at, std::size_t n, memory_handle h) override {
    WEIR_ON(map, no_device, at, n, h);
  }
  status unmap(address at, std::size_t n) override {
    WEIR_ON(unmap, no_device, at, n);
  }
  status grant(address at, std::size_t n, int d) override {
    WEIR_ON(grant, d, at, n, d);
  }
  status grant_all(address at, std::size_t n, std::uint64_t devices) override {
    return self().pass(call::grant, no_device, [&] { return inner_->grant_all(at, n, devices); });
  }
  result<memory_handle> create_shared(int d, std::size_t bytes) override {
    WEIR_ON(create_shared, d, d, bytes);
  }
  result<int> export_handle(memory_handle h) override {
    WEIR_ON(export_handle, no_device, h);
  }
  result<memory_handle> import_handle(int d, std::size_t bytes, int file) override {
    WEIR_ON(import_handle, d, d, bytes, file);
  }
  result<address> create_segment(int d, std::size_t bytes) override {
    WEIR_ON(create_segment, d, d, bytes);
  }
  status release_segment(int d, address at) override {
    WEIR_ON(release_segment, d, d, at);
  }
  status pin(void* host, std::size_t n) override {
    WEIR_ON(pin, every_device, host, n);
  }
  status unpin(void* host) override {
    WEIR_ON(unpin, every_device, host);
  }
  result<place> find(void const* at) override {
    WEIR_ON(find, no_device, at);
  }

  result<stream_handle> create_stream(int d, stream_kind kind, int priority) override {
    WEIR_ON(create_stream, d, d, kind, priority);
  }
  status destroy_stream(int d, stream_handle s) override {
    WEIR_ON(destroy_stream, d, d, s);
  }
  status query_stream(int d, stream_handle s) override {
    WEIR_ON(query_stream, d, d, s);
  }
  status synchronize_stream(int d, stream_handle s) override {
    WEIR_ON(synchronize_stream, d, d, s);
  }
  result<bool> capturing(int d, stream_handle s) override {
    WEIR_ON(capturing, d, d, s);
  }
  result<std::uint64_t> capture_of(int d, stream_handle s) override {
    WEIR_ON(capture_of, d, d, s);
  }
  result<stream_handle> adopt(int d, CUstream_st* s) override {
    WEIR_ON(adopt, d, d, s);
  }
  result<identity> identify(int d, CUstream_st* s) override {
    WEIR_ON(identify, d, d, s);
  }
  result<int> stream_device(int d, CUstream_st* s) override {
    WEIR_ON(stream_device, d, d, s);
  }
  result<stream_kind> kind_of(int d, stream_handle s) override {
    WEIR_ON(kind_of, d, d, s);
  }
  result<CUstream_st*> native(int d, stream_handle s) override {
    WEIR_ON(native, d, d, s);
  }
  result<event_handle> create_event(int d, event_kind kind) override {
    WEIR_ON(create_event, d, d, kind);
  }
  status destroy_event(int d, event_handle e) override {
    WEIR_ON(destroy_event, d, d, e);
  }
  result<CUevent_st*> native_event(event_handle e) override {
    WEIR_ON(native_event, no_device, e);
  }
  status record(int d, stream_handle s, event_handle e) override {
    WEIR_ON(record, d, d, s, e);
  }
  status wait(int d, stream_handle s, event_handle e) override {
    WEIR_ON(wait, d, d, s, e);
  }
  status query_event(event_handle e) override {
    WEIR_ON(query_event, e, e);
  }
  status synchronize_event(event_handle e) override {
    WEIR_ON(synchronize_event, e, e);
  }
  result<float> elapsed_ms(event_handle start, event_handle end) override {
    WEIR_ON(elapsed_ms, start, start, end);
  }

  status copy(int d, stream_handle s, void* dst, void const* src, std::size_t bytes) override {
    WEIR_ON(copy, d, d, s, dst, src, bytes);
  }
  status copy_peer(int d, stream_handle s, void* dst, int dst_device, void const* src, int src_device,
                   std::size_t bytes) override {
    WEIR_ON(copy_peer, d, d, s, dst, dst_device, src, src_device, bytes);
  }
  status upload(int d, stream_handle s, void* dst, void const* src, std::size_t bytes) override {
    WEIR_ON(upload, d, d, s, dst, src, bytes);
  }
  upload_room room_for_uploads() noexcept override {
    return inner_->room_for_uploads();
  }
  status fill(int d, stream_handle s, void* dst, std::uint32_t pattern, int pattern_bytes, std::size_t count) override {
    WEIR_ON(fill, d, d, s, dst, pattern, pattern_bytes, count);
  }
  status host_function(int d, stream_handle s, work w) override {
    WEIR_ON(host_function, d, d, s, w);
  }
  status enqueue(int d, stream_handle s, std::span<touch const> touches, work w) override {
    WEIR_ON(enqueue, d, d, s, touches, w);
  }
  status begin_capture(int d, stream_handle s, capture_mode mode) override {
    WEIR_ON(begin_capture, d, d, s, mode);
  }
  result<graph_handle> end_capture(int d, stream_handle s) override {
    WEIR_ON(end_capture, d, d, s);
  }
  status keep_with_graph(int d, stream_handle s, void (*drop)(void*), void* state) override {
    WEIR_ON(keep_with_graph, d, d, s, drop, state);
  }
  status update(int d, executable_handle x, graph_handle g) override {
    WEIR_ON(update, d, d, x, g);
  }
  result<executable_handle> instantiate(int d, graph_handle g) override {
    WEIR_ON(instantiate, d, d, g);
  }
  status launch_graph(int d, stream_handle s, executable_handle x) override {
    WEIR_ON(launch_graph, d, d, s, x);
  }
  status destroy_graph(graph_handle g) override {
    WEIR_ON(destroy_graph, no_device, g);
  }
  status destroy_executable(executable_handle x) override {
    WEIR_ON(destroy_executable, no_device, x);
  }
  result<gate_handle> hold(int d, stream_handle s) override {
    WEIR_ON(hold, d, d, s);
  }
  status open_gate(gate_handle g) override {
    WEIR_ON(open_gate, no_device, g);
  }
#undef WEIR_ON

 protected:
  std::unique_ptr<driver> inner_;

 private:
  static constexpr int no_device = call_subject::no_device, every_device = call_subject::every_device;
  Self& self() noexcept {
    return static_cast<Self&>(*this);
  }
};

}  // namespace weir::driver
