// Makes batches in pinned memory with its own threads, and copies one batch to the device ahead of its use.
// Threads: one consumer calls next(); the loader owns the workers.
#pragma once
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "weir/tensor.h"

namespace seeds {

class data_loader {
 public:
  struct options {
    std::int64_t samples, width, batch;  // the last batch may be smaller
    int workers = 2, prefetch = 2;       // prefetch: full batches beyond those that workers fill
  };
  // make(i, to) writes sample i, on a worker thread. next() rethrows an exception of make.
  data_loader(options, std::function<void(std::int64_t, std::span<float>)> make);
  ~data_loader();
  data_loader(data_loader const&) = delete;
  // Returns: the next batch on the current device, ordered before later work of the current stream; nullopt
  // after the last one. Blocks: until a worker has filled the batch.
  std::optional<weir::tensor> next();

 private:
  struct slot {  // pinned; a worker owns it until it is ready, then the consumer until its copy is enqueued
    weir::tensor at;
    weir::stamp read;  // the copy that reads this slot
    bool ready = false;
  };
  void work();
  std::optional<weir::tensor> send();
  std::int64_t rows(std::int64_t batch) const { return std::min(with_.batch, with_.samples - batch * with_.batch); }

  options const with_;
  std::int64_t const batches_;
  std::function<void(std::int64_t, std::span<float>)> const make_;
  weir::runtime& runtime_;
  weir::stream copies_;
  std::optional<weir::tensor> ahead_;
  weir::stamp ahead_there_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<slot> slots_;
  std::int64_t made_ = 0, sent_ = 0;  // batches handed to workers, and to the device: made_ - sent_ <= slots
  bool ends_ = false;
  std::exception_ptr failed_;
  std::vector<std::thread> workers_;
};

}  // namespace seeds
