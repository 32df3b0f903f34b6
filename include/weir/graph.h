// weir/graph.h: work that is captured once and launched many times. Blocks that are allocated inside a
// capture are the graph's own memory.
// Threads: any; one call on a graph at a time. Other threads may allocate, copy and launch during a capture.
#pragma once
#include <functional>
#include <memory>

#include "weir/memory.h"

namespace weir WEIR_API {

class graph_memory;

// Which threads' unsafe calls to CUDA, not through weir, fail a capture (cudaStreamCaptureMode).
enum class capture_guard : std::uint8_t { this_thread, any_thread, none };
struct graph_options {
  // The graph shares this memory with others that never run at the same time. Null: it has memory of its own
  graph_memory const* memory = nullptr;
  capture_guard unsafe_calls = capture_guard::this_thread;
};
struct graph_footprint {
  size_t reserved = 0;  // bytes that launches may write, of all graphs with this memory. No launch takes more
  size_t live = 0;      // of these, in blocks that are not freed
  size_t driver = 0;    // bytes that the device had less after the last instantiate(), measured; 0: not made yet
};

// Memory for graphs that never run at the same time: each launch is ordered behind the launches of the
// others, by a stream or by waits. What one capture frees, or leaves free, serves the next. Blocks in use
// stay apart. What is freed outside serves a capture after empty_cache(), or once its last uses are known to be
// complete. The race checker reports launches that nothing orders.
class graph_memory {
 public:
  graph_memory();
  size_t reserved(source_location = source_location::current()) const;  // bytes, on all devices of this runtime
  // memory_segment::pool of what it holds on that device; 0: nothing
  std::uint64_t number(device = gpu, source_location = source_location::current()) const;

 private:
  friend class graph;
  friend class graph_memory_route;
  struct state;
  std::shared_ptr<state const> state_;
};

// For captures that another library begins: a captured stream of that device for which `accepts` is true
// allocates from this memory. Without a route such a capture has memory of its own, for as long as its graph.
class [[nodiscard]] graph_memory_route {
 public:
  // accepts: called at the first allocation of a capture, on any thread, and must not call weir.
  // Throws: invalid_use (no device, an empty function)
  graph_memory_route(graph_memory const&, weir::device, std::function<bool(CUstream_st*)> accepts,
                     source_location = source_location::current());
  ~graph_memory_route();  // `accepts` is called no more
  graph_memory_route(graph_memory_route const&) = delete;

 private:
  struct state;
  std::unique_ptr<state> state_;
};

// In a capture, work on the stream, and on streams that wait for it, goes into the graph and does not run.
//   * A block allocated inside is the graph's. Freed inside, it serves work inside that is ordered behind the free.
//   * A block that outlives the capture keeps its memory apart. Freed later, its memory stays with the graph.
//   * A block from before that is freed inside stays with the graph, if its home or a stream that is marked for it
//     is being captured.
//   * The graph's memory neither moves nor serves anything else until the graph and its launches are gone.
// Keep other memory that the graph uses as long as the graph.
class graph {
 public:
  // Captures `body` on the stream, which is current meanwhile. An exception from it ends the capture and
  // passes through; nothing is kept then.
  // Throws: invalid_use (a stream that is captured already, a borrowed one; work that was not joined, a call
  // that a capture does not allow), out_of_memory, device_lost, driver_error. Blocks: at most
  // 2 s, while another thread waits for all work of the device through weir
  static graph capture(stream_ref, std::function<void()> const& body, graph_options = {},
                       source_location = source_location::current());
  ~graph();  // its launches still run. Makes driver calls
  graph(graph&&) noexcept;
  graph& operator=(graph&&) noexcept;

  // Else the first launch does it. Throws: out_of_memory (of the driver), device_lost, driver_error
  void instantiate(source_location = source_location::current());
  // One operation of the stream, after earlier launches of this graph.
  // Throws: invalid_use (a stream of another device or runtime, a captured one), device_lost, driver_error
  void launch(stream_ref, source_location = source_location::current());
  void launch(source_location = source_location::current());  // on the current stream
  // Captures anew, into the same memory: later launches run this. Fast if only addresses and values differ.
  // Throws: as capture; the graph is as before then
  void update(stream_ref, std::function<void()> const& body, source_location = source_location::current());
  weir::device device() const noexcept;
  graph_footprint footprint(source_location = source_location::current()) const;  // exact from the capture on

 private:
  struct state;
  explicit graph(std::unique_ptr<state>) noexcept;
  state& usable(char const* operation, source_location) const;  // Throws: invalid_use
  std::unique_ptr<state> state_;
};

}  // namespace weir
