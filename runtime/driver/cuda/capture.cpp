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
  if (!captured.ok())
    return captured.is;
  return captured.value ? not_permitted : status{};
}

status cuda_driver::begin_capture(int device, stream_handle s, capture_mode mode) {
  if (status const said = refuse_captured(device, s); !said.ok())
    return said;
  if (!stream_of(s) || s == stream_handle::legacy)
    return not_permitted;
  call in(*this, device, call::mode::enqueues);
  if (in.refused())
    return in.refusal();
  return in.answer(api_.cuStreamBeginCapture(stream_of(s), in_cuda(mode)));
}

result<graph_handle> cuda_driver::end_capture(int device, stream_handle s) {
  auto const captured = capturing(device, s);
  if (!captured.ok())
    return {captured.is};
  if (!captured.value)
    return {not_permitted};
  // Entered before the call, so that nothing can fail after it.
  auto const id = graphs_.lock()->add_graph();
  call in(*this, device, call::mode::enqueues);
  CUgraph made = nullptr;
  status said = in.refusal();
  if (!in.refused())
    said = in.answer(api_.cuStreamEndCapture(stream_of(s), &made));
  auto g = graphs_.lock();
  if (said.ok() && made) {
    g->kept.find(id)->second = made;
    return {{}, static_cast<graph_handle>(id)};
  }
  g->kept.erase(id);
  return {said.ok() ? not_permitted : said};
}

result<std::uint64_t> cuda_driver::capture_of(int device, stream_handle s) {
  call in(*this, device, call::mode::enqueues);
  if (in.refused())
    return {in.refusal()};
  CUstreamCaptureStatus is = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t number = 0;
  CUresult const r = api_.cuStreamGetCaptureInfo(stream_of(s), &is, &number, nullptr, nullptr, nullptr);
  if (r == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
    return {{}, 0};  // the legacy stream, while another one is captured
  if (r == CUDA_SUCCESS && is == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
    return {not_permitted};
  // CUDA counts captures from 0.
  return {in.answer(r), is == CU_STREAM_CAPTURE_STATUS_ACTIVE ? std::uint64_t{number} + 1 : 0};
}

status cuda_driver::keep_with_graph(int device, stream_handle s, void (*drop)(void*), void* state) {
  call in(*this, device, call::mode::enqueues);
  status said = in.refusal();
  CUgraph graph = nullptr;
  if (said.ok()) {
    CUstreamCaptureStatus is = CU_STREAM_CAPTURE_STATUS_NONE;
    said = in.answer(api_.cuStreamGetCaptureInfo(stream_of(s), &is, nullptr, &graph, nullptr, nullptr));
    if (said.ok() && is != CU_STREAM_CAPTURE_STATUS_ACTIVE)
      said = not_permitted;
  }
  CUuserObject object = nullptr;
  if (said.ok())
    said = in.answer(api_.cuUserObjectCreate(&object, state, drop, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  if (!said.ok()) {
    drop(state);
    return said;
  }
  // The object owns the state from here on: its end calls drop.
  said = in.answer(api_.cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
  if (!said.ok())
    api_.cuUserObjectRelease(object, 1);
  return said;
}

status cuda_driver::update(int device, executable_handle which, graph_handle handle) {
  call in(*this, device, call::mode::asks);
  if (in.refused())
    return in.refusal();
  CUgraph from = nullptr;
  CUgraphExec to = nullptr;
  {
    auto g = graphs_.lock();
    auto const graph = g->kept.find(static_cast<std::uint64_t>(handle));
    auto const executable = g->executables.find(static_cast<std::uint64_t>(which));
    if (graph == g->kept.end() || !graph->second)
      return invalid;
    if (executable == g->executables.end() || !executable->second.made || executable->second.device != device)
      return invalid;
    from = graph->second;
    to = executable->second.made;
  }
  CUgraphExecUpdateResultInfo why{};
  CUresult const r = api_.cuGraphExecUpdate(to, from, &why);
  if (r == CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE)
    return {code::not_supported, static_cast<int>(r)};
  return in.answer(r);
}

result<executable_handle> cuda_driver::instantiate(int device, graph_handle handle) {
  call in(*this, device, call::mode::asks);
  if (in.refused())
    return {in.refusal()};
  CUgraph from = nullptr;
  std::uint64_t id = 0;
  {
    auto g = graphs_.lock();
    auto const found = g->kept.find(static_cast<std::uint64_t>(handle));
    if (found == g->kept.end() || !found->second)
      return {invalid};
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
  if (status const said = refuse_captured(device, s); !said.ok())
    return said;
  call in(*this, device, call::mode::enqueues);
  if (in.refused())
    return in.refusal();
  CUgraphExec what = nullptr;
  {
    auto g = graphs_.lock();
    auto const found = g->executables.find(static_cast<std::uint64_t>(handle));
    if (found == g->executables.end() || !found->second.made || found->second.device != device)
      return invalid;
    what = found->second.made;
  }
  return in.answer(api_.cuGraphLaunch(what, stream_of(s)));
}

status cuda_driver::destroy_graph(graph_handle handle) {
  if (status const may = may_call(); !may.ok())
    return may;
  CUgraph gone = nullptr;
  {
    auto g = graphs_.lock();
    auto const found = g->kept.find(static_cast<std::uint64_t>(handle));
    if (found == g->kept.end() || !found->second)
      return invalid;
    gone = found->second;
    g->kept.erase(found);
  }
  relaxed const mode(api_);
  return to_status(api_.cuGraphDestroy(gone));
}

status cuda_driver::destroy_executable(executable_handle handle) {
  if (status const may = may_call(); !may.ok())
    return may;
  graphs::executable gone;
  {
    auto g = graphs_.lock();
    auto const found = g->executables.find(static_cast<std::uint64_t>(handle));
    if (found == g->executables.end() || !found->second.made)
      return invalid;
    gone = found->second;
    g->executables.erase(found);
  }
  call in(*this, gone.device, call::mode::survives);
  if (in.refused())
    return in.refusal();
  return in.answer(api_.cuGraphExecDestroy(gone.made));
}

}  // namespace weir::driver::cuda
