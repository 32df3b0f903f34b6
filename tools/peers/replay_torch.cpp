// Replays a trace through PyTorch's own allocator, for a comparison in one run: first and warm rounds, and
// reserved bytes.
// Threads: one. Built by tools/first_replay against an installed PyTorch, never by the library's build.
//
// If a block's `f` is followed by a `c`, another stream used it until then. It is freed at its `c`, when
// PyTorch's allocator had it back. weir gets both, and must find the completion itself.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

struct operation {
  char does;
  unsigned block;
  size_t bytes;
  int stream;
};
struct trace {
  std::vector<operation> operations;
  unsigned blocks = 0;
  int streams = 1;
  size_t lines = 0;  // weir's operations: each `f` and each `c`
};

trace read(char const* path) {
  std::FILE* const file = std::fopen(path, "r");
  if (!file)
    std::perror(path), std::exit(1);
  trace t;
  std::vector<operation> all;
  operation o{};
  while (std::fscanf(file, " %c %u", &o.does, &o.block) == 2) {
    o.bytes = 0, o.stream = 0;
    if (o.does == 'a' && std::fscanf(file, "%zu %d", &o.bytes, &o.stream) != 2)
      break;
    all.push_back(o);
    t.blocks = std::max(t.blocks, o.block + 1);
    t.streams = std::max(t.streams, o.stream + 1);
  }
  std::fclose(file);
  t.lines = all.size();
  std::vector<char> late(t.blocks, 0);
  for (operation const& x : all)
    late[x.block] |= x.does == 'c';
  for (operation const& x : all) {
    if (x.does != 'f' || !late[x.block])
      t.operations.push_back(x);
  }
  return t;
}

double replay(trace const& t, std::vector<c10::cuda::CUDAStream> const& streams) {  // ns per line
  std::vector<void*> at(t.blocks, nullptr);
  auto const from = std::chrono::steady_clock::now();
  for (operation const& o : t.operations) {
    if (o.does == 'a') {
      at[o.block] = allocator::raw_alloc_with_stream(o.bytes, streams[static_cast<size_t>(o.stream)].stream());
    } else if (at[o.block]) {
      allocator::raw_delete(at[o.block]);
      at[o.block] = nullptr;
    }
  }
  double const spent = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - from).count();
  for (void* p : at) {
    if (p)
      allocator::raw_delete(p);
  }
  return spent / static_cast<double>(t.lines);
}

}  // namespace

int main(int argc, char** argv) {
  c10::cuda::device_synchronize();  // creates the context
  allocator::init(c10::cuda::device_count());
  char const* const mode = std::getenv("PYTORCH_CUDA_ALLOC_CONF");
  for (int i = 1; i < argc; ++i) {
    trace const t = read(argv[i]);
    std::vector<c10::cuda::CUDAStream> streams;
    for (int s = 0; s < t.streams; ++s)
      streams.push_back(c10::cuda::getStreamFromPool(false, 0));
    allocator::emptyCache();
    allocator::resetPeakStats(0);
    double const first = replay(t, streams);
    auto const stats = allocator::getDeviceStats(0);
    double const ratio =
        static_cast<double>(stats.reserved_bytes[0].peak) / static_cast<double>(stats.requested_bytes[0].peak);
    std::vector<double> warm;
    for (int k = 0; k < 3; ++k)
      warm.push_back(replay(t, streams));
    std::sort(warm.begin(), warm.end());
    std::printf("{\"trace\": \"%s\", \"mode\": \"%s\", \"ratio\": %.4f, \"first\": %.1f, \"warm\": %.1f}\n", argv[i],
                mode && *mode ? mode : "native", ratio, first, warm[1]);
    std::fflush(stdout);
  }
}
