// The checker's calls on captures and graphs.
// Threads: as checked.h says.
#include "runtime/base/process.h"
#include "runtime/driver/check/checked.h"

namespace weir::driver::check {

status checked::begin_capture(int device, stream_handle s, capture_mode mode) {
  status const is = inner_->begin_capture(device, s, mode);
  if (!is.ok()) return is;
  auto const known = judge_.lock();
  known->captured.begin(known->order.find(device, s));
  return is;
}

result<graph_handle> checked::end_capture(int device, stream_handle s) {
  auto const r = inner_->end_capture(device, s);
  if (process_was_forked()) return r;
  if (!r.ok()) {  // spoiled, and its streams are free; or the wrong stream or thread, and they are not
    auto const still = inner_->capturing(device, s);
    if (!still.ok() || still.value) return r;
  }
  auto const known = judge_.lock();
  auto uses = known->captured.end(known->order.find(device, s));
  if (r.ok() && uses) known->captured.graphs[static_cast<std::uint64_t>(r.value)] = std::move(uses);
  return r;
}

result<executable_handle> checked::instantiate(int device, graph_handle g) {
  auto const r = inner_->instantiate(device, g);
  if (!r.ok()) return r;
  auto const known = judge_.lock();
  if (auto const found = known->captured.graphs.find(static_cast<std::uint64_t>(g)); found != known->captured.graphs.end()) {
    known->captured.executables[static_cast<std::uint64_t>(r.value)] = found->second;
  }
  return r;
}

status checked::launch_graph(int device, stream_handle s, executable_handle x) {
  moment const now = before(device, s);
  std::shared_ptr<captures::uses> uses;
  if (now.at.stream) {
    auto const known = judge_.lock();
    if (auto const found = known->captured.executables.find(static_cast<std::uint64_t>(x)); found != known->captured.executables.end()) uses = found->second;
  }
  return after(inner_->launch_graph(device, s, x), device, now, uses ? std::span<range const>(*uses) : std::span<range const>(), "graph launch");
}

status checked::destroy_graph(graph_handle g) {
  if (!process_was_forked()) judge_.lock()->captured.graphs.erase(static_cast<std::uint64_t>(g));
  return inner_->destroy_graph(g);
}

status checked::destroy_executable(executable_handle x) {
  if (!process_was_forked()) judge_.lock()->captured.executables.erase(static_cast<std::uint64_t>(x));
  return inner_->destroy_executable(x);
}

}  // namespace weir::driver::check
