// Counts calls and refuses those that were ordered.
// Threads: as the driver interface.
#include "simulator/faults/fault_injector.h"

#include <algorithm>

namespace weir::driver {

std::uint64_t fault_injector::refuse(order o) {
  if (o.k == 0 || o.with == code::ok)
    return 0;
  auto orders = orders_.lock();
  orders->push_back({next_number_, o});
  any_orders_.store(true);
  return next_number_++;
}

std::uint64_t fault_injector::fail_call(std::string_view name, std::uint64_t k, code with) {
  auto const found = std::find(weir::driver::call_names.begin(), weir::driver::call_names.end(), name);
  if (found == weir::driver::call_names.end())
    return 0;
  return refuse({static_cast<call>(found - weir::driver::call_names.begin()), k, with, 0, false});
}

bool fault_injector::cancel(std::uint64_t number) {
  auto orders = orders_.lock();
  auto const gone = std::erase_if(*orders, [&](standing const& s) { return s.number == number; });
  any_orders_.store(!orders->empty());
  return gone != 0;
}

void fault_injector::forget_orders() {
  auto orders = orders_.lock();
  orders->clear();
  any_orders_.store(false);
}

status fault_injector::look_through_orders(call c, call_subject subject) {
  status answer;
  {
    auto orders = orders_.lock();
    for (standing& s : *orders) {
      fault_injector::order& o = s.order;
      if (o.of != c && o.of != call::any)
        continue;
      if (o.k > 0 && --o.k > 0)
        continue;
      // It stays for the next call that no other order refuses, and whose contract allows the code.
      if (!answer.ok() || (o.by_contract && !contract_of(c).has(o.with)))
        continue;
      answer = {o.with};
      if (o.more == 0)
        s.number = 0;  // used up
      else if (o.more != without_end)
        --o.more;
    }
    std::erase_if(*orders, [](standing const& s) { return s.number == 0; });
    if (orders->empty())
      any_orders_.store(false);
  }
  if (answer.ok())
    return answer;
  if (watcher* const w = watcher_.load(base::memory_order_acquire))
    w->refused(c, answer.what);
  if (answer.what == code::lost) {
    int const device = subject.event == event_handle::none ? subject.device : device_of(subject.event);
    if (device != no_device)
      refused_as_lost(device);
  }
  return answer;
}

// A refused call drops the work that it was given.
template <class Behind>
status fault_injector::pass_work(call c, int device, work const& w, Behind&& behind) {
  if (status const refused = refusal(c, device); !refused.ok()) [[unlikely]] {
    if (w.drop)
      w.drop(w.state);
    return refused;
  }
  return with_work(c, w, behind);
}

// A call that throws leaves the work to its caller.
template <class Behind>
status fault_injector::with_work(call c, work const& w, Behind&& behind) {
  return through(c, [&] {
    try {
      return behind();
    } catch (std::bad_alloc const&) {
      if (w.drop)
        w.drop(w.state);
      throw;
    }
  });
}

status fault_injector::host_function(int device, stream_handle s, work w) {
  return pass_work(call::host_function, device, w, [&] { return inner_->host_function(device, s, w); });
}
status fault_injector::enqueue(int device, stream_handle s, std::span<touch const> touches, work w) {
  return pass_work(call::enqueue, device, w, [&] { return inner_->enqueue(device, s, touches, w); });
}
// Where not_permitted says that the capture is spoiled, it is: a query inside spoils it.
status fault_injector::spoil_as_said(status const& refused, int device, stream_handle s) {
  if (refused.what == code::not_permitted)
    static_cast<void>(through(call::query_stream, [&] { return inner_->query_stream(device, s); }));
  return refused;
}
result<std::uint64_t> fault_injector::capture_of(int device, stream_handle s) {
  if (status const refused = refusal(call::capture_of, device); !refused.ok()) [[unlikely]]
    return {spoil_as_said(refused, device, s)};
  return through(call::capture_of, [&] { return inner_->capture_of(device, s); });
}
status fault_injector::keep_with_graph(int device, stream_handle s, void (*drop)(void*), void* state) {
  if (status const refused = refusal(call::keep_with_graph, device); !refused.ok()) [[unlikely]] {
    drop(state);
    return spoil_as_said(refused, device, s);
  }
  return with_work(call::keep_with_graph, {nullptr, drop, state},
                   [&] { return inner_->keep_with_graph(device, s, drop, state); });
}
void fault_injector::recheck() {  // never refused; the watcher sees it as call::any
  static_cast<void>(through(call::any, [&] { return inner_->recheck(), status(); }));
}
// The only refused call that still takes effect: a failed end also ends the capture (driver.h).
result<graph_handle> fault_injector::end_capture(int device, stream_handle s) {
  status const refused = refusal(call::end_capture, device);
  auto const kept = through(call::end_capture, [&] { return inner_->end_capture(device, s); });
  if (refused.ok())
    return kept;
  if (kept.ok())
    static_cast<void>(through(call::destroy_graph, [&] { return inner_->destroy_graph(kept.value); }));
  return {refused};
}

}  // namespace weir::driver
