// A data_loader makes batches with threads of its own, in pinned memory,
// and copies each to the device while the one before is worked on.
// Threads: one asks for batches; the workers are the loader's.
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
    int workers = 2, prefetch = 2;       // batches made beyond those that workers are at
  };
  // make(i, to): sample i, on a worker; what it throws comes out of next().
  data_loader(options, std::function<void(std::int64_t, std::span<float>)> make);
  ~data_loader();
  data_loader(data_loader const&) = delete;
  // On the current device; ordered before what the current stream is given next. Empty: that was the last.
  // Blocks: until a worker has made it.
  std::optional<weir::tensor> next();

 private:
  struct slot {  // of pinned memory; a worker's until it is ready, then the reader's until its copy is enqueued
    weir::tensor at;
    weir::stamp read;  // by the copy engine
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
  std::int64_t made_ = 0, sent_ = 0;  // batches given out to workers, and to the device: made_ - sent_ <= slots
  bool ends_ = false;
  std::exception_ptr failed_;
  std::vector<std::thread> workers_;
};

}  // namespace seeds
