// A table of memory measurements: every row has an expected range and is checked against it.
// Threads: one.
#pragma once
#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>

#include "weir/observe.h"
#include "weir/sim.h"

namespace seeds {
using namespace weir::literals;

struct settings {
  std::ostream& out;
  bool on_gpus = false;  // otherwise on simulated devices of this process
  size_t part = 1;       // divides the articles' sizes and counts, for blocks that are not written
  // The same for blocks that are written. On simulated devices these are host memory.
  size_t touched_part = 1;
  bool process_memory = true;  // also checks the process's memory; sanitizers add to it
  int seeds = 50;              // number of seeds for the seeded machines
  // Prints only the rows that an article comments on, and failures. Checks all rows.
  bool brief = false;
};

// The devices of one topic. They are current during the object's lifetime.
class machine {
 public:
  machine(settings const&, weir::simulated, weir::options);
  weir::runtime& get() noexcept { return *runtime_; }

 private:
  std::optional<weir::runtime> runtime_;
  std::optional<weir::runtime_guard> current_;
};

struct moment {  // bytes
  std::int64_t allocated, reserved;
  // Resident memory that is private to the process: no files, no shared memory (which simulated devices use)
  // and no page-locked memory.
  std::int64_t process;
  std::int64_t used;  // of the device, by all processes
};
moment now(weir::device = weir::gpu);

struct range {  // bytes, inclusive
  std::int64_t least = INT64_MIN, most = INT64_MAX;
};
constexpr range exactly(std::int64_t bytes) {
  return {bytes, bytes};
}
constexpr range between(std::int64_t least, std::int64_t most) {
  return {least, most};
}
constexpr range near(std::int64_t bytes, std::int64_t off) {
  return {bytes - off, bytes + off};
}
// The most that weir may reserve for so many live bytes, by the default epsilon and a few pages.
constexpr range held_for(std::int64_t bytes) {
  return {bytes, bytes + bytes / 1000 * 27 + (8 << 20)};
}

struct expected {
  range allocated;
  range reserved;
  range process_grew = {};  // since the previous row
};

class table {
 public:
  table(settings const&, std::string_view title);
  ~table();  // in brief mode, prints how many checks were not shown
  // Measures, prints and checks one row. saw: the article's observation of PyTorch at this step.
  moment row(std::string_view step, expected const&, std::string_view saw, weir::device = weir::gpu);
  // Prints a sentence under the rows and checks that its condition is true.
  void holds(bool, std::string_view sentence);
  static std::string columns();  // the header row
  int failures() const noexcept { return failures_; }
  int judged() const noexcept { return judged_; }

 private:
  void judge(std::string_view what, std::int64_t bytes, range);
  settings const& with_;
  std::optional<moment> before_;
  weir::device of_ = weir::gpu;
  int failures_ = 0, judged_ = 0, untold_ = 0;
};

std::string in_words(std::int64_t bytes);  // "128.0 MiB"

}  // namespace seeds
