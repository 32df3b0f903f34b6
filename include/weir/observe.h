// weir/observe.h: torch's counters, and where the memory is.
// Threads: any; each answer is one consistent moment.
#pragma once
#include <functional>
#include <iosfwd>
#include <memory>
#include <vector>

#include "weir/runtime.h"

namespace weir {

// Bytes of device memory: in live blocks, rounded; and held of the driver.
// 0 before the first use of the device.
size_t memory_allocated(device = gpu, source_location = source_location::current());
size_t max_memory_allocated(device = gpu, source_location = source_location::current());
size_t memory_reserved(device = gpu, source_location = source_location::current());
size_t max_memory_reserved(device = gpu, source_location = source_location::current());
[[deprecated("torch renamed it: memory_reserved")]] size_t memory_cached(device = gpu,
                                                                         source_location = source_location::current());
[[deprecated("torch renamed it: max_memory_reserved")]] size_t max_memory_cached(
    device = gpu, source_location = source_location::current());

memory_statistics memory_stats(device = gpu, source_location = source_location::current());  // .flat() has torch's keys
// page-locked host memory, of all devices
memory_statistics pinned_memory_stats(source_location = source_location::current());
// peaks start again from what is current
void reset_peak_memory_stats(device = gpu, source_location = source_location::current());
// what was allocated and freed so far counts from zero again
void reset_accumulated_memory_stats(device = gpu, source_location = source_location::current());

// A table of about ten lines whose byte columns add up: reserved = allocated + pending + cached. Then a
// sentence for each thing worth knowing: whose cached memory is, what pending blocks wait for, what rounding
// and holes cost, what others hold.
std::string memory_summary(device = gpu, source_location = source_location::current());
// All devices of the current runtime and page-locked memory (device="cpu")
// as Prometheus' text 0.0.4, for an HTTP answer.
std::string memory_metrics(source_location = source_location::current());
// Who has the device's memory: by stream, the most bytes first.
// Cached memory of an idle stream serves others when they run short.
std::vector<stream_memory_use> memory_by_stream(device = gpu, source_location = source_location::current());
// Where the device's memory is now, with the remedies of an out_of_memory.
memory_report current_memory_report(device = gpu, source_location = source_location::current());

// Memory as it lies: stretches held of the driver, each without a hole,
// and in each its blocks and what is free, side by side.
// pending: given back, and streams it was marked for may still use it
enum class block_state : std::uint8_t { active_allocated, active_pending_free, inactive };
struct memory_block {
  std::uintptr_t address;
  size_t bytes;      // of all blocks of a segment together: the segment's
  size_t requested;  // as asked for; 0 unless allocated
  block_state state;
  source_location where;  // who took it; file_name() null: the history does not know it
};
// with other processes: this one's memory, another one's
enum class memory_sharing : std::uint8_t { none, exported, imported };
struct memory_segment {
  std::uintptr_t address;
  size_t bytes;
  std::uint64_t stream;  // whose allocations draw from it; 0: shared memory
  bool small;            // all of it serves blocks up to 32 KiB
  std::vector<memory_block> blocks;
  memory_sharing shared = memory_sharing::none;
  std::uint64_t readers = 0;  // other devices of this process that may use all of it, bit d for gpu:d
};
// By address. Each stream's memory as it was at one moment. Blocks:
// allocations of a stream, while its memory is looked at
std::vector<memory_segment> memory_snapshot(device = gpu, source_location = source_location::current());
// All devices of the current runtime in the pickle of torch.cuda.memory._dump_snapshot, with the history that
// was recorded (newest events as traces): PyTorch's viewer (its web page, or python -m
// torch.cuda._memory_viz) opens it. While other threads allocate, traces and segments may differ by what
// happened in between. Throws: invalid_use (the file cannot be written, and why)
void dump_memory_snapshot(std::string const& path, source_location = source_location::current());
// The same as a page for a browser, one file that needs no network:
// memory over time, and what lies where at any moment. Likewise
void dump_memory_page(std::string const& path, std::string const& title = {},
                      source_location = source_location::current());

// History: every block taken and given back, with time, thread, stream and line. Off until it is asked for;
// what it costs then: docs/where-did-my-memory-go.md. weir's own scratch memory (staging, trials of links) is
// not in it. One history a process.
struct history_options {
  // the ring keeps so many, of 80 bytes each, the newest; sums by line go on after older ones are forgotten
  size_t events = size_t{1} << 16;
  bool stacks = false;              // who called whom, up to 32 deep: microseconds an allocation
};
// Anew: what was recorded before is forgotten. Throws: invalid_use (no events, or more than 2^32), bad_alloc
void record_memory_history(history_options = {}, source_location = source_location::current());
void stop_memory_history();  // and what was recorded stays to be read

struct memory_event {
  std::int64_t ns;       // monotonic, from an arbitrary start
  std::string_view what;  // "alloc", "free", "oom"
  std::uintptr_t address;
  size_t bytes;          // as asked for; of a free of a block that was taken before the recording began: 0
  std::uint64_t stream;  // the block's home; 0: none (host memory)
  std::uint64_t thread;
  source_location where;  // file_name() null: not known
  std::vector<void const*> stack;  // return addresses, innermost first
};
// The newest events of a device, oldest first;
// of page-locked host memory with weir::cpu. Blocks: writers, while it is gathered
std::vector<memory_event> memory_history(device = gpu, source_location = source_location::current());

struct line_statistics {  // of one line of the program: blocks taken there, since the recording began
  source_location where;
  std::int64_t blocks, bytes;                  // live now
  std::int64_t blocks_at_peak, bytes_at_peak;  // live when most bytes of the device were
  std::int64_t total_blocks, total_bytes;      // ever
};
// the most bytes first. weir::cpu: page-locked memory
std::vector<line_statistics> memory_by_line(device = gpu, source_location = source_location::current());
std::string format(std::vector<line_statistics> const&);  // a table, a row for each line

// What appeared and vanished between two places of a program, by line. Begins a recording when there is none.
class memory_tracker {
 public:
  explicit memory_tracker(std::ostream& out, device = gpu, source_location = source_location::current());
  // prints what changed since the last time, or since it was made
  void track(source_location = source_location::current());
  memory_tracker(memory_tracker const&) = delete;
  ~memory_tracker();

 private:
  struct state;
  std::unique_ptr<state> state_;
};

// What options::check_races found in the current runtime: a defect of the program, seldom of weir. Whatever
// order its devices chose, the reports are the same, but for polls, unordered host threads and host
// functions: docs/testing.md. Empty without check_races.
struct race_report {
  // "race", "use after free", "freed in use", "source changed", "host too early", "undeclared use", "stuck";
  // of weir: "handed out too early", "unmapped in use"
  std::string kind;
  std::string text;      // which bytes of which block, both uses with line and stream, the remedy
  source_location first, second;  // file_name() null: not known, or there is only one
  std::uint64_t times;   // seen at these two places
};
// all so far. What nobody asks for is printed when the runtime or the process ends
std::vector<race_report> race_reports(source_location = source_location::current());
// Throws: race_found with the first report, if there is one
void require_no_races(source_location = source_location::current());
// Called for each new report, on the thread that made the call it was found in;
// it calls nothing of weir. An empty one ends it.
void on_race(std::function<void(race_report const&)>, source_location = source_location::current());

}  // namespace weir
