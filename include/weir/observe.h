// weir/observe.h: torch's memory counters, snapshots, the allocation history and race reports.
// Threads: any; each answer is one consistent moment.
#pragma once
#include <functional>
#include <iosfwd>
#include <memory>
#include <vector>

#include "weir/runtime.h"

namespace weir WEIR_API {

// Bytes of device memory. allocated: in live blocks, rounded; reserved: held from the driver. 0 before the
// first use of the device.
size_t memory_allocated(device = gpu, source_location = source_location::current());
size_t max_memory_allocated(device = gpu, source_location = source_location::current());
size_t memory_reserved(device = gpu, source_location = source_location::current());
size_t max_memory_reserved(device = gpu, source_location = source_location::current());

memory_statistics memory_stats(device = gpu, source_location = source_location::current());  // .flat() has torch's keys
// of page-locked host memory, for all devices
memory_statistics pinned_memory_stats(source_location = source_location::current());
// resets each peak to the current value
void reset_peak_memory_stats(device = gpu, source_location = source_location::current());
// resets the allocated and freed totals to zero
void reset_accumulated_memory_stats(device = gpu, source_location = source_location::current());

// Returns a table of about ten lines in which reserved = allocated + pending + cached. Sentences below it
// name the streams of cached memory, the work that pending blocks wait for, the cost of rounding and unmapped
// blocks, and memory of others.
std::string memory_summary(device = gpu, source_location = source_location::current());
// Returns all devices of the current runtime and page-locked memory (device="cpu") as Prometheus text 0.0.4.
std::string memory_metrics(source_location = source_location::current());
// Returns the memory by stream, the most bytes first. Idle streams' cached memory serves others if short.
std::vector<stream_memory_use> memory_by_stream(device = gpu, source_location = source_location::current());
// Returns where the device's memory is now, with the remedies of an out_of_memory.
memory_report current_memory_report(device = gpu, source_location = source_location::current());

// Layout of memory: segments held from the driver, each without an unmapped block, divided into blocks and
// free ranges. active_pending_free: freed, and a marked stream may still use it.
enum class block_state : std::uint8_t { active_allocated, active_pending_free, inactive };
struct memory_block {
  std::uintptr_t address;
  size_t bytes;      // the blocks of a segment add up to the segment
  size_t requested;  // as requested; 0 unless allocated
  block_state state;
  source_location where;  // line of the allocation; file_name() null: not in the history
};
// with other processes: exported by this process, or imported from another
enum class memory_sharing : std::uint8_t { none, exported, imported };
struct memory_segment {
  std::uintptr_t address;
  size_t bytes;
  std::uint64_t stream;  // the stream that allocates from it; 0: shared memory
  bool small;            // all of it serves blocks of up to 32 KiB
  std::vector<memory_block> blocks;
  memory_sharing shared = memory_sharing::none;
  std::uint64_t readers = 0;  // other devices of this process that may access all of it, bit d for gpu:d
  std::uint64_t pool = 0;     // pool::number; 0: of no pool, or of one that has ended
};
// Returns the segments by address. Each stream's memory is consistent at one moment.
// Blocks: allocations of a stream while weir reads its memory.
std::vector<memory_segment> memory_snapshot(device = gpu, source_location = source_location::current());
// Writes all devices of the current runtime and the recorded history (newest events as traces) in the pickle
// format of torch.cuda.memory._dump_snapshot. PyTorch's viewer opens it (its web page, or python -m
// torch.cuda._memory_viz). Traces and segments may differ by what other threads allocate meanwhile.
// Throws: invalid_use (the file cannot be written, and why).
void dump_memory_snapshot(std::string const& path, source_location = source_location::current());
// Writes the same as one HTML file without network access: memory over time, the layout at any time. The first
// line of `title` is its headline. Throws: likewise.
void dump_memory_page(std::string const& path, std::string const& title = {},
                      source_location = source_location::current());

// History: every allocation and free, with time, thread, stream and line. Off by default;
// docs/how-to/where-did-my-memory-go.md states the cost. weir's internal memory (staging, link tests) is not
// recorded. A process has one history.
struct history_options {
  // size of the ring, 80 bytes an event; the oldest are overwritten, and sums by line still count them
  size_t events = size_t{1} << 16;
  bool stacks = false;  // call stacks, up to 32 deep: microseconds an allocation
};
// Starts recording, discards older records. Throws: invalid_use (no events, or more than 2^32), bad_alloc
void record_memory_history(history_options = {}, source_location = source_location::current());
void stop_memory_history();  // keeps what was recorded

struct memory_event {
  std::int64_t ns;        // monotonic, from an arbitrary start
  std::string_view what;  // "alloc", "free", "oom"
  std::uintptr_t address;
  size_t bytes;          // as requested
  std::uint64_t stream;  // the block's home; 0: none (host memory)
  std::uint64_t thread;
  source_location where;           // file_name() null: unknown
  std::vector<void const*> stack;  // return addresses, innermost first
};
// Returns the newest events of a device, oldest first; with weir::cpu, of page-locked host memory.
// Blocks: threads that record, while the events are gathered.
std::vector<memory_event> memory_history(device = gpu, source_location = source_location::current());

struct line_statistics {  // of one source line: blocks allocated there since the recording began
  source_location where;
  std::int64_t blocks, bytes;                  // live now
  std::int64_t blocks_at_peak, bytes_at_peak;  // live when the device's live bytes peaked
  std::int64_t total_blocks, total_bytes;      // all allocations
};
// the most bytes first; weir::cpu: page-locked memory
std::vector<line_statistics> memory_by_line(device = gpu, source_location = source_location::current());
std::string format(std::vector<line_statistics> const&);  // a table, one row for each line

// Prints what was allocated and freed between two points, by line. Starts a history if none is recorded.
class memory_tracker {
 public:
  explicit memory_tracker(std::ostream& out, device = gpu, source_location = source_location::current());
  // prints the changes since the last call, or since construction
  void track(source_location = source_location::current());
  memory_tracker(memory_tracker const&) = delete;
  ~memory_tracker();

 private:
  struct state;
  std::unique_ptr<state> state_;
};

// A finding of options::check_races: a defect of the program, rarely of weir. The order that devices chose decides
// of three alone: uses with a query between them, work of unordered host threads, and pinned sources that change
// during a copy (docs/how-to/test-without-a-gpu.md).
struct race_report {
  // "race", "use after free", "freed in use", "source changed", "host too early", "undeclared use", "stuck";
  // of weir: "handed out too early", "unmapped in use". Of possible_races(): "possible race"
  std::string kind;
  std::string text;               // bytes and block, both uses with line and stream, the remedy
  source_location first, second;  // file_name() null: unknown, or there is only one use
  std::uint64_t times;            // how often it occurred at these two places
};
// All reports of the current runtime; none without check_races. Unqueried ones are printed when it or the
// process ends.
std::vector<race_report> race_reports(source_location = source_location::current());
// Pairs of uses that may race, of which at least one is known by a pointer of a launch past weir alone. They are none
// of race_reports(), and none sets the exit status. Empty without a watcher of CUDA's calls.
std::vector<race_report> possible_races(source_location = source_location::current());
// What the checker did not judge, as a sentence: uses that no call of weir declares. An empty race_reports()
// says nothing about these. Empty: none, as usual on simulated devices, or without check_races.
std::string races_not_judged(source_location = source_location::current());
// For reports of CUDA calls that weir does not make: the last line that is known of the calling thread, in a
// language of its own. A report has it behind the place on the stack. Null: no more. Requires: it blocks on nothing.
void name_race_places(source_location (*last_line)() noexcept) noexcept;
// Throws: race_found with the first report, if any
void require_no_races(source_location = source_location::current());
// Sets the callback for each new report; an empty one removes it. It runs on the thread whose call revealed
// the race. Requires: it makes no weir call. Blocks: until no other thread runs the old one
void on_race(std::function<void(race_report const&)>, source_location = source_location::current());

}  // namespace weir
