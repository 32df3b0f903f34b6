// What the programs of this folder share: kernels that take their time, owners of CUDA's objects, and the choice of a
// case. The programs declare nothing to weir: a checker must see their calls by itself.
// Usage: PROGRAM NAME          the case as its comment says
//        PROGRAM NAME right    the same with the order that is missing
//        PROGRAM --list        the names, each with what a checker says of it
// Exit status: 0 whatever the case does, 1 a call of CUDA failed, 2 usage, 77 the machine lacks what the case needs.
#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

namespace bare {

constexpr int skipped = 77;

struct known_case {
  char const* name;
  char const* says;  // a checker: "race", "possible"; in a clean program "none", or the most that it may say
  void (*run)(bool right);
};
using cases = std::span<known_case const>;

// With --default-stream per-thread the functions below call other functions of CUDA: they have other names.
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
inline namespace by_thread {
#else
inline namespace by_device {
#endif

constexpr int count = 1 << 16;  // of floats in a block
constexpr std::size_t bytes = count * sizeof(float);
constexpr int threads = 256;
constexpr int grid = count / threads;
constexpr int late = 300;  // microseconds that a kernel takes before it touches memory

// Kernels -----------------------------------------------------------------------------------------------------

static __device__ inline void take_time(int microseconds) {
  auto const now = [] {
    unsigned long long ns = 0;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
  };
  unsigned long long const end = now() + 1000ull * static_cast<unsigned>(microseconds);
  while (now() < end) {}
}
static __device__ inline int place() {
  return static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
}

[[maybe_unused]] static __global__ void write(float* to, int n, int microseconds) {
  take_time(microseconds);
  if (place() < n)
    to[place()] = 1;
}
[[maybe_unused]] static __global__ void read(float const* from, int n, int microseconds, float* last) {
  take_time(microseconds);
  if (place() < n && from[place()] != 0)
    *last = from[place()];
}
[[maybe_unused]] static __global__ void update(float* x, int n, int microseconds) {
  take_time(microseconds);
  if (place() < n)
    x[place()] += 1;
}
[[maybe_unused]] static __global__ void add(float* to, float const* from, int n, int microseconds) {
  take_time(microseconds);
  if (place() < n)
    to[place()] += from[place()];
}

struct pair_of_blocks {
  float* to;
  float const* from;
  int n;
};
[[maybe_unused]] static __global__ void add_pair(pair_of_blocks p, int microseconds) {
  take_time(microseconds);
  if (place() < p.n)
    p.to[place()] += p.from[place()];
}

// CUDA's objects ----------------------------------------------------------------------------------------------

inline void must(cudaError_t e, char const* what = "a launch") {
  if (e == cudaSuccess)
    return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(e));
  std::_Exit(1);
}
#define MUST(call) ::bare::must(call, #call)

class device_block {
 public:
  explicit device_block(std::size_t size = bytes) { MUST(cudaMalloc(&data_, size)); }
  ~device_block() { MUST(cudaFree(data_)); }
  device_block(device_block const&) = delete;
  operator float*() const { return data_; }

 private:
  float* data_ = nullptr;
};
class pinned_block {
 public:
  pinned_block() {
    MUST(cudaHostAlloc(&data_, bytes, cudaHostAllocDefault));
    std::memset(data_, 0, bytes);
  }
  ~pinned_block() { MUST(cudaFreeHost(data_)); }
  pinned_block(pinned_block const&) = delete;
  operator float*() const { return data_; }

 private:
  float* data_ = nullptr;
};
class own_stream {
 public:
  explicit own_stream(unsigned flags = cudaStreamNonBlocking) { MUST(cudaStreamCreateWithFlags(&is_, flags)); }
  ~own_stream() { MUST(cudaStreamDestroy(is_)); }
  own_stream(own_stream const&) = delete;
  operator cudaStream_t() const { return is_; }

 private:
  cudaStream_t is_ = nullptr;
};
class own_event {
 public:
  own_event() { MUST(cudaEventCreateWithFlags(&is_, cudaEventDisableTiming)); }
  ~own_event() { MUST(cudaEventDestroy(is_)); }
  own_event(own_event const&) = delete;
  operator cudaEvent_t() const { return is_; }

 private:
  cudaEvent_t is_ = nullptr;
};

inline void record(cudaEvent_t e, cudaStream_t s) {
  MUST(cudaEventRecord(e, s));
}
inline void wait(cudaStream_t s, cudaEvent_t e) {
  MUST(cudaStreamWaitEvent(s, e, 0));
}
// All later work of `after` follows all earlier work of `before`.
inline void order(cudaStream_t before, cudaStream_t after) {
  own_event e;
  record(e, before);
  wait(after, e);
}
inline void to_device(float* to, float const* from, cudaStream_t s) {
  MUST(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, s));
}
inline void to_host(float* to, float const* from, cudaStream_t s) {
  MUST(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, s));
}
inline void within_device(float* to, float const* from, cudaStream_t s) {
  MUST(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, s));
}
inline float* allocate(cudaStream_t s) {
  void* p = nullptr;
  MUST(cudaMallocAsync(&p, bytes, s));
  return static_cast<float*>(p);
}
inline void release(float* p, cudaStream_t s) {
  MUST(cudaFreeAsync(p, s));
}

// What most cases use. All blocks are zeroed, and nothing is under way. The end waits for all work.
struct scene {
  device_block x, y, last, other_last;
  pinned_block host, other_host;
  own_stream a, b, c;
  own_event done, other;

  // Streams of the default kind are not ordered with the legacy stream.
  explicit scene(unsigned flags = cudaStreamNonBlocking) : a(flags), b(flags), c(flags) {
    for (float* const p : {static_cast<float*>(x), static_cast<float*>(y)})
      MUST(cudaMemset(p, 0, bytes));
    MUST(cudaDeviceSynchronize());
  }
  ~scene() {
    must(cudaGetLastError());
    MUST(cudaDeviceSynchronize());
  }
};

class executable {  // of a graph
 public:
  // Captures what `body` enqueues on the stream.
  template <class Body>
  executable(cudaStream_t s, Body body) : executable(graph_of(s, body)) {}
  explicit executable(cudaGraph_t g) {
    MUST(cudaGraphInstantiate(&is_, g, 0));
    MUST(cudaGraphDestroy(g));
  }
  ~executable() {
    MUST(cudaDeviceSynchronize());
    MUST(cudaGraphExecDestroy(is_));
  }
  executable(executable const&) = delete;
  template <class Body>
  static cudaGraph_t graph_of(cudaStream_t s, Body body) {
    cudaGraph_t g = nullptr;
    MUST(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    body();
    MUST(cudaStreamEndCapture(s, &g));
    return g;
  }
  // The executable now runs what `body` enqueues.
  template <class Body>
  void change(cudaStream_t s, Body body) {
    cudaGraph_t const g = graph_of(s, body);
    cudaGraphExecUpdateResultInfo told{};
    MUST(cudaGraphExecUpdate(is_, g, &told));
    MUST(cudaGraphDestroy(g));
  }
  void launch(cudaStream_t s) const { MUST(cudaGraphLaunch(is_, s)); }

 private:
  cudaGraphExec_t is_ = nullptr;
};

// Cases -------------------------------------------------------------------------------------------------------

// Memory of cudaMallocAsync is mapped from here to the end: a use before its time or after its free is no fault.
inline void keep_pool_mapped() {
  constexpr std::size_t enough = 64 * bytes;
  cudaMemPool_t pool = nullptr;
  std::uint64_t all = UINT64_MAX;
  void* p = nullptr;
  MUST(cudaDeviceGetDefaultMemPool(&pool, 0));
  MUST(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all));
  MUST(cudaMallocAsync(&p, enough, nullptr));
  MUST(cudaFreeAsync(p, nullptr));
  MUST(cudaDeviceSynchronize());
}

inline int run_one_of(std::vector<cases> const& lists, int argc, char** argv) {
  char const* const wanted = argc > 1 ? argv[1] : "";
  bool const right = argc == 3 && std::strcmp(argv[2], "right") == 0;
  bool const list = std::strcmp(wanted, "--list") == 0;
  for (cases const all : lists) {
    for (known_case const& one : all) {
      if (list)
        std::printf("%s %s\n", one.name, one.says);
      if (std::strcmp(wanted, one.name) != 0 || (argc == 3 && !right) || argc > 3)
        continue;
      int devices = 0;
      if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        std::fprintf(stderr, "skipped: no GPU\n");
        return skipped;
      }
      keep_pool_mapped();
      one.run(right);
      return 0;
    }
  }
  if (!list)
    std::fprintf(stderr, "usage: %s --list, or NAME [right]\n", argv[0]);
  return list ? 0 : 2;
}

}  // inline namespace
}  // namespace bare
