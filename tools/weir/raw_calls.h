// The machine's own copies and memory, for figures beside weir's: CUDA's driver by its names (no header of it
// is needed), or the calls of the simulated machine.
// Threads: one.
#pragma once
#include <memory>

#include "weir/stream.h"

namespace weir::tool {

class raw_calls {
 public:
  raw_calls();  // of the current runtime
  ~raw_calls();

  class memory {  // gives itself back. Requires: no work uses it then
   public:
    memory(memory const&) = delete;
    virtual ~memory() = default;
    void* data() const noexcept { return data_; }

   protected:
    memory() = default;
    void* data_ = nullptr;
  };
  // cudaMalloc's; a segment of the simulated machine. Throws: driver_error, as all of these
  std::unique_ptr<memory> on_device(int device, size_t bytes);
  std::unique_ptr<memory> pinned(size_t bytes);  // cudaHostAlloc's; pages that are locked and no more
  // Requires: the thread's last prepare() was for this stream.
  void copy(void* dst, void const* src, size_t bytes);
  void copy_peer(void* dst, int to, void const* src, int from, size_t bytes);
  bool takes_pageable() const noexcept;  // the simulated machine does not
  void copy_pageable(void* dst, void const* src, size_t bytes, bool to_device);
  void prepare(stream_ref);
  void synchronize();
  // what `later` is given next runs after what `earlier` was given so far
  void wait(stream_ref later, stream_ref earlier);
  void open_peer(int from, int to);      // cudaDeviceEnablePeerAccess both ways; for memory of on_device alone

 private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace weir::tool
