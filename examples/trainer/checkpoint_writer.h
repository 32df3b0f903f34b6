// Writes checkpoints on a thread of its own, so that training continues.
// Threads: one, beside its own.
#pragma once
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "checkpoint.h"

namespace trainer {

class checkpoint_writer {
 public:
  explicit checkpoint_writer(std::filesystem::path);
  ~checkpoint_writer();  // Blocks: until what it was given is written
  // Blocks: while an earlier one is being written. Throws: what write_checkpoint threw for an earlier one
  void write(checkpoint);
  void finish();  // Blocks: until all is written. Throws: as write

 private:
  void labour();
  void wait_and_report(std::unique_lock<std::mutex>&);

  std::filesystem::path const file_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<checkpoint> next_;  // also while it is being written
  std::exception_ptr failure_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace trainer
