// Captures where CUDA's documentation is silent: what spoils one, and its events' later state.
// Threads: one, and others that are joined at once.
#include "tests/conformance/probe.h"

namespace weir::conformance::probe {
namespace {

struct captured {  // a capture on g.s with an event inside and one outside
  gpu const& g;
  CUevent inside = nullptr, outside = nullptr, never = nullptr;
  explicit captured(gpu const& on, CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED) : g(on) {
    g.use();
    for (CUevent* e : {&inside, &outside, &never})
      MUST(cu->cuEventCreate(e, CU_EVENT_DISABLE_TIMING));
    MUST(cu->cuEventRecord(outside, g.other));
    MUST(cu->cuStreamSynchronize(g.other));
    MUST(cu->cuStreamBeginCapture(g.s, mode));
    launch_spin(g.s, 1);
    MUST(cu->cuEventRecord(inside, g.s));
  }
  CUgraph kept = nullptr;
  CUresult end() { return cu->cuStreamEndCapture(g.s, &kept); }
};

CUstreamCaptureMode relaxed_mode() {
  return CU_STREAM_CAPTURE_MODE_RELAXED;
}

std::string state(CUstream s) {
  CUstreamCaptureStatus is{};
  CUresult const r = cu->cuStreamIsCapturing(s, &is);
  if (r != CUDA_SUCCESS)
    return number(r);
  return is == CU_STREAM_CAPTURE_STATUS_NONE ? "none" : is == CU_STREAM_CAPTURE_STATUS_ACTIVE ? "active" : "spoiled";
}

void ask(gpu const& g, char const* what, std::function<CUresult(captured&)> const& call) {
  CUstreamCaptureMode mode = relaxed_mode();
  MUST(cu->cuThreadExchangeStreamCaptureMode(&mode));
  captured c(g);
  CUresult const r = call(c);
  std::string const then = state(g.s);
  say(what, number(r) + ", then the capture is " + then + ", its end answers " +
                (then == "none" ? std::string("nothing") : number(c.end())));
  MUST(cu->cuThreadExchangeStreamCaptureMode(&mode));
}

}  // namespace

void captures() {
  gpu const g(0);
  launch_spin(g.s, 1);
  MUST(cu->cuCtxSynchronize());
  CUstream blocking = nullptr;
  MUST(cu->cuStreamCreateWithPriority(&blocking, CU_STREAM_DEFAULT, 0));
  say("all calls below are made in relaxed mode, beside a relaxed capture of a non-blocking stream", "");
  ask(g, "cuCtxSynchronize", [&](captured&) { return cu->cuCtxSynchronize(); });
  ask(g, "cuStreamQuery of it", [&](captured& c) { return cu->cuStreamQuery(c.g.s); });
  ask(g, "cuStreamSynchronize of it", [&](captured& c) { return cu->cuStreamSynchronize(c.g.s); });
  ask(g, "cuEventQuery of an event recorded inside", [&](captured& c) { return cu->cuEventQuery(c.inside); });
  ask(g, "cuEventSynchronize of one", [&](captured& c) { return cu->cuEventSynchronize(c.inside); });
  ask(g, "cuEventElapsedTime of one", [&](captured& c) {
    float ms = 0;
    return cu->cuEventElapsedTime(&ms, c.inside, c.inside);
  });
  ask(g, "cuEventDestroy of one", [&](captured& c) { return cu->cuEventDestroy(c.inside); });
  ask(g, "cuEventRecord of one, on another stream",
      [&](captured& c) { return cu->cuEventRecord(c.inside, c.g.other); });
  ask(g, "cuStreamWaitEvent inside, for a complete outside event",
      [&](captured& c) { return cu->cuStreamWaitEvent(c.g.s, c.outside, 0); });
  ask(g, "cuStreamWaitEvent inside, for one never recorded",
      [&](captured& c) { return cu->cuStreamWaitEvent(c.g.s, c.never, 0); });
  ask(g, "cuStreamWaitEvent of another stream, with no work after it, not joined",
      [&](captured& c) { return cu->cuStreamWaitEvent(c.g.other, c.inside, 0); });
  ask(g, "the same on the legacy stream",
      [&](captured& c) { return cu->cuStreamWaitEvent(CU_STREAM_LEGACY, c.inside, 0); });
  ask(g, "cuEventRecord on the legacy stream",
      [&](captured& c) { return cu->cuEventRecord(c.outside, CU_STREAM_LEGACY); });
  ask(g, "cuStreamBeginCapture again", [&](captured& c) { return cu->cuStreamBeginCapture(c.g.s, relaxed_mode()); });
  ask(g, "cuStreamBeginCapture of the legacy stream",
      [&](captured&) { return cu->cuStreamBeginCapture(CU_STREAM_LEGACY, relaxed_mode()); });
  ask(g, "cuStreamEndCapture of a stream that is not captured", [&](captured& c) {
    CUgraph k = nullptr;
    return cu->cuStreamEndCapture(c.g.other, &k);
  });
  ask(g, "cuStreamEndCapture of a joined stream", [&](captured& c) {
    MUST(cu->cuStreamWaitEvent(c.g.other, c.inside, 0));
    CUgraph k = nullptr;
    return cu->cuStreamEndCapture(c.g.other, &k);
  });
  ask(g, "cuMemFree of unused memory", [&](captured&) {
    CUdeviceptr p = 0;
    MUST(cu->cuMemAlloc(&p, page));
    return cu->cuMemFree(p);
  });
  ask(g, "cuMemHostRegister and Unregister", [&](captured&) {
    void* const h = host_memory(page);
    MUST(cu->cuMemHostRegister(h, page, CU_MEMHOSTREGISTER_PORTABLE));
    return cu->cuMemHostUnregister(h);
  });
  ask(g, "cuLaunchHostFunc inside", [&](captured& c) {
    return cu->cuLaunchHostFunc(
        c.g.s, [](void*) {}, nullptr);
  });
  ask(g, "cuStreamDestroy of a joined stream", [&](captured& c) {
    CUstream const t = c.g.stream();
    MUST(cu->cuStreamWaitEvent(t, c.inside, 0));
    return cu->cuStreamDestroy(t);
  });
  {
    captured c(g, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    CUresult r = CUDA_SUCCESS;
    std::thread([&] {
      cu->cuCtxSetCurrent(g.context);
      r = c.end();
    }).join();
    std::string const then = state(g.s);
    say("the end on another thread, of a thread-local capture",
        number(r) + ", then it is " + then + ", its end answers " + (then == "none" ? "nothing" : number(c.end())));
  }
  captured c(g);
  MUST(c.end());
  say("after the end: cuEventQuery of an event recorded inside", number(cu->cuEventQuery(c.inside)));
  say("after the end: cuStreamWaitEvent for it", number(cu->cuStreamWaitEvent(g.other, c.inside, 0)));
  captured d(g);
  say("inside another capture: cuStreamWaitEvent for it",
      number(cu->cuStreamWaitEvent(g.s, c.inside, 0)) + ", then that is " + state(g.s));
  d.end();
  CUgraphExec once = nullptr;
  MUST(cu->cuGraphInstantiateWithFlags(&once, c.kept, 0));
  held h(g, g.other);
  MUST(cu->cuGraphLaunch(once, g.other));
  waits("cuGraphExecDestroy of a graph that is held", g, h, [&] { return cu->cuGraphExecDestroy(once); });
  MUST(cu->cuCtxSynchronize());
  held b(g, blocking);
  launch_spin(blocking, 1);
  launch_spin(reinterpret_cast<CUstream>(CU_STREAM_LEGACY), 1);
  say("cuStreamQuery of the legacy stream behind a held blocking stream", number(cu->cuStreamQuery(CU_STREAM_LEGACY)));
  waits("cuStreamSynchronize of the legacy stream behind a held blocking stream", g, b,
        [&] { return cu->cuStreamSynchronize(CU_STREAM_LEGACY); });
  MUST(cu->cuCtxSynchronize());
  held again(g, blocking);
  launch_spin(blocking, 1);
  waits("the same when the legacy stream was given nothing after it", g, again,
        [&] { return cu->cuStreamSynchronize(CU_STREAM_LEGACY); });
}

}  // namespace weir::conformance::probe
