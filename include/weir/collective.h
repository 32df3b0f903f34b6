// weir/collective.h: NCCL on GPUs, weir's own on a simulated machine, MPI between simulated processes: one class.
#pragma once
#include "weir/peer.h"

namespace weir {
enum class reduction : std::uint8_t { sum, average, min, max };
struct span_of { void* data; std::int64_t count; dtype type; };
class communicator {  // one rank. Threads: one thread at a time; all ranks issue in the same order
 public:
  static std::vector<communicator> in_process(std::span<device const>);             // a thread a device
  static communicator from_environment(std::chrono::seconds timeout);               // RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT, or mpirun's. Blocks
  int rank() const noexcept; int size() const noexcept; weir::device device() const noexcept;
  stamp all_reduce(span_of, reduction = reduction::sum, here = here::current());    // on the current stream; in place
  stamp broadcast(span_of, int root, here = here::current());
  stamp all_gather(span_of out, span_of in, here = here::current());
  stamp reduce_scatter(span_of out, span_of in, reduction = reduction::sum, here = here::current());
  void barrier(here = here::current());                                             // Blocks: host. Throws: timed_out, naming the rank
  void abort() noexcept;
};
class [[nodiscard]] group_guard { public: group_guard(); ~group_guard() noexcept(false); };
struct bucket_options { size_t bucket_bytes = 0; bool average = true, deterministic = false; };  // 0: measured
class gradient_buckets {  // parameters and gradients of one rank in one peer-visible arena; views, no packing
 public:
  gradient_buckets(communicator&, bucket_options = {});
  int add(std::string name, std::int64_t count, dtype);                             // before build()
  void build();
  span_of parameter(int) const; span_of gradient(int) const;
  void ready(int, stream_ref);                                                      // starts a bucket when full. Throws: invalid_use when a gradient is ready twice in a step (recomputation!)
  void finish(stream_ref);                                                          // Throws: invalid_use naming gradients that never were ready
};
}
