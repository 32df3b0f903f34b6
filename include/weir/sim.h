// weir/sim.h: steps, breaks and inspects the simulated machine, for tests.
// Threads: any; one thread at a time steps a machine.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "weir/runtime.h"
#include "weir/stream.h"

namespace weir WEIR_API {
namespace driver::sim {
class controls;
}

class simulation {  // a view of a runtime's machine, valid during the runtime's lifetime
 public:
  // Throws: invalid_use on a real machine
  static simulation of(runtime&, source_location = source_location::current());

  // Runs the stream's next operation. Returns: false if none can run. Throws: invalid_use
  // (scheduling::threads).
  bool step(stream_ref, source_location = source_location::current());
  // Runs all work. Throws: invalid_use naming the cycle if all remaining work waits
  void run(source_location = source_location::current());
  // Starts a host thread that the seed schedules (scheduling::seeded). It can switch at every driver call,
  // lock, wait and sleep of weir. `body` runs with this runtime current; so does the caller, from the first
  // spawn() to join(). Calls from other threads are refused meanwhile.
  // Requires: the program holds no lock of its own while it calls weir.
  // Throws: invalid_use (not seeded; a thread outside this machine; an empty function)
  void spawn(std::string name, std::function<void()> body, source_location = source_location::current());
  // Requires: before the runtime ends. Blocks: until all spawned threads have ended.
  // Throws: the exception of a thread; invalid_use naming each waiting thread if all remaining threads wait
  void join(source_location = source_location::current());
  // Makes the k-th driver call of that name from now on fail once: "map", "create", "copy", … or "any"; k = 1
  // is the next. Calls that allocate memory fail with "out of memory", others with "failed".
  // Returns: its number, for cancel_failure.
  std::uint64_t fail_call(std::string_view call, std::uint64_t k, source_location = source_location::current());
  bool cancel_failure(std::uint64_t number);  // Returns: false if the call has failed already
  void clear_failures();                      // cancels all failures that are still to come
  void lose_device(device, source_location = source_location::current());  // fails with a sticky error from now on
  // Removes the peer link from -> to.
  void disconnect(device from, device to, source_location = source_location::current());
  // Makes the link corrupt bytes from now on. The driver still offers it.
  void corrupt(device from, device to, source_location = source_location::current());
  // Takes memory as another process would.
  void consume_memory(device, size_t bytes, source_location = source_location::current());
  std::uint64_t seed() const noexcept;
  // Hash of all choices and operations so far: equal seeds and calls give equal hashes.
  std::uint64_t trace_hash() const noexcept;
  // Errors that the machine found: use of memory that is not mapped or not granted, and a host wait that
  // cannot end. Races are in race_reports() of weir/observe.h, with options::check_races.
  std::vector<std::string> findings() const;

 private:
  simulation(runtime&, driver::sim::controls&) noexcept;
  int ordinal(device, std::string_view operation, source_location) const;
  runtime* runtime_;
  driver::sim::controls* controls_;
};

// A stream of a simulated device that weir does not know, as a program's own CUDA stream is one. Code that
// gets streams by handle can so be tested without a GPU: give its handle to external_stream, borrow_stream or
// weir/c.h. A launch that names no stream is one on borrow_stream(device, nullptr), the legacy stream.
class simulated_stream {
 public:
  // Of the current runtime. Default: the current device, non_blocking.
  // Throws: invalid_use (a real machine, no such device)
  explicit simulated_stream(device = gpu, source_location = source_location::current());
  simulated_stream(device, stream_flags, source_location = source_location::current());
  // Destroys the stream; its work still runs, and its handle may be given to another stream.
  // Requires: before its runtime ends
  ~simulated_stream();
  simulated_stream(simulated_stream const&) = delete;
  simulated_stream& operator=(simulated_stream const&) = delete;
  CUstream_st* handle() const noexcept { return handle_; }

  // Begins a capture of it, and ends one, whose graph is discarded. Throws: invalid_use
  void begin_capture(source_location = source_location::current());
  void end_capture(source_location = source_location::current());

 private:
  runtime* runtime_;
  int device_ = 0;
  CUstream_st* handle_ = nullptr;
};

}  // namespace weir
