// A gate holds its stream; a record stores its stream's gates; a wait adds them.
// Threads: as gatekeeper.h says.
#include "tests/soak/gatekeeper.h"

namespace weir::soak {

gatekeeper::gates gatekeeper::still_closed(gates const& some) const {
  std::lock_guard const hold(book_);
  gates out;
  for (auto const g : some) {
    if (closed_.contains(g))
      out.insert(g);
  }
  return out;
}

gatekeeper::gates gatekeeper::gates_of(stream_key s) const {
  gates all;
  {
    std::lock_guard const hold(book_);
    if (auto const found = behind_.find(s); found != behind_.end())
      all = found->second;
  }
  return still_closed(all);
}

std::size_t gatekeeper::closed() const {
  std::lock_guard const hold(book_);
  return closed_.size();
}

void gatekeeper::open_all() {
  gates all;
  {
    std::lock_guard const hold(book_);
    all = closed_;
  }
  for (auto const g : all)
    open_gate(g);
}

void gatekeeper::host_waits_now() {
  host_waits_.fetch_add(1);
  if (!keep_closed_.load())
    open_all();
}

weir::driver::result<weir::driver::gate_handle> gatekeeper::hold(int device, weir::driver::stream_handle s) {
  auto const made = crooked::hold(device, s);
  if (!made.ok())
    return made;
  std::lock_guard const hold(book_);
  closed_.insert(made.value);
  behind_[{device, s}].insert(made.value);
  return made;
}

weir::driver::status gatekeeper::open_gate(weir::driver::gate_handle g) {
  auto const said = crooked::open_gate(g);
  std::lock_guard const hold(book_);
  closed_.erase(g);
  return said;
}

weir::driver::status gatekeeper::record(int device, weir::driver::stream_handle s, weir::driver::event_handle e) {
  auto now = gates_of({device, s});
  auto const said = crooked::record(device, s, e);
  std::lock_guard const hold(book_);
  if (said.ok())
    recorded_[e] = std::move(now);
  return said;
}

weir::driver::status gatekeeper::wait(int device, weir::driver::stream_handle s, weir::driver::event_handle e) {
  auto const said = crooked::wait(device, s, e);
  std::lock_guard const hold(book_);
  if (said.ok())
    behind_[{device, s}].insert(recorded_[e].begin(), recorded_[e].end());
  return said;
}

weir::driver::status gatekeeper::synchronize_event(weir::driver::event_handle e) {
  host_waits_now();
  return crooked::synchronize_event(e);
}
weir::driver::status gatekeeper::synchronize_stream(int device, weir::driver::stream_handle s) {
  host_waits_now();
  return crooked::synchronize_stream(device, s);
}
weir::driver::status gatekeeper::synchronize_device(int device) {
  host_waits_now();
  return crooked::synchronize_device(device);
}
weir::driver::status gatekeeper::unpin(void* host) {
  host_waits_now();
  return crooked::unpin(host);
}
weir::driver::status gatekeeper::release_segment(int device, weir::driver::address at) {
  host_waits_now();
  return crooked::release_segment(device, at);
}

}  // namespace weir::soak
