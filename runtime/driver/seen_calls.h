// What a watcher of the CUDA driver tells a race checker: the calls of this process that weir did not make.
// Threads: any. Each call is told on the thread that made it, in the order of that thread: after it succeeded, or before
// a call that gives an address or a handle back.
// Blocks: on the checker's lock alone. A stream that the checker does not know is asked for its kind, by a driver call.
// Throws: nothing. What the checker had no host memory for is counted, and said at the end.
//
// Streams and events are CUDA's handles as integers: 0 and 1 are the legacy stream, 2 the caller's per-thread stream.
// What weir calls itself, and what the program enqueues inside weir::launch, is declared: it is not judged again.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/call_site.h"
#include "runtime/driver/driver.h"

namespace weir::driver::check {

// A pointer that a launch was given.
struct seen_pointer {
  address at = 0;
  bool writes = true;         // false: the kernel's signature says that it only reads (float const*)
  bool in_structure = false;  // found inside a parameter that is a structure by value: it may be stale
  bool is_typed = true;       // false: the kernel has no signature that tells whether it is `const`
};

class seen_calls {
 public:
  using stream = std::uintptr_t;
  using event = std::uintptr_t;
  using executable = std::uintptr_t;
  static constexpr stream no_stream = ~stream{0};

  // Names of kernels and of files live as long as the process. A mangled name is printed demangled. The pointers of a
  // launch stand in the order of its parameters.

  virtual void stream_made(int device, stream, bool blocking) noexcept = 0;
  virtual void stream_gone(int device, stream) noexcept = 0;

  // Work. A watcher tells none that is captured, unless weir captures it; `graph_made` tells what a graph does.
  virtual void launched(int device, stream, char const* kernel, std::span<seen_pointer const>, base::site) noexcept = 0;
  // waits: the host has waited for it (cudaMemcpy)
  virtual void copied(int device, stream, address to, address from, std::size_t bytes, bool waits,
                      base::site) noexcept = 0;
  virtual void filled(int device, stream, address to, std::size_t bytes, bool waits, base::site) noexcept = 0;
  virtual void host_function(int device, stream, base::site) noexcept = 0;

  // Order
  virtual void recorded(int device, stream, event) noexcept = 0;
  virtual void waited(int device, stream, event) noexcept = 0;
  virtual void event_gone(event) noexcept = 0;
  virtual void stream_done(int device, stream) noexcept = 0;  // cudaStreamSynchronize, or a query that said yes
  virtual void event_done(event) noexcept = 0;                // likewise
  virtual void device_done(int device) noexcept = 0;          // cudaDeviceSynchronize

  // Memory that the program took without weir. device -1: pinned host memory. no_stream: cudaMalloc and its like
  virtual void allocated(int device, stream, address at, std::size_t bytes, base::site) noexcept = 0;
  // no_stream: cudaFree and its like, which wait for all work of the device, those of host memory for that of all
  virtual void freed(int device, stream, address at, base::site) noexcept = 0;  // device: of the stream

  // Each block of the program that begins there, as cudaFree does.
  virtual void unmapped(address at, std::size_t bytes, base::site) noexcept = 0;
  // Memory that no call takes: a variable of a module, a block of another process. The second time nothing changes.
  virtual void found(int device, address at, std::size_t bytes, base::site) noexcept = 0;
  // A block of another process goes. That waits for no work.
  virtual void closed(address at, base::site) noexcept = 0;
  // Memory of which no more is told lies there from now on: what lay there before is forgotten.
  virtual void hidden(address at, std::size_t bytes) noexcept = 0;

  // Graphs: the nodes of an executable, and its launches.
  struct node {
    char const* kernel = nullptr;        // null: no launch
    std::vector<seen_pointer> pointers;  // of a launch
    std::vector<touch> bytes;            // of a copy or a fill
    std::vector<std::uint32_t> after;    // indices of nodes
    bool is_host = false;                // a host function, which may write what later nodes copy
  };
  virtual void graph_made(executable, std::vector<node>, base::site = {}) noexcept = 0;  // also after an update
  virtual void graph_launched(int device, stream, executable, base::site) noexcept = 0;
  virtual void graph_gone(executable) noexcept = 0;

  // A call that the watcher cannot understand, for the list at the end. what: a plural noun that lives as long as the
  // process ("launches with a packed parameter buffer")
  virtual void not_understood(char const* what) noexcept = 0;

 protected:
  ~seen_calls() = default;
};

}  // namespace weir::driver::check
