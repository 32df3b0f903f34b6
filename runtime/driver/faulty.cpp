// Counting calls, and refusing those that were ordered.
// Threads: as the seam.
#include "runtime/driver/faulty.h"

#include <algorithm>
#include <array>

namespace weir::driver {
namespace {

// Every call that can be refused: once here, as a name and as a number.
#define WEIR_SEAM_CALLS(X)                                                                                                  \
  X(info) X(open) X(memory) X(make_current) X(synchronize_device) X(peer)                                                   \
  X(reserve) X(unreserve) X(create) X(release) X(map) X(unmap) X(grant) X(create_segment) X(release_segment) X(pin)         \
  X(unpin) X(find)                                                                                                          \
  X(create_stream) X(destroy_stream) X(query_stream) X(synchronize_stream) X(capturing) X(adopt) X(native)                  \
  X(create_event) X(destroy_event) X(native_event) X(record) X(wait) X(query_event) X(synchronize_event) X(elapsed_ms)      \
  X(copy) X(copy_peer) X(fill) X(host_function) X(enqueue) X(hold) X(open_gate)

namespace number {
enum : std::size_t {
#define WEIR_NUMBER(name) name,
  WEIR_SEAM_CALLS(WEIR_NUMBER)
#undef WEIR_NUMBER
  any
};
}  // namespace number

constexpr std::array<std::string_view, number::any + 1> names{
#define WEIR_NAME(name) #name,
    WEIR_SEAM_CALLS(WEIR_NAME)
#undef WEIR_NAME
    "any"};

constexpr int no_device = -1;

}  // namespace

std::span<std::string_view const> faulty::call_names() noexcept { return names; }

bool faulty::fail_call(std::string_view call, std::uint64_t k, code with) {
  auto const found = std::find(names.begin(), names.end(), call);
  if (found == names.end() || k == 0 || with == code::ok) return false;
  auto orders = orders_.lock();
  orders->push_back({static_cast<std::size_t>(found - names.begin()), k, with});
  any_orders_.store(true);
  return true;
}

void faulty::forget_orders() {
  auto orders = orders_.lock();
  orders->clear();
  any_orders_.store(false);
}

inline status faulty::refusal(std::size_t call, int device) {
  calls_.fetch_add(1, base::memory_order_relaxed);
  if (!any_orders_.load(base::memory_order_acquire)) [[likely]] return {};
  return look_through_orders(call, device);
}

status faulty::look_through_orders(std::size_t call, int device) {
  status answer;
  {
    auto orders = orders_.lock();
    for (order& o : *orders) {
      if ((o.call == call || o.call == number::any) && --o.left == 0 && answer.ok()) answer = {o.with};
    }
    std::erase_if(*orders, [](order const& o) { return o.left == 0; });
    if (orders->empty()) any_orders_.store(false);
  }
  if (answer.what == code::lost && device != no_device) refused_as_lost(device);
  return answer;
}

#define WEIR_REFUSE(name, device) \
  if (status const refused = refusal(number::name, device); !refused.ok()) [[unlikely]] return {refused}
#define WEIR_REFUSE_STATUS(name, device) \
  if (status const refused = refusal(number::name, device); !refused.ok()) [[unlikely]] return refused

result<device_info> faulty::info(int device) { WEIR_REFUSE(info, device); return inner_->info(device); }
status faulty::open(int device) { WEIR_REFUSE_STATUS(open, device); return inner_->open(device); }
result<memory_info> faulty::memory(int device) { WEIR_REFUSE(memory, device); return inner_->memory(device); }
status faulty::make_current(int device) { WEIR_REFUSE_STATUS(make_current, device); return inner_->make_current(device); }
status faulty::synchronize_device(int device) { WEIR_REFUSE_STATUS(synchronize_device, device); return inner_->synchronize_device(device); }
result<peer_info> faulty::peer(int from, int to) { WEIR_REFUSE(peer, from); return inner_->peer(from, to); }
result<address> faulty::reserve(std::size_t bytes, std::size_t alignment) { WEIR_REFUSE(reserve, no_device); return inner_->reserve(bytes, alignment); }
status faulty::unreserve(address at, std::size_t bytes) { WEIR_REFUSE_STATUS(unreserve, no_device); return inner_->unreserve(at, bytes); }
result<memory_handle> faulty::create(int device, std::size_t bytes) { WEIR_REFUSE(create, device); return inner_->create(device, bytes); }
status faulty::release(memory_handle h) { WEIR_REFUSE_STATUS(release, no_device); return inner_->release(h); }
status faulty::map(address at, std::size_t bytes, memory_handle h) { WEIR_REFUSE_STATUS(map, no_device); return inner_->map(at, bytes, h); }
status faulty::unmap(address at, std::size_t bytes) { WEIR_REFUSE_STATUS(unmap, no_device); return inner_->unmap(at, bytes); }
status faulty::grant(address at, std::size_t bytes, int device) { WEIR_REFUSE_STATUS(grant, device); return inner_->grant(at, bytes, device); }
result<address> faulty::create_segment(int device, std::size_t bytes) { WEIR_REFUSE(create_segment, device); return inner_->create_segment(device, bytes); }
status faulty::release_segment(int device, address at) { WEIR_REFUSE_STATUS(release_segment, device); return inner_->release_segment(device, at); }
status faulty::pin(void* host, std::size_t bytes) { WEIR_REFUSE_STATUS(pin, no_device); return inner_->pin(host, bytes); }
status faulty::unpin(void* host) { WEIR_REFUSE_STATUS(unpin, no_device); return inner_->unpin(host); }
result<place> faulty::find(void const* at) { WEIR_REFUSE(find, no_device); return inner_->find(at); }

result<stream_handle> faulty::create_stream(int device, stream_kind k, int priority) { WEIR_REFUSE(create_stream, device); return inner_->create_stream(device, k, priority); }
status faulty::destroy_stream(int device, stream_handle s) { WEIR_REFUSE_STATUS(destroy_stream, device); return inner_->destroy_stream(device, s); }
status faulty::query_stream(int device, stream_handle s) { WEIR_REFUSE_STATUS(query_stream, device); return inner_->query_stream(device, s); }
status faulty::synchronize_stream(int device, stream_handle s) { WEIR_REFUSE_STATUS(synchronize_stream, device); return inner_->synchronize_stream(device, s); }
result<bool> faulty::capturing(int device, stream_handle s) { WEIR_REFUSE(capturing, device); return inner_->capturing(device, s); }
result<stream_handle> faulty::adopt(int device, CUstream_st* s) { WEIR_REFUSE(adopt, device); return inner_->adopt(device, s); }
result<CUstream_st*> faulty::native(int device, stream_handle s) { WEIR_REFUSE(native, device); return inner_->native(device, s); }
result<event_handle> faulty::create_event(int device, event_kind k) { WEIR_REFUSE(create_event, device); return inner_->create_event(device, k); }
status faulty::destroy_event(int device, event_handle e) { WEIR_REFUSE_STATUS(destroy_event, device); return inner_->destroy_event(device, e); }
result<CUevent_st*> faulty::native_event(event_handle e) { WEIR_REFUSE(native_event, no_device); return inner_->native_event(e); }
status faulty::record(int device, stream_handle s, event_handle e) { WEIR_REFUSE_STATUS(record, device); return inner_->record(device, s, e); }
status faulty::wait(int device, stream_handle s, event_handle e) { WEIR_REFUSE_STATUS(wait, device); return inner_->wait(device, s, e); }
status faulty::query_event(event_handle e) { WEIR_REFUSE_STATUS(query_event, no_device); return inner_->query_event(e); }
status faulty::synchronize_event(event_handle e) { WEIR_REFUSE_STATUS(synchronize_event, no_device); return inner_->synchronize_event(e); }
result<float> faulty::elapsed_ms(event_handle start, event_handle end) { WEIR_REFUSE(elapsed_ms, no_device); return inner_->elapsed_ms(start, end); }

status faulty::copy(int device, stream_handle s, void* dst, void const* src, std::size_t bytes) {
  WEIR_REFUSE_STATUS(copy, device);
  return inner_->copy(device, s, dst, src, bytes);
}
status faulty::copy_peer(int device, stream_handle s, void* dst, int dst_device, void const* src, int src_device, std::size_t bytes) {
  WEIR_REFUSE_STATUS(copy_peer, device);
  return inner_->copy_peer(device, s, dst, dst_device, src, src_device, bytes);
}
status faulty::fill(int device, stream_handle s, void* dst, std::uint32_t pattern, int pattern_bytes, std::size_t count) {
  WEIR_REFUSE_STATUS(fill, device);
  return inner_->fill(device, s, dst, pattern, pattern_bytes, count);
}
status faulty::host_function(int device, stream_handle s, work w) {
  if (status const refused = refusal(number::host_function, device); !refused.ok()) [[unlikely]] {
    if (w.drop) w.drop(w.state);
    return refused;
  }
  return inner_->host_function(device, s, w);
}
status faulty::enqueue(int device, stream_handle s, std::span<touch const> touches, work w) {
  if (status const refused = refusal(number::enqueue, device); !refused.ok()) [[unlikely]] {
    if (w.drop) w.drop(w.state);
    return refused;
  }
  return inner_->enqueue(device, s, touches, w);
}
result<gate_handle> faulty::hold(int device, stream_handle s) { WEIR_REFUSE(hold, device); return inner_->hold(device, s); }
status faulty::open_gate(gate_handle g) { WEIR_REFUSE_STATUS(open_gate, no_device); return inner_->open_gate(g); }

}  // namespace weir::driver
