// Tools for questions to CUDA: GPUs, pages, held streams, and calls that may never return.
// Threads: one asks; a call that may block is made on another.
#pragma once
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "runtime/driver/cuda/symbols.h"
#include "tests/conformance/kernels.h"

namespace weir::conformance::probe {

using clock_type = std::chrono::steady_clock;
inline driver::cuda::entries const* cu = nullptr;
constexpr std::size_t page = std::size_t{2} << 20;

inline double us_since(clock_type::time_point t) {
  return std::chrono::duration<double, std::micro>(clock_type::now() - t).count();
}
inline void say(std::string const& question, std::string const& answer) {
  std::printf("  %-76s %s\n", question.c_str(), answer.c_str());
  std::fflush(stdout);
}
inline std::string number(CUresult r) {
  return r == CUDA_SUCCESS ? "ok" : std::to_string(static_cast<int>(r));
}
inline void must(CUresult r, char const* what) {
  if (r == CUDA_SUCCESS)
    return;
  std::printf("  %s answers %d: the rest of this group is not asked\n", what, static_cast<int>(r));
  std::fflush(stdout);
  std::_Exit(3);
}
#define MUST(call) must(call, #call)

struct gpu {
  int ordinal = 0;
  CUcontext context = nullptr;
  CUstream s = nullptr, other = nullptr;
  explicit gpu(int i) : ordinal(i) {
    CUdevice d = 0;
    MUST(cu->cuDeviceGet(&d, i));
    MUST(cu->cuDevicePrimaryCtxRetain(&context, d));
    use();
    s = stream();
    other = stream();
    if (int const e = load_kernels()) {
      std::printf("  the kernels do not load: %d\n", e);
      std::_Exit(3);
    }
  }
  void use() const { MUST(cu->cuCtxSetCurrent(context)); }
  CUstream stream() const {
    CUstream made = nullptr;
    use();
    MUST(cu->cuStreamCreateWithPriority(&made, CU_STREAM_NON_BLOCKING, 0));
    return made;
  }
};

inline int devices() {
  int n = 0;
  cu->cuDeviceGetCount(&n);
  return n;
}

inline void* host_memory(std::size_t bytes) {
  return ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
}
inline CUdeviceptr address_of(void const* p) {
  return reinterpret_cast<CUdeviceptr>(p);
}

struct pages {  // one handle of one page, mapped and granted to its device
  CUdeviceptr at = 0;
  CUmemGenericAllocationHandle handle = 0;
  explicit pages(int device) : handle(make(device)) {
    MUST(cu->cuMemAddressReserve(&at, page, page, 0, 0));
    MUST(cu->cuMemMap(at, page, 0, handle, 0));
    MUST(grant(at, device));
  }
  static CUmemGenericAllocationHandle make(int device) {
    CUmemAllocationProp p{};
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    CUmemGenericAllocationHandle h = 0;
    MUST(cu->cuMemCreate(&h, page, &p, 0));
    return h;
  }
  static CUresult grant(CUdeviceptr at, int device) {
    CUmemAccessDesc a{};
    a.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    a.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return cu->cuMemSetAccess(at, page, &a, 1);
  }
  std::uint32_t* words() const { return reinterpret_cast<std::uint32_t*>(at); }
};

struct held {  // a stream that waits for a word. Leaves its GPU current
  std::uint32_t volatile* word = nullptr;
  held(gpu const& g, CUstream s) {
    g.use();
    static std::uint32_t* words = nullptr;  // allocated once: the allocation itself may wait for held streams
    static int next = 0;
    if (!words) {
      void* p = nullptr;
      MUST(cu->cuMemHostAlloc(&p, 4096, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
      words = static_cast<std::uint32_t*>(p);
      for (int i = 0; i < 1024; ++i)
        words[i] = 0;
    }
    word = words + next++;
    CUdeviceptr d = 0;
    MUST(cu->cuMemHostGetDevicePointer(&d, const_cast<std::uint32_t*>(word), 0));
    MUST(cu->cuStreamWaitValue32(s, d, 1, CU_STREAM_WAIT_VALUE_GEQ));
  }
  void open() { *word = 1; }
};

// Makes the call on another thread while `h` is closed, for at most 300 ms, then opens `h`.
inline bool waits(char const* question, gpu const& g, held& h, std::function<CUresult()> const& call,
                  bool open_after = true) {
  std::atomic<bool> done{false};
  CUresult r = CUDA_SUCCESS;
  double took = 0;
  std::thread t([&] {
    cu->cuCtxSetCurrent(g.context);
    auto const start = clock_type::now();
    r = call();
    took = us_since(start);
    done = true;
  });
  for (int i = 0; i < 300 && !done; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  bool const waited = !done;
  if (waited || open_after)
    h.open();
  t.join();
  char text[96];
  std::snprintf(text, sizeof text, waited ? "WAITS for the held work, then %s" : "does not wait: %s, %.0f us",
                number(r).c_str(), took);
  say(question, text);
  return waited;
}

// For a call that may never return: its thread is then left behind.
inline bool comes_back(char const* question, gpu const& g, std::function<CUresult()> call) {
  struct state {
    std::atomic<bool> done{false};
    CUresult r = CUDA_SUCCESS;
  };
  auto const s = std::make_shared<state>();
  std::thread([s, call, context = g.context] {
    cu->cuCtxSetCurrent(context);
    s->r = call();
    s->done = true;
  }).detach();
  for (int i = 0; i < 1000 && !s->done; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  say(question, s->done ? number(s->r) : "does NOT COME BACK within 1 s");
  return s->done;
}

inline std::uint32_t word_at(gpu const& g, std::uint32_t* at) {
  void* p = nullptr;
  g.use();
  MUST(cu->cuMemHostAlloc(&p, 4096, CU_MEMHOSTALLOC_PORTABLE));
  CUresult const r = cu->cuMemcpyAsync(address_of(p), address_of(at), 4, g.other);
  if (r != CUDA_SUCCESS || cu->cuStreamSynchronize(g.other) != CUDA_SUCCESS)
    return 0xffffffff;
  return *static_cast<std::uint32_t*>(p);
}

// Groups in other files.
void depth();
void depth_others();
void unmap_peers();
void peer_blocking();
void peer_copies();
void peer_fault();
void captures();

}  // namespace weir::conformance::probe
