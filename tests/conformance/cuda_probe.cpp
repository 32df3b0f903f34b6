// Prints CUDA's behaviour where its documentation is silent, to correct the simulated machine.
// Threads: one, and one more for calls that may block.
// Each group of questions runs in its own process, because some of them lose a GPU.
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#include "tests/conformance/probe.h"

extern char** environ;
namespace {
using namespace weir::conformance;
using namespace weir::conformance::probe;

void unmap_unused() {
  gpu const g(0);
  pages const touched(0), untouched(0);
  held h(g, g.s);
  launch_store(g.s, touched.words(), 1);
  waits("unmap of a range that no pending work uses, a stream of the device held", g, h,
        [&] { return cu->cuMemUnmap(untouched.at, page); });
  say("  then the held stream", number(cu->cuStreamSynchronize(g.s)));
}

void unmap_used() {
  gpu const g(0);
  pages const p(0);
  held h(g, g.s);
  launch_store(g.s, p.words(), 1);
  waits("unmap of a range that held work will write, nothing mapped there", g, h,
        [&] { return cu->cuMemUnmap(p.at, page); });
  say("  then the stream", number(cu->cuStreamSynchronize(g.s)));
}

void unmap_remap() {
  gpu const g(0);
  pages const p(0);
  auto const fresh = pages::make(0);
  held h(g, g.s);
  launch_store(g.s, p.words(), 5);
  bool const waited = waits("unmap under held work, another page mapped there before it runs", g, h, [&] {
    CUresult r = cu->cuMemUnmap(p.at, page);
    if (r == CUDA_SUCCESS)
      r = cu->cuMemMap(p.at, page, 0, fresh, 0);
    if (r == CUDA_SUCCESS)
      r = pages::grant(p.at, 0);
    return r;
  });
  say("  then the stream", number(cu->cuStreamSynchronize(g.s)));
  say("  the new page holds", waited ? "(waited)" : word_at(g, p.words()) == 5 ? "the store" : "not the store");
}

void blocking() {
  gpu const g(0);
  pages const work(0), spare(0);
  auto const with_held = [&](char const* question, std::function<CUresult()> const& call) {
    held h(g, g.s);
    launch_store(g.s, work.words(), 1);
    waits(question, g, h, call);
    MUST(cu->cuStreamSynchronize(g.s));
  };
  CUdeviceptr at = 0, plain = 0;
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp p{};
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUstream made = nullptr, blocking_stream = nullptr;
  CUevent e = nullptr;
  void* const host =
      ::mmap(nullptr, 64 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  with_held("cuMemAddressReserve", [&] { return cu->cuMemAddressReserve(&at, page, page, 0, 0); });
  with_held("cuMemCreate", [&] { return cu->cuMemCreate(&handle, page, &p, 0); });
  with_held("cuMemMap", [&] { return cu->cuMemMap(at, page, 0, handle, 0); });
  with_held("cuMemSetAccess, own device", [&] { return pages::grant(at, 0); });
  if (devices() > 1) {
    gpu const peer(1);
    g.use();
    with_held("cuMemSetAccess, a peer", [&] { return pages::grant(at, 1); });
  }
  with_held("cuMemUnmap", [&] { return cu->cuMemUnmap(at, page); });
  with_held("cuMemRelease", [&] { return cu->cuMemRelease(handle); });
  with_held("cuMemAddressFree", [&] { return cu->cuMemAddressFree(at, page); });
  with_held("cuMemAlloc 64 MiB", [&] { return cu->cuMemAlloc(&plain, 32 * page); });
  with_held("cuMemFree", [&] { return cu->cuMemFree(plain); });
  with_held("cuMemHostRegister 128 MiB",
            [&] { return cu->cuMemHostRegister(host, 64 * page, CU_MEMHOSTREGISTER_PORTABLE); });
  with_held("cuMemHostUnregister", [&] { return cu->cuMemHostUnregister(host); });
  with_held("cuStreamCreate non-blocking",
            [&] { return cu->cuStreamCreateWithPriority(&made, CU_STREAM_NON_BLOCKING, 0); });
  with_held("cuStreamCreate blocking",
            [&] { return cu->cuStreamCreateWithPriority(&blocking_stream, CU_STREAM_DEFAULT, 0); });
  with_held("cuStreamDestroy, idle", [&] { return cu->cuStreamDestroy(made); });
  with_held("cuEventCreate", [&] { return cu->cuEventCreate(&e, CU_EVENT_DISABLE_TIMING); });
  with_held("cuEventDestroy", [&] { return cu->cuEventDestroy(e); });
  with_held("cuMemGetInfo", [&] {
    std::size_t f = 0, t = 0;
    return cu->cuMemGetInfo(&f, &t);
  });
  with_held("cuLaunchHostFunc on another stream", [&] {
    return cu->cuLaunchHostFunc(
        g.other, [](void*) {}, nullptr);
  });
  {
    held h(g, g.s);
    launch_store(g.s, work.words(), 1);
    waits("cuStreamDestroy of the held stream itself", g, h, [&] { return cu->cuStreamDestroy(g.s); });
    MUST(cu->cuCtxSynchronize());
  }
}

void sticky() {
  gpu const g(0);
  bool const two = devices() > 1;
  gpu const* const b = two ? new gpu(1) : nullptr;
  g.use();
  pages const p(0);
  CUevent done = nullptr, pending = nullptr, fresh = nullptr, never = nullptr;
  for (CUevent* e : {&done, &pending, &never})
    MUST(cu->cuEventCreate(e, CU_EVENT_DISABLE_TIMING));
  CUstream witness = nullptr, spare = nullptr;
  MUST(cu->cuStreamCreateWithPriority(&witness, CU_STREAM_NON_BLOCKING, 0));
  MUST(cu->cuStreamCreateWithPriority(&spare, CU_STREAM_NON_BLOCKING, 0));
  void* const host = host_memory(page);
  MUST(cu->cuMemHostRegister(host, page, CU_MEMHOSTREGISTER_PORTABLE));
  void* const host2 = host_memory(page);
  CUdeviceptr plain = 0, at = 0;
  MUST(cu->cuMemAlloc(&plain, page));
  auto const handle = pages::make(0);
  MUST(cu->cuMemAddressReserve(&at, page, page, 0, 0));
  MUST(cu->cuEventRecord(done, g.s));
  MUST(cu->cuStreamSynchronize(g.s));
  held h(g, g.other);
  static std::atomic<int> host_functions{0};
  MUST(cu->cuLaunchHostFunc(
      g.other, [](void*) { ++host_functions; }, nullptr));
  MUST(cu->cuEventRecord(pending, g.other));
  if (two) {
    b->use();
    MUST(cu->cuStreamWaitEvent(b->other, pending, 0));
    g.use();
  }
  launch_crash(g.s);
  say("cuStreamSynchronize of the stream that crashed", number(cu->cuStreamSynchronize(g.s)));
  auto const hex = address_of(host);
  say("cuStreamQuery, a stream that never had work", number(cu->cuStreamQuery(witness)));
  say("cuStreamQuery, a held stream", number(cu->cuStreamQuery(g.other)));
  say("cuEventQuery, complete before", number(cu->cuEventQuery(done)));
  say("cuEventQuery, pending", number(cu->cuEventQuery(pending)));
  say("cuEventQuery, never recorded", number(cu->cuEventQuery(never)));
  say("cuEventSynchronize, pending", number(cu->cuEventSynchronize(pending)));
  say("cuEventCreate", number(cu->cuEventCreate(&fresh, CU_EVENT_DISABLE_TIMING)));
  say("cuEventRecord", number(cu->cuEventRecord(done, witness)));
  say("cuStreamWaitEvent", number(cu->cuStreamWaitEvent(witness, done, 0)));
  CUstream made = nullptr;
  say("cuStreamCreate", number(cu->cuStreamCreateWithPriority(&made, CU_STREAM_NON_BLOCKING, 0)));
  CUstreamCaptureStatus capture{};
  say("cuStreamIsCapturing", number(cu->cuStreamIsCapturing(witness, &capture)));
  say("cuMemcpyAsync", number(cu->cuMemcpyAsync(p.at, hex, 4, witness)));
  say("cuMemsetD32Async", number(cu->cuMemsetD32Async(p.at, 0, 1, witness)));
  say("cuLaunchHostFunc", number(cu->cuLaunchHostFunc(
                              witness, [](void*) {}, nullptr)));
  say("a kernel launch (runtime's number)", std::to_string(launch_store(witness, p.words(), 1)));
  say("cuCtxSynchronize", number(cu->cuCtxSynchronize()));
  std::size_t f = 0, t = 0;
  say("cuMemGetInfo", number(cu->cuMemGetInfo(&f, &t)));
  unsigned type = 0;
  CUpointer_attribute which = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
  void* into = &type;
  say("cuPointerGetAttributes", number(cu->cuPointerGetAttributes(1, &which, &into, p.at)));
  CUdeviceptr reserved = 0;
  say("cuMemAddressReserve", number(cu->cuMemAddressReserve(&reserved, page, page, 0, 0)));
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemGenericAllocationHandle more = 0;
  say("cuMemCreate", number(cu->cuMemCreate(&more, page, &prop, 0)));
  say("cuMemMap", number(cu->cuMemMap(at, page, 0, handle, 0)));
  say("cuMemSetAccess", number(pages::grant(p.at, 0)));
  say("cuMemUnmap", number(cu->cuMemUnmap(p.at, page)));
  say("cuMemRelease", number(cu->cuMemRelease(p.handle)));
  say("cuMemAddressFree", number(cu->cuMemAddressFree(p.at, page)));
  CUdeviceptr another = 0;
  say("cuMemAlloc", number(cu->cuMemAlloc(&another, page)));
  say("cuMemFree", number(cu->cuMemFree(plain)));
  say("cuMemHostUnregister", number(cu->cuMemHostUnregister(host)));
  say("cuMemHostRegister", number(cu->cuMemHostRegister(host2, page, CU_MEMHOSTREGISTER_PORTABLE)));
  h.open();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  say("a host function pending on the held stream, after its gate opened", host_functions ? "RAN" : "never ran");
  say("cuEventQuery, pending, gate open", number(cu->cuEventQuery(pending)));
  say("cuEventDestroy", number(cu->cuEventDestroy(done)));
  say("cuStreamDestroy", number(cu->cuStreamDestroy(spare)));
  if (two) {
    b->use();
    say("on device 1: cuStreamQuery", number(cu->cuStreamQuery(b->s)));
    pages const q(1);
    int const launched = launch_store(b->s, q.words(), 3);
    say("on device 1: a kernel (runtime's number), then synchronize",
        std::to_string(launched) + ", " + number(cu->cuStreamSynchronize(b->s)));
    say("on device 1: the stream that waits for device 0's pending event", number(cu->cuStreamQuery(b->other)));
    say("on device 1: cuStreamWaitEvent for device 0's pending event", number(cu->cuStreamWaitEvent(b->s, pending, 0)));
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    say("on device 1: that stream afterwards", number(cu->cuStreamQuery(b->s)));
    say("on device 1: cuEventQuery of device 0's pending event", number(cu->cuEventQuery(pending)));
    say("on device 1: cuMemHostRegister", number(cu->cuMemHostRegister(host2, page, CU_MEMHOSTREGISTER_PORTABLE)));
    CUdeviceptr x = 0;
    say("on device 1: cuMemAlloc", number(cu->cuMemAlloc(&x, page)));
    CUstream alive = nullptr;
    say("on device 1: cuStreamCreate", number(cu->cuStreamCreateWithPriority(&alive, CU_STREAM_NON_BLOCKING, 0)));
    CUresult const copied = cu->cuMemcpyAsync(q.at, hex, 64, alive);
    say("on device 1: copy from memory that device 0 registered",
        number(copied) + ", then " + number(cu->cuStreamSynchronize(alive)));
    comes_back("on device 1: cuMemHostUnregister of what device 1 registered", *b,
               [=] { return cu->cuMemHostUnregister(host2); });
    comes_back("on device 1: cuMemHostUnregister of what device 0 registered", *b,
               [=] { return cu->cuMemHostUnregister(host); });
    comes_back("on device 1: cuMemFree", *b, [=] { return cu->cuMemFree(x); });
    comes_back("on device 1: cuCtxSynchronize", *b, [] { return cu->cuCtxSynchronize(); });
    comes_back("on device 1: cuStreamDestroy of the stream that waits for device 0's event", *b,
               [=] { return cu->cuStreamDestroy(b->other); });
    g.use();
  }
  CUdevice d = 0;
  cu->cuDeviceGet(&d, 0);
  say("cuDevicePrimaryCtxRelease", number(cu->cuDevicePrimaryCtxRelease(d)));
  CUcontext again = nullptr;
  say("cuDevicePrimaryCtxRetain again", number(cu->cuDevicePrimaryCtxRetain(&again, d)));
}

void odd_addresses() {
  gpu const g(0);
  CUdeviceptr hole = 0;
  MUST(cu->cuMemAddressReserve(&hole, page, page, 0, 0));
  auto* const host = static_cast<char*>(
      ::mmap(nullptr, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));
  auto const h = reinterpret_cast<CUdeviceptr>(host);
  pages const p(0);
  auto const attributes = [&](CUdeviceptr at) {
    unsigned type = 99;
    int ordinal = -9;
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    void* into[] = {&type, &ordinal};
    CUresult const r = cu->cuPointerGetAttributes(2, which, into, at);
    return number(r) + ", type " + std::to_string(type) + ", device " + std::to_string(ordinal);
  };
  say("attributes of pageable memory", attributes(h));
  say("attributes of a reserved, unmapped address", attributes(hole));
  say("attributes of mapped memory", attributes(p.at + 100));
  MUST(cu->cuMemHostRegister(host, page, CU_MEMHOSTREGISTER_PORTABLE));
  MUST(cu->cuMemHostRegister(host + page, page, CU_MEMHOSTREGISTER_PORTABLE));
  say("attributes of registered memory", attributes(h + 100));
  pages const p2(0);
  CUdeviceptr plain = 0;
  MUST(cu->cuMemAlloc(&plain, 4 * page));
  auto const then = [&](CUresult r) { return number(r) + ", then " + number(cu->cuStreamSynchronize(g.s)); };
  say("register of an already registered range",
      number(cu->cuMemHostRegister(host, 4096, CU_MEMHOSTREGISTER_PORTABLE)));
  say("copy over two neighbouring registrations", then(cu->cuMemcpyAsync(plain, h + page / 2, page, g.s)));
  say("copy that runs past the end of a registration", then(cu->cuMemcpyAsync(plain, h + page + page / 2, page, g.s)));
  say("cuMemsetD32Async of registered memory", then(cu->cuMemsetD32Async(h, 1, 4, g.s)));
  say("unregister at an inner address", number(cu->cuMemHostUnregister(host + 4096)));
  CUresult const r = cu->cuMemMap(hole, page, 0, pages::make(0), 0);
  say("cuMemMap", number(r));
  say("copy to mapped, ungranted memory", then(cu->cuMemcpyAsync(hole, h, 4096, g.s)));
  MUST(cu->cuMemUnmap(hole, page));
  say("copy to a reserved, unmapped address", then(cu->cuMemcpyAsync(hole, h, 4096, g.s)));
}

void costs() {
  gpu const g(0);
  pages const p(0);
  auto const ns = [&](char const* what, int n, std::function<void()> const& f) {
    for (int i = 0; i < n / 10; ++i)
      f();
    auto const start = clock_type::now();
    for (int i = 0; i < n; ++i)
      f();
    char text[32];
    std::snprintf(text, sizeof text, "%.0f ns", us_since(start) / n * 1000);
    say(what, text);
  };
  CUcontext c = nullptr;
  ns("cuCtxGetCurrent", 100000, [&] { cu->cuCtxGetCurrent(&c); });
  ns("cuCtxPushCurrent + cuCtxPopCurrent", 100000, [&] {
    cu->cuCtxPushCurrent(g.context);
    cu->cuCtxPopCurrent(&c);
  });
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  ns("cuThreadExchangeStreamCaptureMode, twice", 100000, [&] {
    cu->cuThreadExchangeStreamCaptureMode(&mode);
    cu->cuThreadExchangeStreamCaptureMode(&mode);
  });
  CUstreamCaptureStatus status{};
  ns("cuStreamIsCapturing", 100000, [&] { cu->cuStreamIsCapturing(g.s, &status); });
  CUevent e = nullptr;
  MUST(cu->cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
  ns("cuEventRecord", 1000, [&] { cu->cuEventRecord(e, g.s); });
  MUST(cu->cuStreamSynchronize(g.s));
  ns("cuEventQuery, complete", 100000, [&] { cu->cuEventQuery(e); });
  ns("cuStreamQuery", 100000, [&] { cu->cuStreamQuery(g.s); });
  ns("cuStreamWaitEvent", 1000, [&] { cu->cuStreamWaitEvent(g.other, e, 0); });
  unsigned type = 0;
  CUpointer_attribute which = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
  void* into = &type;
  ns("cuPointerGetAttributes, one", 100000, [&] { cu->cuPointerGetAttributes(1, &which, &into, p.at); });
  ns("cuMemcpyAsync, 64 B in the device", 1000, [&] { cu->cuMemcpyAsync(p.at, p.at + 4096, 64, g.s); });
  ns("cuLaunchHostFunc", 1000, [&] {
    cu->cuLaunchHostFunc(
        g.s, [](void*) {}, nullptr);
  });
  MUST(cu->cuStreamSynchronize(g.s));
  auto const vmm = [&](char const* what, int grants) {
    CUdeviceptr at = 0;
    MUST(cu->cuMemAddressReserve(&at, page, page, 0, 0));
    auto const handle = pages::make(0);
    ns(what, 200, [&] {
      cu->cuMemMap(at, page, 0, handle, 0);
      for (int d = 0; d < grants; ++d)
        pages::grant(at, d);
      cu->cuMemUnmap(at, page);
    });
  };
  vmm("map + grant own + unmap, 2 MiB", 1);
  if (devices() > 1) {
    gpu const peer(1);
    g.use();
    vmm("map + grant own and peer 1 + unmap, 2 MiB", 2);
  }
}

struct group {
  char const* name;
  void (*ask)();
};
constexpr group groups[] = {{"blocking", blocking},
                            {"depth", depth},
                            {"depth-others", depth_others},
                            {"unmap-unused", unmap_unused},
                            {"unmap-used", unmap_used},
                            {"unmap-remap", unmap_remap},
                            {"unmap-peers", unmap_peers},
                            {"peer-blocking", peer_blocking},
                            {"peer-copies", peer_copies},
                            {"peer-fault", peer_fault},
                            {"sticky", sticky},
                            {"odd-addresses", odd_addresses},
                            {"captures", captures},
                            {"costs", costs}};

int run_group(char const* name) {
  std::string self = "/proc/self/exe", argument = name;
  char* const arguments[] = {self.data(), argument.data(), nullptr};
  pid_t child = 0;
  std::fflush(stdout);
  if (::posix_spawn(&child, self.c_str(), nullptr, nullptr, arguments, environ) != 0)
    return -1;
  int status = 0;
  for (int i = 0; i < 4500; ++i) {
    if (::waitpid(child, &status, WNOHANG) == child) {
      if (WIFSIGNALED(status))
        std::printf("  (ended by signal %d)\n", WTERMSIG(status));
      return 0;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, &status, 0);
  std::printf("  (did not end within 45 s)\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  auto const& [api, why] = weir::driver::cuda::load();
  if (!api || api->cuInit(0) != CUDA_SUCCESS) {
    std::printf("no usable GPU: %s\n", why.c_str());
    return 77;
  }
  cu = api;
  if (argc > 1) {
    for (group const& g : groups) {
      if (std::strcmp(g.name, argv[1]) == 0) {
        g.ask();
        std::fflush(stdout);
        std::_Exit(0);  // a lost context may not survive its teardown
      }
    }
    std::printf("unknown group %s\n", argv[1]);
    return 2;
  }
  for (group const& g : groups) {
    std::printf("%s\n", g.name);
    run_group(g.name);
  }
  return 0;
}
