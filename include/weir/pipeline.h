// weir/pipeline.h: loops that fill, copy, compute and write at the same time. A program says what happens to a
// batch. weir holds the slots, which are pinned and device memory, and orders each use of them.
// Threads: one consumer at a time for each loop; the functions of the program run where each comment says.
#pragma once
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "weir/memory.h"

namespace weir {
namespace peer {
class batch_ring;
struct batch_slot;
}  // namespace peer
}  // namespace weir

namespace weir WEIR_API {

// Writes the bytes of a batch to pinned memory, which holds batch_bytes. Batches count from 0.
// Returns: how many bytes it wrote; 0: there is no such batch, nor a later one.
// A library thread calls it, with the loop's device current. With several threads, calls for different batches run
// at the same time, and some may be for batches behind the end.
using fill_function = std::function<size_t(std::uint64_t number, std::span<std::byte> to)>;

// A function of the program threw. Batches before number() are not affected; no later one is given out.
class batch_failed : public std::runtime_error, public error {
 public:
  // As weir::error, with the batch and what the function threw
  batch_failed(std::uint64_t number, std::exception_ptr cause, std::string operation, std::string operands,
               std::string remedy, source_location, error_id = error_id::none);
  char const* what() const noexcept override { return std::runtime_error::what(); }
  std::uint64_t number() const noexcept { return number_; }     // of the batch
  std::exception_ptr cause() const noexcept { return cause_; }  // what the function threw

 private:
  std::uint64_t number_;
  std::exception_ptr cause_;
};

// A batch in device memory, for work of stream(). Its end gives the slot back: weir reuses the slot behind all
// work enqueued on stream() by then. Other streams: wait for stream() first, and let it wait for them at last.
// Blocks: no. Threads: one at a time. data() and result() throw invalid_use (the loop has ended; moved from).
class batch {  // move-only
 public:
  batch(batch&&) noexcept = default;
  batch& operator=(batch&&) noexcept;
  ~batch();
  std::uint64_t number() const noexcept { return number_; }  // counts from 0
  size_t size() const noexcept { return size_; }             // bytes that were filled
  stream_ref stream() const noexcept { return stream_; }     // the consumer's
  // Device memory. Throws: invalid_use
  void* data(source_location = source_location::current()) const;
  // Likewise
  template <class T>
  T* data(source_location at = source_location::current()) const {
    return static_cast<T*>(data(at));
  }
  // In run_pipeline: what is written. The batch itself without pipeline_options::result_bytes.
  // Throws: invalid_use (a loader has no results)
  void* result(source_location = source_location::current()) const;
  template <class T>
  T* result(source_location at = source_location::current()) const {
    return static_cast<T*>(result(at));
  }
  // How many bytes are written. Default: result_bytes; without them size(). Throws: invalid_use (more than fit)
  void set_result_size(size_t bytes, source_location = source_location::current()) const;

 private:
  friend class peer::batch_ring;
  batch(std::shared_ptr<peer::batch_ring>, peer::batch_slot&, stream_ref) noexcept;
  peer::batch_slot& slot(char const* operation, source_location) const;
  void give_back() noexcept;
  std::shared_ptr<peer::batch_ring> ring_;  // null: moved from
  peer::batch_slot* slot_;
  std::uint64_t number_;
  size_t size_;
  stream_ref stream_;
};

// Of a loader
struct loader_options {
  size_t batch_bytes = 0;  // the most that a batch has
  int slots = 3;           // each holds a batch in pinned memory and in device memory
  int threads = 1;         // that fill
  device on = gpu;         // that gets the batches
};

// Fills batches ahead with threads of its own, and copies each to the device on a stream of its own.
class loader {
 public:
  // Throws: invalid_use (no bytes, slots, threads or function), out_of_memory, device_lost, driver_error
  loader(loader_options, fill_function, source_location = source_location::current());
  // Blocks: until the calls of the function that run have returned. The consumer's work goes on.
  // A runtime that ends first ends the loader.
  ~loader();
  loader(loader const&) = delete;
  // Returns: the next batch, in order, copied before later work of the stream; nullopt after the last one.
  // Default: the current stream of the loader's device.
  // Blocks: host, until the batch is filled; never for the device.
  // Throws: batch_failed; invalid_use (after nullopt; on two threads at once; all slots are held by batches, so
  // that it would wait for ever; a stream of another device or in a capture); device_lost, driver_error.
  // A failure of a batch is thrown again at each later call. After another error the batch stays next.
  std::optional<batch> next(source_location = source_location::current());
  std::optional<batch> next(stream_ref, source_location = source_location::current());

 private:
  std::shared_ptr<peer::batch_ring> ring_;
};

// Of run_pipeline
struct pipeline_options {
  size_t batch_bytes = 0;   // the most that a batch has
  size_t result_bytes = 0;  // of a result beside the batch; 0: compute changes the batch in place
  int slots = 3;            // batches under way at most
  int threads = 1;          // that fill
  device on = gpu;          // that computes
};

// Takes all batches through the device: fill, copy in, compute, copy out, write. The five overlap.
// compute enqueues work on batch.stream(), the current stream of the calling thread, which calls it in order.
// write gets each result when its bytes are in pinned memory: in order, on one library thread.
// Returns: the number of batches, all written. Blocks: host, until then.
// Throws: as loader and loader::next; what compute throws. If a batch fails, those before it are written first.
std::uint64_t run_pipeline(pipeline_options, fill_function, std::function<void(batch const&)> compute,
                           std::function<void(std::uint64_t number, std::span<std::byte const> from)> write,
                           source_location = source_location::current());

}  // namespace weir
