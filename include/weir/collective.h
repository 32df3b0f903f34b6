// weir/collective.h: work that the GPUs of one program do together.
// NCCL on GPUs, weir's own on a simulated machine: one class.
// Threads: a communicator is one rank, used by one thread at a time (abort: any);
// all ranks ask for the same things in the same order.
#pragma once
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weir/stream.h"

namespace weir {

// average of integers: sum / ranks, rounded towards zero
enum class reduce_op : std::uint8_t { sum, average, min, max };
std::string_view name_of(reduce_op) noexcept;

struct device_span {  // elements in the memory of one device
  void* data = nullptr;
  std::int64_t count = 0;
  weir::dtype dtype = float32;
};

// Every call below but barrier enqueues on the thread's current stream of this rank's device and returns: the
// work starts when all ranks have come, its stamp says when it is done. Blocks: NCCL may make a first call
// wait for the other ranks'; on GPUs large broadcasts, scatters and gathers do until all ranks have asked for
// them (docs/collectives.md). Afterwards all ranks hold the same bits.
// Throws: invalid_use (memory of another device or too small, a rank that asks for something else than this
// one: both are named, and nothing has changed), not_supported (an element type), device_lost,
// driver_error (also when a rank aborted).
class communicator {
 public:
  // One rank a device, in this order, for a thread a device. Of the thread's current runtime.
  // Throws: invalid_use (none, no such device, cpu, one twice), not_supported (no NCCL for these GPUs).
  // Blocks: until NCCL is connected and all links were tried once.
  static std::vector<communicator> create_all(std::span<weir::device const>,
                                              source_location = source_location::current());
  communicator(communicator&&) noexcept;
  communicator& operator=(communicator&&) noexcept;
  ~communicator();  // aborts all ranks when a collective of this one still waits for others

  int rank() const noexcept;
  int size() const noexcept;
  weir::device device() const noexcept;

  stamp all_reduce(device_span, reduce_op = reduce_op::sum, source_location = source_location::current());  // in place
  stamp broadcast(device_span, int root, source_location = source_location::current());  // in place
  // in holds size() times what each rank's out holds, and rank k gets the k-th part. Only the root's in is
  // looked at; its out may be its part of in, else they do not overlap.
  stamp scatter(device_span out, device_span in, int root, source_location = source_location::current());
  // out holds size() times what each rank's in holds, rank after rank. Only the root's out is looked at; its
  // in may be its part of out, else they do not overlap.
  stamp gather(device_span out, device_span in, int root, source_location = source_location::current());
  // out holds size() times what in holds, rank after rank.
  // in may be this rank's part of out, else they do not overlap.
  stamp all_gather(device_span out, device_span in, source_location = source_location::current());
  // in holds size() times what out holds; out is this rank's part of the reduction,
  // may be that part of in, else they do not overlap.
  stamp reduce_scatter(device_span out, device_span in, reduce_op = reduce_op::sum,
                       source_location = source_location::current());

  // By what way this rank's last broadcast, scatter or gather went, and why: "copies:
  // 3 hops, 42 chunks of 25 MiB". "": there was none
  std::string explain_last() const;

  // Blocks: the host, until every rank's thread has come here. Devices are not waited for.
  // Throws: timed_out, naming the ranks that did not come:
  // this rank has not come either then and may try again.
  void barrier(std::chrono::milliseconds limit = std::chrono::minutes{10},
               source_location = source_location::current());
  // Lets every rank go: streams and threads that wait for others go on, what is not done never will be,
  // buffers of unfinished collectives hold anything. Every later call of any rank throws.
  void abort() noexcept;

 private:
  friend class gradient_buckets;
  struct state;
  explicit communicator(std::unique_ptr<state>) noexcept;
  std::unique_ptr<state> state_;
};

struct bucket_options {
  size_t bucket_bytes = 0;  // 0: a quarter of all gradients, at least 1 MiB, at most 25 MiB
  bool average = true;      // else: sum
};

// Parameters and gradients of one rank in one block: gradients are reduced where they lie, a bucket at a
// time, the last added first, while the backward pass still runs.
// Threads: as the communicator. All ranks add the same things in the same order.
class gradient_buckets {
 public:
  explicit gradient_buckets(communicator&, bucket_options = {});
  gradient_buckets(gradient_buckets&&) noexcept;
  gradient_buckets& operator=(gradient_buckets&&) noexcept;
  // while an exception passes: aborts all ranks when a reduction of this one still waits for others
  ~gradient_buckets();

  // before build(). Returns: 0, 1, 2, …
  int add(std::string name, std::int64_t count, dtype = float32, source_location = source_location::current());
  // Takes the memory, on the thread's current stream of the rank's device, and fills it with zeros.
  // Throws: invalid_use (built before, nothing added),
  // not_supported (a type that cannot be reduced), out_of_memory
  void build(source_location = source_location::current());
  // The same on that stream of the rank's device; other streams wait for it before they use the memory.
  void build(stream_ref home, source_location = source_location::current());
  int size() const noexcept;
  int bucket_count() const noexcept;
  // Throws: invalid_use (no such one, not built)
  device_span parameter(int, source_location = source_location::current()) const;
  device_span gradient(int, source_location = source_location::current()) const;
  // All of them with the gaps between them (zeros): element i of one belongs to element i of the other.
  // Throws: invalid_use (types differ, not built)
  device_span parameters(source_location = source_location::current()) const;
  device_span gradients(source_location = source_location::current()) const;  // the same

  // The gradient is written by what `writer` was given so far. Starts a bucket's reduction, on its own
  // stream, when all of it and of the buckets before it are ready. Throws:
  // invalid_use when it is ready twice in a step.
  void mark_ready(int gradient, stream_ref writer, source_location = source_location::current());
  // `reader` waits for all reductions of this step; the next step begins.
  // Throws: invalid_use naming gradients that never were ready: nothing has changed, they may still come.
  void finish(stream_ref reader, source_location = source_location::current());

 private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace weir
