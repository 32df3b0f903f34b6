// The driver interface: all that weir needs of a machine with GPUs. CUDA and the simulator implement it.
// Threads: any, at any time. The caller's current CUDA device and context stay as they are.
//
// Rules for every call unless its comment says otherwise; calls.h lists the codes that each may answer
//   * A refused call changes nothing, and the next call does not report its error.
//   * `device` is an ordinal of this driver, 0 <= device < device_count(). Streams and events belong to one
//     device and are named together with it.
//   * Enqueueing calls (copy, copy_peer, fill, record, wait, host_function, enqueue) and queries never wait
//     for device work while fewer than 250 operations are queued on the device. With more they wait for room;
//     host functions on other streams, and calls that create or destroy events, may then wait too. All other
//     calls MAY block until all work enqueued so far on every device is done; unpin and release_segment always
//     do. Never make one with a lock held that an allocation on another stream needs.
//   * Any call may answer lost, a sticky error of its device. A fault may lose other open devices too; each
//     reports its own loss. Then all calls on the device's streams and events, memory, create, create_segment
//     and release_segment answer lost. make_current, map, unmap, grant, release, find, reserve and unreserve
//     still work, and so do pin and unpin while another device is usable.
//   * Any call may answer forked (in a fork of the process that made the driver), or unloading.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

struct CUstream_st;
struct CUevent_st;

namespace weir::driver {

enum class code : std::uint8_t {
  ok,
  not_ready,      // a query: the work is not complete; not an error
  out_of_memory,  // of the device, or of pinnable host memory
  invalid,        // an argument: no such device, handle or range; a pageable address in a copy
  not_permitted,  // not here or now: inside a host function, in a capture
  not_supported,  // never on this machine
  lost,           // sticky: this device is unusable until the process ends
  forked,         // this process is a fork of the one that made the driver
  unloading,      // the process is ending; the driver may be gone
  failed,         // any other error; see native
};
std::string_view name_of(code) noexcept;

struct status {
  code what = code::ok;
  int native = 0;  // the driver's error number (CUresult); 0 on the simulated machine
  constexpr bool ok() const noexcept { return what == code::ok; }
  bool operator==(status const&) const = default;
};
inline constexpr status no_addresses{code::out_of_memory, -1};  // weir's own: of addresses, not of memory

template <class T>
struct result {
  status is;
  T value{};
  constexpr bool ok() const noexcept { return is.ok(); }
};

// CUDA: the CUstream. Every opened device has a legacy stream, and a per_thread stream for each thread.
// per_thread names a different stream on every thread, so do not pass it to another thread. Neither is
// created or destroyed. Legacy work runs after all earlier work of the device's blocking streams and before
// their later work. Per-thread streams are blocking streams.
enum class stream_handle : std::uintptr_t { none = 0, legacy = 1, per_thread = 2 };
enum class event_handle : std::uintptr_t { none = 0 };  // CUDA: the CUevent and its device, see native_event
enum class memory_handle : std::uint64_t { none = 0 };  // physical memory, one `create`
enum class gate_handle : std::uint64_t { none = 0 };
enum class graph_handle : std::uint64_t { none = 0 };       // what was captured
enum class executable_handle : std::uint64_t { none = 0 };  // can be launched any number of times
using address = std::uintptr_t;

// What one device's incomplete uploads may have together, so that none waits. Larger ones take one half of it or both.
struct upload_room {
  std::size_t bytes = 0;
  std::size_t most_of_a_small_one = 0;
  std::size_t most_of_one = 0;  // above `bytes`, it waits for all work that it is ordered behind
  std::size_t taken_by(std::size_t upload) const noexcept {
    if (upload <= most_of_a_small_one)
      return upload;
    return upload <= bytes / 2 ? bytes / 2 : bytes;
  }
};

struct device_info {
  std::string name;
  std::size_t total_memory = 0;        // bytes
  std::size_t granularity = 0;         // bytes: create and map take multiples of it
  std::size_t shared_granularity = 0;  // bytes, a multiple of it: best for create_shared
  int major = 0, minor = 0, multi_processor_count = 0;
  int numa_node = -1;  // of the nearest host memory; -1: not known
  std::string pci_bus_id, uuid;
  bool maps = true;        // reserve, create, map and grant work; false: only create_segment does
  bool multicast = false;  // it can take part in it (NVLink SHARP)
};
// Bytes, of the whole device.
struct memory_info {
  std::size_t free = 0, total = 0;
};
inline constexpr int no_device = -1;

enum class stream_kind : std::uint8_t {
  independent,  // not ordered with the legacy stream
  // Ordered with the legacy stream, and so with launches without a stream, as weir's default stream is.
  blocking,
};
// Which threads' calls to CUDA (not through this interface) spoil a capture, if CUDA holds them unsafe, such
// as a query of any event. Calls of this interface never do, in any mode.
enum class capture_mode : std::uint8_t {
  global,       // any thread's
  this_thread,  // those of the thread that began it
  relaxed,      // none; any thread may end the capture
};
enum class event_kind : std::uint8_t { order_only, timing, timing_blocking_sync, blocking_sync };

enum class where : std::uint8_t { pageable, pinned, device, unknown_device };
struct place {  // of an address
  where in = where::pageable;
  int device = -1;  // in == device: whose memory
};

// An external stream, as it is now. One that is captured has no id: to ask for it would spoil the capture.
struct identity {
  stream_handle handle = stream_handle::none;
  bool captured = false;
  std::uint64_t id = 0;  // never given to another stream in this process, unlike a handle
};

struct peer_info {
  bool access = false, native_atomics = false;
  int nvlinks = 0;
};

// `run` is called each time the stream reaches the work; captured work runs at each launch. `drop` is called
// exactly once on any thread, also if the call is refused. Captured work is dropped with the last of its
// graph, its executables and their launches. `drop` may be null.
struct work {
  void (*run)(void*) = nullptr;
  void (*drop)(void*) = nullptr;
  void* state = nullptr;
  // For enqueue, and work that waits for other streams (the parts of a collective). The stream stops here and
  // run() waits until ready() returns true. Null: no wait. ready() is called on any thread with the machine's
  // locks held: when the stream arrives, after other work has run, and at recheck().
  // Requires: no driver call inside.
  bool (*ready)(void*) = nullptr;
};
// The bytes that work reads or writes, for race checkers.
struct touch {
  address at = 0;
  std::size_t bytes = 0;
  bool writes = false;
};

class allocation_observer;
namespace check {
class control;
}

class driver {
 public:
  virtual ~driver() = default;
  driver() = default;
  driver(driver const&) = delete;
  driver& operator=(driver const&) = delete;

  virtual driver* behind() noexcept { return nullptr; }  // the driver that this one wraps; null: none
  // After a host wait that answered `failed`: the cycle of waits. Empty: no cycle.
  virtual std::string why_stuck() { return behind() ? behind()->why_stuck() : std::string(); }
  // The observer of allocations and waits (allocation_observer.h). Null: none
  virtual allocation_observer* watching() noexcept { return nullptr; }
  // The race checker in front of this machine (race_control.h). Null: none
  virtual check::control* checker() noexcept { return behind() ? behind()->checker() : nullptr; }

  // Machine -------------------------------------------------------------------------------------------------
  virtual bool simulated() const noexcept = 0;
  // False: a simulated machine whose streams progress only inside calls, or step by step.
  virtual bool moves_by_itself() const noexcept { return true; }
  // True: a simulated machine whose seed decides when each host thread runs.
  virtual bool schedules_threads() const noexcept { return false; }
  virtual int device_count() const noexcept = 0;     // of CUDA_VISIBLE_DEVICES; creates no context
  virtual result<device_info> info(int device) = 0;  // creates no context
  // Makes the device usable (CUDA: retains its primary context). Idempotent. Required by the calls below.
  virtual status open(int device) = 0;
  virtual result<memory_info> memory(int device) = 0;  // Requires: open
  // Sets the calling thread's CUDA device: the one call that does. no_device: none is current then.
  virtual status make_current(int device) = 0;
  // The calling thread's CUDA device, also one that weir did not set. no_device: none is current, or one that
  // has no ordinal here.
  virtual result<int> current_device() = 0;
  // Blocks: until all streams of the device are done, external ones too
  virtual status synchronize_device(int device) = 0;
  // What the driver reports of `from` accessing `to`'s memory. weir tests each link before it is used.
  virtual result<peer_info> peer(int from, int to) = 0;

  // Addresses and pages -------------------------------------------------------------------------------------
  // Address space without memory. Requires: multiples of the granularity
  virtual result<address> reserve(std::size_t bytes, std::size_t alignment) = 0;
  virtual status unreserve(address, std::size_t bytes) = 0;  // Requires: exactly one reservation, nothing mapped in it
  // Physical memory; fresh bytes are arbitrary.
  virtual result<memory_handle> create(int device, std::size_t bytes) = 0;
  virtual status release(memory_handle) = 0;  // the memory is freed with its last mapping
  // Maps a whole handle into a reservation, without access until grant. A handle may be mapped several times.
  // Requires: the range is unmapped and aligned to the granularity
  virtual status map(address, std::size_t bytes, memory_handle) = 0;
  // Takes effect at return, also for work that runs later.
  // Requires: the range of exactly one map; work on it is complete
  virtual status unmap(address, std::size_t bytes) = 0;
  // Lets `device` read and write one or more whole mappings.
  virtual status grant(address, std::size_t bytes, int device) = 0;
  // grant for several devices: bit d is device d. All of them, or none.
  virtual status grant_all(address, std::size_t bytes, std::uint64_t devices) = 0;
  // create for memory that other processes and, if the device can, network cards may map. A mapping keeps the
  // bytes, even after its creator ends.
  virtual result<memory_handle> create_shared(int device, std::size_t bytes) = 0;
  // Returns: a new file descriptor of the memory; the caller closes it. invalid: not from create_shared
  virtual result<int> export_handle(memory_handle) = 0;
  // Imports memory of any process; the file stays the caller's. The bytes keep their values. Requires: open.
  // invalid: not exported memory. A wrong size is found here, or by map.
  virtual result<memory_handle> import_handle(int device, std::size_t bytes, int file) = 0;
  // Plain memory (cudaMalloc), for devices that cannot map.
  virtual result<address> create_segment(int device, std::size_t bytes) = 0;
  virtual status release_segment(int device, address) = 0;
  // Page-locks host pages for every device. Requires: page-aligned
  virtual status pin(void* host, std::size_t bytes) = 0;
  virtual status unpin(void* host) = 0;         // Requires: the start of one pin; no device work uses it
  virtual result<place> find(void const*) = 0;  // as far as the driver knows

  // Streams and events --------------------------------------------------------------------------------------
  // priority: 0 is normal, lower values run first; clamped
  virtual result<stream_handle> create_stream(int device, stream_kind, int priority) = 0;
  virtual status destroy_stream(int device, stream_handle) = 0;      // pending work still runs
  virtual status query_stream(int device, stream_handle) = 0;        // ok or not_ready
  virtual status synchronize_stream(int device, stream_handle) = 0;  // Blocks
  virtual result<bool> capturing(int device, stream_handle) = 0;     // never spoils a capture
  // The number of the stream's capture, of all its streams and of no other capture. 0: it is not captured.
  // Never spoils a capture. not_permitted: a spoiled capture, which has no number any more
  virtual result<std::uint64_t> capture_of(int device, stream_handle) = 0;
  // Names an external stream. Null: the legacy stream. invalid: of another device, unless it is captured:
  // then it is not asked. Simulated: a handle of create_stream. Requires: the stream exists
  virtual result<stream_handle> adopt(int device, CUstream_st*) = 0;
  // Requires: as adopt. Does not look whether the stream is of another device.
  virtual result<identity> identify(int device, CUstream_st*) = 0;
  // The ordinal of an external stream's device. `device` is the one that is asked, and that of the legacy and
  // the per-thread stream. not_permitted: it is captured. Requires: the stream exists
  virtual result<int> stream_device(int device, CUstream_st*) = 0;
  // Of a stream that create_stream or adopt named. not_permitted: a captured one, which is not asked
  virtual result<stream_kind> kind_of(int device, stream_handle) = 0;  // never spoils a capture
  virtual result<CUstream_st*> native(int device, stream_handle) = 0;  // Simulated: not_supported
  virtual result<event_handle> create_event(int device, event_kind) = 0;
  virtual status destroy_event(int device, event_handle) = 0;  // pending waits and records stay valid
  virtual result<CUevent_st*> native_event(event_handle) = 0;  // Simulated: not_supported
  // Covers the stream's work so far. invalid: event and stream are of different devices
  virtual status record(int device, stream_handle, event_handle) = 0;
  // The stream waits for the latest record so far, of any device. Never recorded: no wait.
  virtual status wait(int device, stream_handle, event_handle) = 0;
  // ok (also if never recorded) or not_ready. A complete event stays complete until recorded again.
  virtual status query_event(event_handle) = 0;
  virtual status synchronize_event(event_handle) = 0;                          // Blocks
  virtual result<float> elapsed_ms(event_handle start, event_handle end) = 0;  // timing events of one device; not_ready

  // Work ----------------------------------------------------------------------------------------------------
  // Device and pinned memory only. invalid: a pageable byte. 0 bytes: ok, nothing is done. The host side may
  // be read or written at any time until completion.
  virtual status copy(int device, stream_handle, void* dst, void const* src, std::size_t bytes) = 0;
  // Needs no access; the driver may stage the copy.
  virtual status copy_peer(int device, stream_handle, void* dst, int dst_device, void const* src, int src_device,
                           std::size_t bytes) = 0;
  // Pageable host memory to the device, through memory of the driver. The source has been read when the call returns.
  // invalid: a byte of the destination is pageable. Requires: the driver does not know the source's first byte.
  // Blocks, unlike other work: until the driver has room, see upload_room.
  virtual status upload(int device, stream_handle, void* dst, void const* src, std::size_t bytes) = 0;
  virtual upload_room room_for_uploads() noexcept = 0;
  // Writes count patterns of 1, 2 or 4 bytes.
  virtual status fill(int device, stream_handle, void* dst, std::uint32_t pattern, int pattern_bytes,
                      std::size_t count) = 0;
  // Runs in stream order; later work of the stream waits for it. Driver calls inside answer not_permitted.
  // After a loss only drop is called, soon.
  virtual status host_function(int device, stream_handle, work) = 0;
  // Simulated work. CUDA: not_supported
  virtual status enqueue(int device, stream_handle, std::span<touch const>, work) = 0;
  virtual void recheck() {}  // some work's ready() has become true
  // The stream's number in reports: "stream N of gpu:D". Default: numbered in order of creation.
  virtual void number_stream(int /*device*/, stream_handle, std::uint64_t /*number*/) {}
  // The native work just enqueued on the stream touches these. For checkers.
  virtual void touched(int /*device*/, stream_handle, std::span<touch const>) {}

  // Observing tools -----------------------------------------------------------------------------------------
  // Starts to report blocks to NVTX tools. False: no tool can listen. Requires: once, before the first grant.
  virtual bool nvtx_memory() { return false; }
  // A block of granted memory. Both calls may be made with locks held.
  virtual void block_taken(address, std::size_t /*bytes*/) {}
  virtual void block_given_back(address) {}  // Requires: no work uses the block

  // Capture -------------------------------------------------------------------------------------------------
  // While a stream is captured, enqueued work goes into a graph and does not run. Every stream that waits for
  // an event recorded inside joins the capture. The first stream must wait for the last work of each before
  // the end. copy, copy_peer, fill, enqueue, native launches, record and wait are captured.
  // not_permitted on a captured stream, with no other effect: hold, host_function, launch_graph,
  // destroy_stream, begin_capture.
  // not_permitted, and the capture is spoiled:
  //   * query_stream and synchronize_stream of a captured stream, synchronize_device of its device
  //   * query_event, synchronize_event and elapsed_ms of an event last recorded inside
  //   * a wait inside for an event last recorded outside, or in another capture: both are spoiled
  //   * while a blocking stream is captured, every call on the legacy stream of its device
  // A spoiled capture refuses all work and its end; the end frees its streams.
  // After the end, an event last recorded inside is invalid until it is recorded again. Queries and waits,
  // also inside another capture, answer invalid and spoil nothing.
  virtual status begin_capture(int device, stream_handle, capture_mode) = 0;  // not_permitted: the legacy stream
  // Requires: the stream that began the capture, and its thread unless relaxed; else not_permitted, and the
  // capture may be spoiled or gone. not_permitted also if it was spoiled or a stream was not joined. Except
  // after the wrong stream or thread, the streams are as before the capture.
  virtual result<graph_handle> end_capture(int device, stream_handle) = 0;
  // The graph of the stream's capture keeps `state` until `drop`: when the graph, its executables and their
  // launches are gone, or the capture has failed. Called once on any thread, with locks held, also if this
  // call is refused.
  // Requires of drop: no driver call, nor a lock held during one. not_permitted: not captured, or spoiled
  virtual status keep_with_graph(int device, stream_handle, void (*drop)(void*), void* state) = 0;
  // For launches on streams of `device`. The graph may then be destroyed.
  virtual result<executable_handle> instantiate(int device, graph_handle) = 0;
  // One operation of the stream, after all earlier launches of this executable. Inside, only the captured
  // order holds. Counts as as many queued operations as were captured.
  virtual status launch_graph(int device, stream_handle, executable_handle) = 0;
  // Later launches run this graph. Earlier ones are unchanged. What the graph before keeps stays until its launches
  // are over, what this one keeps until the executable and its launches are gone. not_supported, and nothing has
  // changed: the graphs differ in more than the addresses and values of their operations
  virtual status update(int device, executable_handle, graph_handle) = 0;
  virtual status destroy_graph(graph_handle) = 0;
  virtual status destroy_executable(executable_handle) = 0;  // pending launches still run

  // For tests -----------------------------------------------------------------------------------------------
  // Later work of the stream waits until the gate opens. not_permitted: 4 gates of the device are closed
  virtual result<gate_handle> hold(int device, stream_handle) = 0;
  virtual status open_gate(gate_handle) = 0;  // Requires: closed; ends the handle
};

struct opened {
  std::unique_ptr<driver> machine;  // null: none
  std::string why;                  // for people: "3 GPUs, driver 580.1" or "libcuda.so.1 not found"
};
// While one exists, this thread runs or drops work, and driver calls answer not_permitted.
class inside_work {
 public:
  inside_work() noexcept;
  ~inside_work();
  inside_work(inside_work const&) = delete;
  static bool here() noexcept;
};

opened open_cuda();  // null and why without a usable GPU; never throws

namespace sim {
// Work that waits for other streams' work (work::ready), in words: so that a circle through it can be named.
// It is asked with the machine's lock held: no driver call, no lock inside.
struct words {
  bool (*of)(void*);                       // the ready() of the work that these speak of
  std::string (*name)(void* work);         // "rank 0's part of all_reduce of 4 float32 (sum) (a.cpp:3)"
  bool (*needs)(void* work, void* other);  // it waits for that other one of them, which is still to run
  std::string (*missing)(void* work);      // the missing work that it waits for: "rank 1's part"; empty: none
};
// Requires: it lives for ever. The last one counts.
void explain_work_with(words const*) noexcept;
words const* words_of_work() noexcept;  // null: none
}  // namespace sim

}  // namespace weir::driver
