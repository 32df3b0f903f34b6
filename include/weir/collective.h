// weir/collective.h: collectives over the GPUs of one process or of many, by NCCL, or by weir if simulated.
// Threads: a communicator is one rank, used by one thread at a time (abort: any). All ranks make the same
// calls in the same order, except for sends and receives.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "weir/launch.h"
#include "weir/stream.h"

namespace weir::checkpoints {
class writing;
}

namespace weir WEIR_API {

class pool;
class shape;   // weir/tensor.h
class tensor;  // likewise

// average of integers: sum / ranks, rounded towards zero
enum class reduce_op : std::uint8_t { sum, average, min, max };
std::string_view name_of(reduce_op) noexcept;

struct device_span {  // elements in the memory of one device
  void* data = nullptr;
  std::int64_t count = 0;
  weir::dtype dtype = float32;
};
// Declares that the work of a launch (weir/launch.h) reads all elements.
inline memory_use reads(device_span s) noexcept {
  return {s.count > 0 ? s.data : nullptr, access_mode::read, static_cast<size_t>(s.count) * size_of(s.dtype)};
}
inline memory_use writes(device_span s) noexcept {
  return {reads(s).address, access_mode::write, reads(s).bytes};
}
inline memory_use updates(device_span s) noexcept {
  return {reads(s).address, access_mode::update, reads(s).bytes};
}

// How this process was started. torchrun sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT.
// Open MPI's mpirun sets OMPI_COMM_WORLD_RANK, …_SIZE and …_LOCAL_RANK.
struct launch_info {
  enum class by : std::uint8_t { itself, torchrun, mpirun };  // a launcher; itself: none
  by how = by::itself;                                        // what started it
  int rank = 0, size = 1;                                     // of this process among all
  int local_rank = 0;                                         // among those of its machine
};
// Throws: invalid_use (a variable is missing, is no number or is out of range)
launch_info this_launch(source_location = source_location::current());

struct rank_options {                                         // of ranks in several processes
  std::chrono::milliseconds start = std::chrono::minutes{5};  // for all ranks to come
  // A process that sends nothing for so long is frozen, or its machine is gone.
  std::chrono::milliseconds silence = std::chrono::seconds{30};
  // A rank that calls no collective for so long, while others wait for it in one, is stuck.
  std::chrono::milliseconds behind = std::chrono::minutes{10};
};

// Every collective is enqueued on the thread's current stream of this rank's device. The work starts when all
// ranks have called; the returned stamp completes with it. After all_reduce, broadcast and
// all_gather all ranks hold the same bits.
// Blocks: on GPUs, the first transfer between two ranks until both have called, large broadcasts, scatters and
// gathers until all have, and with more than two GPUs perhaps a first collective of another size or kind
// (docs/reference/collectives.md).
// Throws: invalid_use (memory of another device or too small; a rank calls something else: both are named,
// nothing has changed), not_supported (an element type), device_lost, driver_error (also after abort).
class communicator {
 public:
  // Creates one rank a device of the thread's current runtime, in this order, for one thread each.
  // Throws: invalid_use (none, no such device, cpu, one twice), not_supported (no NCCL for these GPUs).
  // Blocks: until NCCL has connected the ranks for collectives, and all links were tested once.
  static std::vector<communicator> create_all(std::span<weir::device const>,
                                              source_location = source_location::current());
  // Creates this process's rank among several processes, one rank each (docs/how-to/several-processes.md).
  // The ranks watch each other: a process that ends or freezes is named, and the others' calls throw.
  // from_environment: rank, size and rendezvous as this_launch() says; the device is number local_rank.
  // create: the rendezvous is an id that unique_id() made on rank 0; pass it to the others as text.
  // Throws: invalid_use (no launcher; a wrong id, rank, size or device; a second rank of that number),
  // timed_out (the missing ranks are named), not_supported (no NCCL; Open MPI's library is missing; a machine
  // without threads), driver_error (the rendezvous cannot be reached; a rank ends or fails: it is named).
  // Blocks: until all ranks have come and are connected for collectives.
  static communicator from_environment(rank_options = {}, source_location = source_location::current());
  static communicator create(std::string_view id, int rank, int size, weir::device, rank_options = {},
                             source_location = source_location::current());
  // Creates the ranks of this process: under a launcher one, as from_environment. Otherwise one for each of the first
  // `devices` devices, as create_all; 0: for each device.
  // Throws: invalid_use (there are not so many devices; a number under a launcher), and as the two. Blocks: as they do
  static std::vector<communicator> create_launched(int devices = 0, rank_options = {},
                                                   source_location = source_location::current());
  // Listens on a TCP port until rank 0 is created here, or the process ends. Throws: driver_error (no port)
  static std::string unique_id(source_location = source_location::current());
  communicator(communicator&&) noexcept;
  communicator& operator=(communicator&&) noexcept;
  ~communicator();  // aborts all ranks if a collective of this rank still waits for others

  int rank() const noexcept;
  int size() const noexcept;
  weir::device device() const noexcept;

  stamp all_reduce(device_span, reduce_op = reduce_op::sum, source_location = source_location::current());  // in place
  stamp broadcast(device_span, int root, source_location = source_location::current());                     // in place
  // Sends the k-th part of the root's `in` to rank k. `in` holds size() times the elements of `out` and is
  // read on the root only. The root's `out` may be its part of `in`; otherwise they must not overlap.
  stamp scatter(device_span out, device_span in, int root, source_location = source_location::current());
  // Collects every rank's `in`, in order of rank, in the root's `out`. `out` holds size() times the elements
  // of `in` and is used on the root only. Its `in` may be its part of `out`; otherwise they must not overlap.
  stamp gather(device_span out, device_span in, int root, source_location = source_location::current());
  // Collects every rank's `in`, in order of rank, in every rank's `out`, which holds size() times the
  // elements of `in`. `in` may be this rank's part of `out`; otherwise they must not overlap.
  stamp all_gather(device_span out, device_span in, source_location = source_location::current());
  // Reduces `in`, which holds size() times the elements of `out`, and leaves this rank's part in `out`. `out`
  // may be that part of `in`; otherwise they must not overlap.
  stamp reduce_scatter(device_span out, device_span in, reduce_op = reduce_op::sum,
                       source_location = source_location::current());

  // Sends the k-th part of `in` to rank k, and collects the parts for this rank, in order of rank, in `out`.
  // Both hold size() parts of equal size, and must not overlap.
  stamp all_to_all(device_span out, device_span in, source_location = source_location::current());

  // Returns: what each rank has passed, in order of rank, on every rank. T: plain bytes, as a number or a struct of
  // numbers. Blocks: host, until all ranks have called, and the earlier work of the current stream is done.
  // Throws: as all_gather, out_of_memory
  template <class T>
  std::vector<T> exchange(T const& mine, source_location at = source_location::current()) {
    static_assert(std::is_trivially_copyable_v<T> && !std::is_same_v<T, bool>, "ranks exchange plain bytes");
    std::vector<T> all(static_cast<size_t>(size()));
    exchange_bytes(&mine, all.data(), sizeof mine, at);
    return all;
  }

  // Sends `in` to one rank, which receives it in `out`. The k-th send of a rank to another meets that rank's
  // k-th receive from it; only the two call. Both enqueue; a send may wait for its receiver, and a large
  // one does.
  // Counts and types must be equal: a thread that differs gets invalid_use, and simulated processes cannot
  // continue. NCCL does not check them between processes: the ranks may hang. Simulated processes send
  // through rank 0, which must leave last. Throws also: invalid_use (to or from this rank).
  stamp send(device_span in, int to, source_location = source_location::current());
  stamp receive(device_span out, int from, source_location = source_location::current());
  // Does both, and neither waits for the other: rings and exchanges complete. They must not overlap.
  stamp send_receive(device_span in, int to, device_span out, int from, source_location = source_location::current());

  // Lets NCCL reduce and gather in the pool itself. Before 2.29.7 it uses the pool as any memory: no abort
  // ends its kernels for registered memory. Each rank passes a registered pool (weir/pool.h) of one limit.
  // Every collective then takes memory at the same place of that pool on all ranks, or outside of it on all.
  // So allocate in one order, and once: a block that several streams used is reused when a rank sees that
  // work complete. The place of all_gather's `in` and reduce_scatter's `out` in the pool is free, and so are
  // send, receive, scatter and gather. The pool keeps its memory until this communicator ends.
  // Blocks: on GPUs, the host, as split. Requires: no capture is under way in this process.
  // Throws: invalid_use (another kind of pool, another device or runtime; registered before; a rank differs),
  // timed_out (all may call again), driver_error.
  void register_pool(pool const&, source_location = source_location::current());

  // Waits for the threads of all ranks, not for devices. Blocks: the host.
  // Throws: timed_out, naming the missing ranks. This rank then counts as not arrived and may call again.
  void barrier(std::chrono::milliseconds limit = std::chrono::minutes{10},
               source_location = source_location::current());
  // Makes a communicator of the ranks that pass one color, ordered by key, then by rank. All ranks call.
  // The new one has no tie to this one, and may outlive it. Returns: none for no_color.
  // Blocks: the host, for all ranks: at most rank_options::start, or ten minutes in one process. Then as
  // create or create_all. Requires: no rank's earlier send or receive waits for a call after the split.
  // Throws: invalid_use (a color below no_color), timed_out (the missing ranks are named; all may call
  // again), and what create_all or create throws. This one then works on.
  static constexpr int no_color = -1;
  std::optional<communicator> split(int color, int key = 0, source_location = source_location::current());
  // Releases every rank: streams and threads that wait for others continue. Unfinished collectives never
  // finish, and their buffers hold undefined values. Every later call of any rank throws.
  void abort() noexcept;
  // Returns: why no rank can continue, naming the rank that caused it. Empty while they can. If it is empty
  // after a wait for a stream, all collectives that this wait covers were completed. Threads: any
  std::string failure() const;

 private:
  friend class gradient_buckets;
  friend class collective_group;
  friend class checkpoints::writing;
  friend void run_ranks(std::span<communicator>, std::function<void(communicator&)> const&, source_location);
  struct state;
  explicit communicator(std::unique_ptr<state>) noexcept;
  void exchange_bytes(void const* mine, void* all, size_t bytes, source_location);
  std::unique_ptr<state> state_;
};

// Calls body(rank) for each of this process's ranks, on a thread of its own. The rank's runtime and device are current.
// Throws: what the first body that failed has thrown. It aborts its communicator, so that no rank waits for it; also
// std::system_error (no thread). Blocks: host, until all have returned
void run_ranks(std::span<communicator>, std::function<void(communicator&)> const& body,
               source_location = source_location::current());

// Collects collectives, sends and receives of one rank. end() enqueues them as one call, as ncclGroupStart
// and ncclGroupEnd do: NCCL takes one launch for many small ones. Each result has the bits that the single
// call gives. All ranks put the same collectives in the same order into one group. Sends and receives concern
// two ranks, as ever.
// Requires: no member writes memory that another member reads or writes. Members run in no order.
// Threads: as the communicator. Another group or call may come before end(): it is enqueued first.
class collective_group {
 public:
  explicit collective_group(communicator const&);
  collective_group(collective_group&&) noexcept;
  collective_group& operator=(collective_group&&) noexcept;
  // Enqueues nothing. If an exception unwinds: aborts all ranks once another one waits for this rank's next
  // call, unless an exception unwound that rank's own group or buckets, too.
  ~collective_group();

  // Add a member: the communicator's calls of these names, which enqueue nothing yet and touch no memory.
  // Throw: invalid_use (counts, a root, a rank), not_supported (an element type). The group stays as it was.
  void all_reduce(device_span, reduce_op = reduce_op::sum, source_location = source_location::current());
  void broadcast(device_span, int root, source_location = source_location::current());
  void scatter(device_span out, device_span in, int root, source_location = source_location::current());
  void gather(device_span out, device_span in, int root, source_location = source_location::current());
  void all_gather(device_span out, device_span in, source_location = source_location::current());
  void reduce_scatter(device_span out, device_span in, reduce_op = reduce_op::sum,
                      source_location = source_location::current());
  void all_to_all(device_span out, device_span in, source_location = source_location::current());
  void send(device_span in, int to, source_location = source_location::current());
  void receive(device_span out, int from, source_location = source_location::current());
  int size() const noexcept;  // members

  // Enqueues all members on the thread's current stream of the rank's device, and empties the group.
  // Returns: a stamp that completes with all of them; of an empty group, with the stream's earlier work.
  // Blocks: as the communicator's calls; NCCL carries large broadcasts of a group, too.
  // Throws: as those calls, for any member, and invalid_use (two members share memory; a rank's group
  // differs). No member was enqueued: end() may be called again. Or failure() tells why no rank can continue.
  stamp end(source_location = source_location::current());

 private:
  struct state;
  std::unique_ptr<state> state_;
};

struct bucket_options {
  size_t bucket_bytes = 0;  // 0: a quarter of all gradients, from 1 to 25 MiB
  bool average = true;      // false: sum
  // The block lies in a registered pool of its own, which stays until the communicator ends: register_pool()
  bool registered = false;
  // Enqueues work on gradients that are reduced next: scales them, or a function of one's own. mark_ready() and
  // finish() call it, in the order of the buckets, with each range of memory that the bucket has, gaps between
  // gradients included. The stream is weir's, and current. The gradients are written when its work runs, and
  // the reduction comes behind that work. What it throws passes through: the next call begins again with that
  // range. Requires: it keeps to the range, and calls neither of the two. Threads: that of the call
  std::function<void(device_span, stream_ref)> before_reduction = {};
  // float16 or bfloat16: gradients of float32 and float64 are cast to memory of the buckets, and reduced there.
  // There is no cast back: see reduced().
  std::optional<dtype> reduce_as = {};
  // Each rank gets the sums of its own part of each bucket alone, and updates that part: see own() and
  // gather(). An optimizer then has the state of that part. Buckets are rounded up to 512 B for each rank.
  bool sharded = false;
};

// Keeps all parameters and gradients of one rank in one block, except those that the program owns. Gradients
// are reduced in place, a bucket at a time and the last added first, while the backward pass still runs.
// A graph of a step reduces at each launch. Simulated ranks of several processes throw not_supported.
// Threads: as the communicator. All ranks add the same items in the same order.
class gradient_buckets {
 public:
  explicit gradient_buckets(communicator&, bucket_options = {});
  gradient_buckets(gradient_buckets&&) noexcept;
  gradient_buckets& operator=(gradient_buckets&&) noexcept;
  // If an exception unwinds: as ~collective_group. Aborts all ranks as well if a reduction of this one waits
  // for others.
  ~gradient_buckets();

  // Requires: before build(). Returns: 0, 1, 2, … Throws: invalid_use, not_supported (an element type)
  int add(std::string name, std::int64_t count, dtype = float32, source_location = source_location::current());
  // The same, and parameter_tensor(i), gradient_tensor(i) and checkpoints have the shape. Throws: also invalid_use (a
  // negative extent, a size that overflows)
  int add(std::string name, shape const&, dtype = float32, source_location = source_location::current());
  // The same over memory that the program owns, in its layout. `parameter` is only handed out again: {} for
  // none. A bucket has memory of one owner. Of the program's, neighbours within one block of weir are reduced
  // as one, and all of the bucket in one call. Memory that weir does not know is reduced unregistered.
  // Neighbours follow each other in the order of add(). Requires: the same ones on all ranks. The memory lives until
  // the step's work is complete, a block of weir until finish() returns; of a captured step, until its last launch.
  // Declare it before the buckets: if an exception unwinds, their end lets go of a rank that waits for others.
  int add(std::string name, device_span parameter, device_span gradient, source_location = source_location::current());
  // Allocates the memory, zeroed, on the thread's current stream of the rank's device or on `home`.
  // Requires: other streams wait for that stream before they use the memory.
  // Throws: invalid_use (built before, nothing added, memory of another device, two gradients that share
  // memory, registered or sharded with memory of the program, another type in reduce_as), out_of_memory; if
  // registered, what register_pool() throws. Blocks: if registered, as register_pool()
  void build(source_location = source_location::current());
  void build(stream_ref home, source_location = source_location::current());
  int size() const noexcept;
  int bucket_count() const noexcept;
  bool is_sharded() const noexcept;
  // Throws: invalid_use (no such index, not built)
  device_span parameter(int, source_location = source_location::current()) const;
  device_span gradient(int, source_location = source_location::current()) const;
  // What is reduced: with reduce_as the cast gradient, otherwise the gradient.
  // Requires: of a cast one, the next step's mark_ready() comes behind the work that reads it, and behind clip().
  device_span reduced(int, source_location = source_location::current()) const;
  struct part {
    std::int64_t first, count;  // elements
  };
  // What this rank has the sums of, in reduced(i): all of it, unless sharded. Throws: invalid_use (as above)
  part own(int, source_location = source_location::current()) const;
  // The same of each rank, in order of rank. Sharded ones follow each other
  std::vector<part> parts(int, source_location = source_location::current()) const;
  std::string const& name(int, source_location = source_location::current()) const;  // as added
  // As added; without a shape one extent, the count.
  shape extents(int, source_location = source_location::current()) const;
  // parameter() and gradient() as contiguous tensors (weir/tensor.h) of the shape that was added, or of another one.
  // They own nothing. Requires: the memory outlives them. Throws: also invalid_use (another number of elements)
  tensor parameter_tensor(int, source_location = source_location::current()) const;
  tensor gradient_tensor(int, source_location = source_location::current()) const;
  tensor parameter_tensor(int, shape const&, source_location = source_location::current()) const;
  tensor gradient_tensor(int, shape const&, source_location = source_location::current()) const;
  // Return all, with gaps (zeros) between: element i of the parameters belongs to element i of the gradients.
  // Throws: invalid_use (types differ, memory of the program, not built)
  device_span parameters(source_location = source_location::current()) const;
  device_span gradients(source_location = source_location::current()) const;

  // Declares the gradient written by the work enqueued on `writer` so far. Once a bucket and all before it
  // are ready, their reduction starts on a separate stream.
  // Requires: a capture that has calls of a step has all of them, and is not discarded.
  // Throws: invalid_use (ready twice in a step; memory of the program that was freed; by before_reduction).
  void mark_ready(int gradient, stream_ref writer, source_location = source_location::current());
  // Makes `reader` wait for all reductions of this step, and begins the next step.
  // Throws: invalid_use naming gradients that are not ready: nothing has changed, they may still come. Also what
  // before_reduction throws
  void finish(stream_ref reader, source_location = source_location::current());
  // If sharded: gives every rank the parts of the parameters that the others have updated, in one call of all
  // buckets. Makes the stream wait for gathers that optimizer::step(stream, buckets) has begun, instead.
  // Requires: all ranks call it between two steps. Throws: invalid_use (not sharded; a stream of another
  // device; in a capture, and gathers began before it), as communicator::all_gather
  void gather(stream_ref, source_location = source_location::current());
  // Makes `reader` wait for the parameter, if optimizer::step(stream, buckets) has begun its gather. Call it before its
  // first use in the next forward pass. gather() and the next finish() wait for all.
  // Throws: invalid_use (no such index; not built; a stream of another device; in a capture, and the gather began
  // before it and is not known to be complete)
  void wait_gathered(int, stream_ref reader, source_location = source_location::current());
  // Scales what was reduced, so that the norm of all of it is at most `max_norm`; infinity: computes the norm
  // alone. Squares are summed as float64. Numbers of a step whose norm is not finite stay as they are. Gaps count:
  // they are zeros, unless before_reduction wrote there. A refused call is repeated before the next step, or never:
  // then other ranks' numbers differ.
  // Returns: where the norm before the scaling lies, one float32 until the next call. All ranks get the same
  // bits. Requires: `on` comes behind a stream that waited by finish().
  // Throws: invalid_use (a step that is not finished, a negative norm, a stream of another device),
  // not_supported (gradients of integers, sharded ones), out_of_memory
  device_span clip(double max_norm, stream_ref on, source_location = source_location::current());

 private:
  friend class optimizer;
  struct state;
  struct place {
    runtime& in;
    weir::device on;
  };
  place place_of(std::string_view operation, source_location) const;
  int add_shaped(std::string name, std::span<std::int64_t const> extents, std::int64_t count, dtype, source_location);
  std::span<std::int64_t const> extents_of(int, std::string_view operation, source_location) const;
  // The bucket whose parameters have that address; -1: none
  int bucket_at(void const* parameter) const noexcept;
  // Throws: invalid_use (a stream of another device; gathers are under way, unless a refused step is repeated)
  void require_step(stream_ref, std::string const& operation, bool is_repeated, source_location) const;
  // Sharded: behind the stream's work, on a stream of the buckets. Throws: as gather()
  void begin_gather(int bucket, stream_ref, source_location);
  tensor over(device_span, std::string_view operation, shape const&, source_location) const;
  std::unique_ptr<state> state_;
};

}  // namespace weir
