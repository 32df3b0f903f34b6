// A progress bar on a terminal, or an occasional line in other output.
// Threads: one.
#pragma once
#include <chrono>
#include <cstdint>

namespace trainer {

class progress {
 public:
  explicit progress(std::int64_t steps);
  // characters: read so far.
  void show(std::int64_t step, double characters);
  void end();

 private:
  std::int64_t steps_;
  bool terminal_;
  std::int64_t next_line_ = 0;
  std::chrono::steady_clock::time_point start_, drawn_;
};

}  // namespace trainer
