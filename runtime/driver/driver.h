// The seam: what weir asks of a machine with GPUs.
// Two drivers stand behind it, CUDA's and the simulated machine.
// Threads: any thread may make any call at any time;
// the caller's current CUDA device and context are left as found.
//
// Rules that hold for every call unless its comment says otherwise
//   * A refused call changes nothing, and the next call does not see its error.
//   * `device` is an ordinal of this driver, 0 <= device < device_count(). Streams and events belong to one
//     device and are named together with it.
//   * Enqueueing calls (copy, copy_peer, fill, record, wait, host_function, enqueue) and query never wait for
//     device work while fewer than 250 operations are queued on the device; with more, until there is room:
//     then host functions on other streams and the making and destroying of events may wait too. Every other
//     call MAY block until all work given so far, on every device, is done (unpin and release_segment always
//     do): never make one with a lock held that an allocation on another stream needs.
//   * Any call may answer lost: a sticky error of that device. A fault of its work may lose the other open
//     devices too: each says so by its own answers. Then every call on its streams and events, memory,
//     create, create_segment and release_segment answer the same; make_current, map, unmap, grant, release,
//     find, reserve and unreserve go on, and pin and unpin while another device lives. Or forked: the process
//     is a fork of the one that made the driver. Or unloading: the process ends.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

struct CUstream_st;
struct CUevent_st;

namespace weir::driver {

enum class code : std::uint8_t {
  ok,
  not_ready,         // a query: the work is not complete. Not an error
  out_of_memory,     // of the device, or of pinnable host memory
  invalid,           // an argument: no such device, handle or range; a pageable address in a copy
  not_permitted,     // here or now: inside a host function, in a capture
  not_supported,     // never on this machine
  lost,              // sticky: this device is gone for the life of the process; others may live
  forked,            // this process is a fork of the one that made the driver
  unloading,         // the process is ending; the driver may be gone
  failed,            // anything else; native says what
};
std::string_view name_of(code) noexcept;

struct status {
  code what = code::ok;
  int native = 0;  // the driver's own number (CUresult), 0 on the simulated machine
  constexpr bool ok() const noexcept { return what == code::ok; }
};
constexpr bool operator==(status const& a, status const& b) noexcept {
  return a.what == b.what && a.native == b.native;
}

template <class T>
struct result {
  status is;
  T value{};
  constexpr bool ok() const noexcept { return is.ok(); }
};

// CUDA: the CUstream. Every opened device has a legacy stream, and one for each thread that says per_thread:
// that names another stream on every thread, so whoever passes it on passes on something else. Neither is
// made or destroyed. Work of the legacy stream comes after all earlier work of the device's blocking streams
// and before their later work; the per-thread streams are blocking ones.
enum class stream_handle : std::uintptr_t { none = 0, legacy = 1, per_thread = 2 };
enum class event_handle : std::uintptr_t { none = 0 };   // CUDA: the CUevent and its device, see native_event
enum class memory_handle : std::uint64_t { none = 0 };   // physical memory, one `create`
enum class gate_handle : std::uint64_t { none = 0 };
enum class graph_handle : std::uint64_t { none = 0 };       // what was captured
enum class executable_handle : std::uint64_t { none = 0 };  // a graph that can be launched, any number of times
using address = std::uintptr_t;

struct device_info {
  std::string name;
  std::size_t total_memory = 0;      // bytes
  std::size_t granularity = 0;       // bytes: what create and map count in
  int major = 0, minor = 0, multi_processor_count = 0;
  int numa_node = -1;                // of the host memory nearest to it; -1: not known
  std::string pci_bus_id, uuid;
  bool maps = true;                  // reserve, create, map, grant work; else only create_segment
};
struct memory_info { std::size_t free = 0, total = 0; };  // bytes, of the whole device

enum class stream_kind : std::uint8_t {
  independent,  // not ordered with the legacy stream
  // ordered with the legacy stream, both ways:
  // weir's default stream is one, so bare launches are ordered with it
  blocking,
};
// Whose calls past this seam spoil a capture: calls that CUDA holds to be unsafe meanwhile, such as asking
// any event. Calls of this seam never do, whatever the mode.
enum class capture_mode : std::uint8_t {
  global,        // any thread's
  this_thread,   // those of the thread that began it
  relaxed,       // nobody's; and any thread may end it
};
enum class event_kind : std::uint8_t { order_only, timing, timing_blocking_sync, blocking_sync };

enum class where : std::uint8_t { pageable, pinned, device, unknown_device };
struct place {          // of an address
  where in = where::pageable;
  int device = -1;      // in == device: whose memory
};

struct peer_info { bool access = false, native_atomics = false; int nvlinks = 0; };

// Work: run once for each time the stream gets there (captured work: at each launch); drop exactly once, on
// whatever thread, also when the call that was given it is refused. Captured work is dropped with the last of
// its graph, its executables and their launches. `drop` may be null.
struct work {
  void (*run)(void*) = nullptr;
  void (*drop)(void*) = nullptr;
  void* state = nullptr;
  // enqueue only, for work that waits for other streams' work (the parts of a collective): run() not before
  // this answers true, and until then the stream stands still here. Null: at once. Asked on any thread with
  // the machine's locks held, when the stream gets here, after any other work has run, and at recheck().
  // Requires: no driver call inside.
  bool (*ready)(void*) = nullptr;
};
// What a piece of work reads or writes, for whoever judges order. Ranges of bytes.
struct touch { address at = 0; std::size_t bytes = 0; bool writes = false; };

class allocation_observer;

class driver {
 public:
  virtual ~driver() = default;
  driver() = default;
  driver(driver const&) = delete;
  driver& operator=(driver const&) = delete;

  virtual driver* behind() noexcept { return nullptr; }      // of a driver that stands in front of another: that one
  // After a wait of the host that answered `failed`: who waits for whom. Empty: that is not why.
  virtual std::string why_stuck() { return behind() ? behind()->why_stuck() : std::string(); }
  // who is told what calls do not show (allocation_observer.h). Null: nobody
  virtual allocation_observer* watching() noexcept { return nullptr; }

  // Machine -------------------------------------------------------------------------------------------------
  virtual bool simulated() const noexcept = 0;
  // false: a simulated machine whose streams move only inside calls or by hand
  virtual bool moves_by_itself() const noexcept { return true; }
  virtual int device_count() const noexcept = 0;                       // honours CUDA_VISIBLE_DEVICES. Makes no context
  virtual result<device_info> info(int device) = 0;                    // Makes no context
  // makes the device usable (CUDA: its primary context). Idempotent; made by the caller before anything below
  virtual status open(int device) = 0;
  virtual result<memory_info> memory(int device) = 0;                  // Requires: open
  // the exception to the rule above: sets the calling thread's CUDA device
  virtual status make_current(int device) = 0;
  // Blocks: until all streams of the device, foreign ones too, are done
  virtual status synchronize_device(int device) = 0;
  // what the driver claims of `from` reaching `to`'s memory; not proof
  virtual result<peer_info> peer(int from, int to) = 0;

  // Addresses and pages -------------------------------------------------------------------------------------
  // address space, no memory. Multiples of the granularity
  virtual result<address> reserve(std::size_t bytes, std::size_t alignment) = 0;
  virtual status unreserve(address, std::size_t bytes) = 0;  // Requires: exactly one reservation, nothing mapped in it
  // physical memory; fresh bytes are arbitrary. out_of_memory
  virtual result<memory_handle> create(int device, std::size_t bytes) = 0;
  virtual status release(memory_handle) = 0;                           // the bytes die with the last mapping after this
  // the whole handle, at an unmapped, granularity-aligned place of a reservation. No access until granted. A
  // handle may be mapped at several places
  virtual status map(address, std::size_t bytes, memory_handle) = 0;
  // exactly what one map mapped. In force at return for whatever RUNS later:
  // the caller waits for completion first
  virtual status unmap(address, std::size_t bytes) = 0;
  // `device` may read and write this mapped range (one or more whole mappings)
  virtual status grant(address, std::size_t bytes, int device) = 0;
  // the same for several in one call, bit d for device d: all of them, or none
  virtual status grant_all(address, std::size_t bytes, std::uint64_t devices) = 0;
  // Memory that other processes may map. Who maps it keeps the bytes, whoever made them has ended or not.
  // as create; what export_handle can name. out_of_memory; not_supported
  virtual result<memory_handle> create_shared(int device, std::size_t bytes) = 0;
  // a file descriptor that holds the memory;
  // the caller's to pass on and to close. invalid: not of create_shared
  virtual result<int> export_handle(memory_handle) = 0;
  // of another process's or one's own; the file stays the caller's. Requires: open. invalid: no exported
  // memory (of another size: here, or by map). Bytes are as they were left
  virtual result<memory_handle> import_handle(int device, std::size_t bytes, int file) = 0;
  // plain memory where mapping is not available (cudaMalloc). out_of_memory
  virtual result<address> create_segment(int device, std::size_t bytes) = 0;
  virtual status release_segment(int device, address) = 0;
  // page-locks host pages for every device. Page-aligned. out_of_memory
  virtual status pin(void* host, std::size_t bytes) = 0;
  virtual status unpin(void* host) = 0;         // Requires: the start of one pin; no device work still uses it
  virtual result<place> find(void const*) = 0;  // where an address lies, as far as the driver knows

  // Streams and events --------------------------------------------------------------------------------------
  // 0 normal, negative runs first; clamped
  virtual result<stream_handle> create_stream(int device, stream_kind, int priority) = 0;
  virtual status destroy_stream(int device, stream_handle) = 0;        // cancels nothing
  virtual status query_stream(int device, stream_handle) = 0;          // ok | not_ready
  virtual status synchronize_stream(int device, stream_handle) = 0;    // Blocks
  virtual result<bool> capturing(int device, stream_handle) = 0;       // never disturbs a capture
  // a stream that is not weir's; invalid when it is of another device. Simulated: not_supported
  virtual result<stream_handle> adopt(int device, CUstream_st*) = 0;
  virtual result<CUstream_st*> native(int device, stream_handle) = 0;  // Simulated: not_supported
  virtual result<event_handle> create_event(int device, event_kind) = 0;
  virtual status destroy_event(int device, event_handle) = 0;          // cancels nothing
  virtual result<CUevent_st*> native_event(event_handle) = 0;          // Simulated: not_supported
  // takes the stream as it is now; event and stream of one device, else invalid
  virtual status record(int device, stream_handle, event_handle) = 0;
  // the last record at the time of this call, of any device;
  // never recorded: nothing; its device is lost: lost
  virtual status wait(int device, stream_handle, event_handle) = 0;
  // ok (also when never recorded) | not_ready. "Complete" stays so until recorded again
  virtual status query_event(event_handle) = 0;
  virtual status synchronize_event(event_handle) = 0;                  // Blocks
  virtual result<float> elapsed_ms(event_handle start, event_handle end) = 0;  // timing events of one device; not_ready

  // Work ----------------------------------------------------------------------------------------------------
  // device and pinned memory only; any pageable byte: invalid; 0 bytes: nothing, ok. The host side may be
  // read or written at any time until completion
  virtual status copy(int device, stream_handle, void* dst, void const* src, std::size_t bytes) = 0;
  // works without access, staged by the driver
  virtual status copy_peer(int device, stream_handle, void* dst, int dst_device, void const* src, int src_device,
                           std::size_t bytes) = 0;
  // count patterns of 1, 2 or 4 bytes
  virtual status fill(int device, stream_handle, void* dst, std::uint32_t pattern, int pattern_bytes,
                      std::size_t count) = 0;
  // runs in order and holds its stream; a driver call inside answers not_permitted; after loss it never runs,
  // drop is called all the same, soon
  virtual status host_function(int device, stream_handle, work) = 0;
  // simulated work. CUDA: not_supported
  virtual status enqueue(int device, stream_handle, std::span<touch const>, work) = 0;
  virtual void recheck() {}                                            // some work's ready() answers true from now on
  // What reports are to call the stream: "stream N of gpu:D".
  // Where nobody says it, they count streams as they are made.
  virtual void number_stream(int /*device*/, stream_handle, std::uint64_t /*number*/) {}
  // native work just given to the stream touches these. For checkers
  virtual void touched(int /*device*/, stream_handle, std::span<touch const>) {}

  // Tools that look on --------------------------------------------------------------------------------------
  // They are told from now on which bytes are somebody's block.
  // Once, before the first grant. false: nobody could listen.
  virtual bool nvtx_memory() { return false; }
  // of granted memory. May be called with locks held, as the next
  virtual void block_taken(address, std::size_t /*bytes*/) {}
  virtual void block_given_back(address) {}                            // what was taken there; no work uses it any more

  // Capture -------------------------------------------------------------------------------------------------
  // From begin_capture on, what a stream is given is kept for a graph and does not run. The capture spreads
  // to every stream that waits for an event recorded inside it; each must be waited for by the first one,
  // after its last work, before the end. Kept are copy, copy_peer, fill, enqueue, native launches, record and
  // wait. Refused with not_permitted, and nothing else happens: hold, host_function, launch_graph,
  // destroy_stream and begin_capture on a captured stream. Refused with not_permitted, and the capture is
  // spoiled (all it is given is refused, and so is its end, which frees its streams): query_stream and
  // synchronize_stream of a captured stream, synchronize_device of its device; query_event, synchronize_event
  // and elapsed_ms of an event last recorded inside; a wait inside for an event last recorded outside, or in
  // another capture (both are spoiled); and, while a blocking stream is captured, all that the legacy stream
  // of its device is given or asked. An event last recorded inside a capture is no event outside it, until it
  // is recorded again: after the end asking it or waiting for it,
  // also inside another capture, is invalid and spoils nothing.
  virtual status begin_capture(int device, stream_handle, capture_mode) = 0;   // not_permitted: the legacy stream
  // On the stream it began on, and unless relaxed on the thread; else not_permitted, and it may be spoiled or
  // gone. not_permitted too when it was spoiled, and when a stream was not joined. But for the wrong stream
  // or thread, the streams are as before the capture.
  virtual result<graph_handle> end_capture(int device, stream_handle) = 0;
  // to be launched on that device's streams. The graph is no longer needed. out_of_memory
  virtual result<executable_handle> instantiate(int device, graph_handle) = 0;
  // One operation of the stream, and after all earlier launches of this executable; inside, only the captured
  // order holds. Counts as as many operations as were captured
  virtual status launch_graph(int device, stream_handle, executable_handle) = 0;
  virtual status destroy_graph(graph_handle) = 0;
  virtual status destroy_executable(executable_handle) = 0;            // cancels nothing

  // Proof tools ---------------------------------------------------------------------------------------------
  // later work of the stream waits until the gate opens. At most 4 closed gates a device, else not_permitted
  virtual result<gate_handle> hold(int device, stream_handle) = 0;
  virtual status open_gate(gate_handle) = 0;                           // once; then the handle is gone
};

struct opened {
  std::unique_ptr<driver> machine;  // null: none
  std::string why;                  // what was found, for a person: "3 GPUs, driver 580.1" or "libcuda.so.1 not found"
};
// Lives while this thread runs a host function, or drops work: calls of a driver then answer not_permitted.
class inside_work {
 public:
  inside_work() noexcept;
  ~inside_work();
  inside_work(inside_work const&) = delete;
  static bool here() noexcept;
};

opened open_cuda();                 // never throws; null without a usable GPU, and why

namespace sim {
// Work that waits for other streams' work (work::ready), in words: so that a circle through it can be named. It
// is asked with the machine's lock held: no driver call, no lock inside.
struct words {
  bool (*of)(void*);                       // the ready() of the work that these speak of
  std::string (*name)(void* work);         // "rank 0's part of all_reduce of 4 float32 (sum) (a.cpp:3)"
  bool (*needs)(void* work, void* other);  // it waits for that other one of them, which is still to run
  std::string (*missing)(void* work);      // what it waits for that nobody has given: "rank 1's part"; empty: nothing
};
// Requires: it lives for ever. The last one counts.
void explain_work_with(words const*) noexcept;
}  // namespace sim

}  // namespace weir::driver
