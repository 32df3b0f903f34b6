// Captures and graphs on CUDA.
// Threads: any. The books are never locked during a driver call.
#include "runtime/driver/cuda/cuda_driver.h"

namespace weir::driver::cuda {
namespace {
constexpr status not_permitted{code::not_permitted, 0};

CUstreamCaptureMode in_cuda(capture_mode m) noexcept {
  switch (m) {
    case capture_mode::global: return CU_STREAM_CAPTURE_MODE_GLOBAL;
    case capture_mode::this_thread: return CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    case capture_mode::relaxed: break;
  }
  return CU_STREAM_CAPTURE_MODE_RELAXED;
}
}  // namespace

// Refuses a call for which CUDA would spoil a capture.
status cuda_driver::refuse_captured(int device, stream_handle s) {
  auto const captured = capturing(device, s);
  if (!captured.ok()) return captured.is;
  return captured.value ? not_permitted : status{};
}

status cuda_driver::begin_capture(int device, stream_handle s, capture_mode mode) {
  if (status const said = refuse_captured(device, s); !said.ok()) return said;
  if (!stream_of(s) || s == stream_handle::legacy) return not_permitted;
  call in(*this, device, call::mode::enqueues);
  if (in.refused()) return in.refusal();
  return in.answer(api_.cuStreamBeginCapture(stream_of(s), in_cuda(mode)));
}

result<graph_handle> cuda_driver::end_capture(int device, stream_handle s) {
  auto const captured = capturing(device, s);
  if (!captured.ok()) return {captured.is};
  if (!captured.value) return {not_permitted};
  auto const id = graphs_.lock()->add_graph();
  call in(*this, device, call::mode::enqueues);
  CUgraph made = nullptr;
  status said = in.refusal();
  if (!in.refused()) said = in.answer(api_.cuStreamEndCapture(stream_of(s), &made));
  auto g = graphs_.lock();
  if (said.ok() && made) {
    g->kept.find(id)->second = made;
    return {{}, static_cast<graph_handle>(id)};
  }
  g->kept.erase(id);
  return {said.ok() ? not_permitted : said};
}

result<executable_handle> cuda_driver::instantiate(int device, graph_handle handle) {
  call in(*this, device, call::mode::asks);
  if (in.refused()) return {in.refusal()};
  CUgraph from = nullptr;
  std::uint64_t id = 0;
  {
    auto g = graphs_.lock();
    auto const found = g->kept.find(static_cast<std::uint64_t>(handle));
    if (found == g->kept.end() || !found->second) return {invalid};
    from = found->second;
    id = g->add_executable(device);
  }
  CUgraphExec made = nullptr;
  status const said = in.answer(api_.cuGraphInstantiateWithFlags(&made, from, 0));
  auto g = graphs_.lock();
  if (!said.ok()) {
    g->executables.erase(id);
    return {said};
  }
  g->executables.find(id)->second.made = made;
  return {{}, static_cast<executable_handle>(id)};
}

status cuda_driver::launch_graph(int device, stream_handle s, executable_handle handle) {
  if (status const said = refuse_captured(device, s); !said.ok()) return said;
  call in(*this, device, call::mode::enqueues);
  if (in.refused()) return in.refusal();
  CUgraphExec what = nullptr;
  {
    auto g = graphs_.lock();
    auto const found = g->executables.find(static_cast<std::uint64_t>(handle));
    if (found == g->executables.end() || !found->second.made || found->second.device != device) return invalid;
    what = found->second.made;
  }
  return in.answer(api_.cuGraphLaunch(what, stream_of(s)));
}

status cuda_driver::destroy_graph(graph_handle handle) {
  if (status const may = may_call(); !may.ok()) return may;
  CUgraph gone = nullptr;
  {
    auto g = graphs_.lock();
    auto const found = g->kept.find(static_cast<std::uint64_t>(handle));
    if (found == g->kept.end() || !found->second) return invalid;
    gone = found->second;
    g->kept.erase(found);
  }
  relaxed const mode(api_);
  return to_status(api_.cuGraphDestroy(gone));
}

status cuda_driver::destroy_executable(executable_handle handle) {
  if (status const may = may_call(); !may.ok()) return may;
  graphs::executable gone;
  {
    auto g = graphs_.lock();
    auto const found = g->executables.find(static_cast<std::uint64_t>(handle));
    if (found == g->executables.end() || !found->second.made) return invalid;
    gone = found->second;
    g->executables.erase(found);
  }
  call in(*this, gone.device, call::mode::survives);
  if (in.refused()) return in.refusal();
  return in.answer(api_.cuGraphExecDestroy(gone.made));
}

}  // namespace weir::driver::cuda
