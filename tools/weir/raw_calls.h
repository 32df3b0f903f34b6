// The driver's own copies and memory, for comparison with weir's: CUDA's by name, without its headers, or the
// simulated machine's.
// Threads: one.
#pragma once
#include <memory>

#include "weir/stream.h"

namespace weir::tool {

class raw_calls {
 public:
  raw_calls();  // uses the current runtime
  ~raw_calls();

  class memory {  // freed by the destructor. Requires: no work uses it
   public:
    memory(memory const&) = delete;
    virtual ~memory() = default;
    void* data() const noexcept { return data_; }

   protected:
    memory() = default;
    void* data_ = nullptr;
  };
  // cudaMalloc, or a segment of the simulated machine. Throws: driver_error, as all of these
  std::unique_ptr<memory> on_device(int device, size_t bytes);
  std::unique_ptr<memory> pinned(size_t bytes);  // cudaHostAlloc, or page-locked memory
  // Requires: the thread's last prepare() was for this stream.
  void copy(void* dst, void const* src, size_t bytes);
  void copy_peer(void* dst, int to, void const* src, int from, size_t bytes);
  bool takes_pageable() const noexcept;  // false on the simulated machine
  void copy_pageable(void* dst, void const* src, size_t bytes, bool to_device);
  void prepare(stream_ref);
  void synchronize();
  // Orders later work of `later` after the work that `earlier` has now.
  void wait(stream_ref later, stream_ref earlier);
  void open_peer(int from, int to);  // cudaDeviceEnablePeerAccess both ways; only for memory of on_device

 private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace weir::tool
