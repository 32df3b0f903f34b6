// Counts calls and refuses those that were ordered.
// Threads: as the driver interface.
#include "simulator/faults/fault_injector.h"

#include <algorithm>

namespace weir::driver {

std::uint64_t faulty::refuse(order o) {
  if (o.k == 0 || o.with == code::ok) return 0;
  auto orders = orders_.lock();
  orders->push_back({next_number_, o});
  any_orders_.store(true);
  return next_number_++;
}

std::uint64_t faulty::fail_call(std::string_view name, std::uint64_t k, code with) {
  auto const found = std::find(weir::driver::call_names.begin(), weir::driver::call_names.end(), name);
  if (found == weir::driver::call_names.end()) return 0;
  return refuse({static_cast<call>(found - weir::driver::call_names.begin()), k, with, 0, false});
}

bool faulty::cancel(std::uint64_t number) {
  auto orders = orders_.lock();
  auto const gone = std::erase_if(*orders, [&](standing const& s) { return s.number == number; });
  any_orders_.store(!orders->empty());
  return gone != 0;
}

void faulty::forget_orders() {
  auto orders = orders_.lock();
  orders->clear();
  any_orders_.store(false);
}

std::size_t faulty::orders_left() const { return orders_.lock()->size(); }

inline status faulty::refusal(call c, subject who) {
  calls_.fetch_add(1, base::memory_order_relaxed);
  if (watcher* const w = watcher_.load(base::memory_order_acquire)) [[unlikely]] w->comes(c);
  if (!any_orders_.load(base::memory_order_acquire)) [[likely]] return {};
  return look_through_orders(c, who);
}

status faulty::look_through_orders(call c, subject who) {
  status answer;
  {
    auto orders = orders_.lock();
    for (standing& s : *orders) {
      faulty::order& o = s.order;
      if (o.of != c && o.of != call::any) continue;
      if (o.k > 0 && --o.k > 0) continue;
      if (!answer.ok() || (o.by_contract && !contract_of(c).has(o.with))) continue;
      answer = {o.with};
      if (o.more == 0) s.number = 0;
      else if (o.more != without_end) --o.more;
    }
    std::erase_if(*orders, [](standing const& s) { return s.number == 0; });
    if (orders->empty()) any_orders_.store(false);
  }
  if (answer.ok()) return answer;
  if (watcher* const w = watcher_.load(base::memory_order_acquire)) w->refused(c, answer.what);
  if (answer.what == code::lost) {
    int const device = who.event == event_handle::none ? who.device : device_of(who.event);
    if (device != no_device) refused_as_lost(device);
  }
  return answer;
}

template <class F>
auto faulty::through(call c, F&& behind) -> decltype(behind()) {
  watcher* const w = watcher_.load(base::memory_order_acquire);
  if (!w) [[likely]] return behind();
  w->enters(c);
  auto answer = behind();
  w->leaves(c);
  return answer;
}

template <class F>
auto faulty::pass(call c, subject who, F&& behind) -> decltype(behind()) {
  if (status const refused = refusal(c, who); !refused.ok()) [[unlikely]] return {refused};
  return through(c, behind);
}

#define WEIR_PASS(name, device, ...) pass(call::name, device, [&] { return inner_->name(__VA_ARGS__); })

result<device_info> faulty::info(int device) { return WEIR_PASS(info, device, device); }
status faulty::open(int device) { return WEIR_PASS(open, device, device); }
result<memory_info> faulty::memory(int device) { return WEIR_PASS(memory, device, device); }
status faulty::make_current(int device) { return WEIR_PASS(make_current, device, device); }
status faulty::synchronize_device(int device) { return WEIR_PASS(synchronize_device, device, device); }
result<peer_info> faulty::peer(int from, int to) { return WEIR_PASS(peer, from, from, to); }
result<address> faulty::reserve(std::size_t bytes, std::size_t alignment) {
  return WEIR_PASS(reserve, no_device, bytes, alignment);
}
status faulty::unreserve(address at, std::size_t bytes) { return WEIR_PASS(unreserve, no_device, at, bytes); }
result<memory_handle> faulty::create(int device, std::size_t bytes) { return WEIR_PASS(create, device, device, bytes); }
status faulty::release(memory_handle h) { return WEIR_PASS(release, no_device, h); }
status faulty::map(address at, std::size_t bytes, memory_handle h) { return WEIR_PASS(map, no_device, at, bytes, h); }
status faulty::unmap(address at, std::size_t bytes) { return WEIR_PASS(unmap, no_device, at, bytes); }
status faulty::grant(address at, std::size_t bytes, int device) { return WEIR_PASS(grant, device, at, bytes, device); }
status faulty::grant_all(address at, std::size_t bytes, std::uint64_t devices) {
  return pass(call::grant, no_device, [&] { return inner_->grant_all(at, bytes, devices); });
}
result<memory_handle> faulty::create_shared(int device, std::size_t bytes) {
  return WEIR_PASS(create_shared, device, device, bytes);
}
result<int> faulty::export_handle(memory_handle h) { return WEIR_PASS(export_handle, no_device, h); }
result<memory_handle> faulty::import_handle(int device, std::size_t bytes, int file) {
  return WEIR_PASS(import_handle, device, device, bytes, file);
}
result<address> faulty::create_segment(int device, std::size_t bytes) {
  return WEIR_PASS(create_segment, device, device, bytes);
}
status faulty::release_segment(int device, address at) { return WEIR_PASS(release_segment, device, device, at); }
status faulty::pin(void* host, std::size_t bytes) { return WEIR_PASS(pin, every_device, host, bytes); }
status faulty::unpin(void* host) { return WEIR_PASS(unpin, every_device, host); }
result<place> faulty::find(void const* at) { return WEIR_PASS(find, no_device, at); }

result<stream_handle> faulty::create_stream(int device, stream_kind k, int priority) {
  return WEIR_PASS(create_stream, device, device, k, priority);
}
status faulty::destroy_stream(int device, stream_handle s) { return WEIR_PASS(destroy_stream, device, device, s); }
status faulty::query_stream(int device, stream_handle s) { return WEIR_PASS(query_stream, device, device, s); }
status faulty::synchronize_stream(int device, stream_handle s) {
  return WEIR_PASS(synchronize_stream, device, device, s);
}
result<bool> faulty::capturing(int device, stream_handle s) { return WEIR_PASS(capturing, device, device, s); }
result<stream_handle> faulty::adopt(int device, CUstream_st* s) { return WEIR_PASS(adopt, device, device, s); }
result<CUstream_st*> faulty::native(int device, stream_handle s) { return WEIR_PASS(native, device, device, s); }
result<event_handle> faulty::create_event(int device, event_kind k) {
  return WEIR_PASS(create_event, device, device, k);
}
status faulty::destroy_event(int device, event_handle e) { return WEIR_PASS(destroy_event, device, device, e); }
result<CUevent_st*> faulty::native_event(event_handle e) { return WEIR_PASS(native_event, no_device, e); }
status faulty::record(int device, stream_handle s, event_handle e) { return WEIR_PASS(record, device, device, s, e); }
status faulty::wait(int device, stream_handle s, event_handle e) { return WEIR_PASS(wait, device, device, s, e); }
status faulty::query_event(event_handle e) { return WEIR_PASS(query_event, e, e); }
status faulty::synchronize_event(event_handle e) { return WEIR_PASS(synchronize_event, e, e); }
result<float> faulty::elapsed_ms(event_handle start, event_handle end) {
  return WEIR_PASS(elapsed_ms, start, start, end);
}

status faulty::copy(int device, stream_handle s, void* dst, void const* src, std::size_t bytes) {
  return WEIR_PASS(copy, device, device, s, dst, src, bytes);
}
status faulty::copy_peer(int device, stream_handle s, void* dst, int dst_device, void const* src, int src_device,
                         std::size_t bytes) {
  return WEIR_PASS(copy_peer, device, device, s, dst, dst_device, src, src_device, bytes);
}
status faulty::fill(int device, stream_handle s, void* dst, std::uint32_t pattern, int pattern_bytes,
                    std::size_t count) {
  return WEIR_PASS(fill, device, device, s, dst, pattern, pattern_bytes, count);
}
status faulty::host_function(int device, stream_handle s, work w) {
  if (status const refused = refusal(call::host_function, device); !refused.ok()) [[unlikely]] {
    if (w.drop) w.drop(w.state);
    return refused;
  }
  return through(call::host_function, [&] { return inner_->host_function(device, s, w); });
}
status faulty::enqueue(int device, stream_handle s, std::span<touch const> touches, work w) {
  if (status const refused = refusal(call::enqueue, device); !refused.ok()) [[unlikely]] {
    if (w.drop) w.drop(w.state);
    return refused;
  }
  return through(call::enqueue, [&] { return inner_->enqueue(device, s, touches, w); });
}
status faulty::begin_capture(int device, stream_handle s, capture_mode m) {
  return WEIR_PASS(begin_capture, device, device, s, m);
}
void faulty::recheck() {  // never refused; the watcher sees it as call::any
  static_cast<void>(through(call::any, [&] { return inner_->recheck(), true; }));
}
// The only refused call that still takes effect: a failed end also ends the capture (driver.h).
result<graph_handle> faulty::end_capture(int device, stream_handle s) {
  status const refused = refusal(call::end_capture, device);
  auto const kept = through(call::end_capture, [&] { return inner_->end_capture(device, s); });
  if (refused.ok()) return kept;
  if (kept.ok()) static_cast<void>(through(call::destroy_graph, [&] { return inner_->destroy_graph(kept.value); }));
  return {refused};
}
result<executable_handle> faulty::instantiate(int device, graph_handle g) {
  return WEIR_PASS(instantiate, device, device, g);
}
status faulty::launch_graph(int device, stream_handle s, executable_handle e) {
  return WEIR_PASS(launch_graph, device, device, s, e);
}
status faulty::destroy_graph(graph_handle g) { return WEIR_PASS(destroy_graph, no_device, g); }
status faulty::destroy_executable(executable_handle e) { return WEIR_PASS(destroy_executable, no_device, e); }
result<gate_handle> faulty::hold(int device, stream_handle s) { return WEIR_PASS(hold, device, device, s); }
status faulty::open_gate(gate_handle g) { return WEIR_PASS(open_gate, no_device, g); }

}  // namespace weir::driver
