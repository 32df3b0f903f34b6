// A table of what an experiment did to memory:
// every figure is measured, every row says what it must be, and is judged.
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
  bool on_gpus = false;         // else on simulated devices of this process
  size_t part = 1;  // sizes and counts of blocks that nobody touches, and of devices: so-manieths of the articles'
  // the same of blocks whose bytes are written: on simulated devices these are memory of the host
  size_t touched_part = 1;
  bool process_memory = true;   // what the process holds is judged, too; a sanitizer's own memory would be in it
  int seeds = 50;               // of seeded machines, each
  // only the rows that an article says something about, and what is wrong; all else is judged in silence
  bool brief = false;
};

// The devices that a topic runs on, current until it ends.
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
  // resident memory of the process that is its own:
  // neither files nor shared, as simulated devices' is; without what is page-locked
  std::int64_t process;
  std::int64_t used;     // of the device, by all its users
};
moment now(weir::device = weir::gpu);

struct range {  // bytes, both ends in it
  std::int64_t least = INT64_MIN, most = INT64_MAX;
};
constexpr range exactly(std::int64_t bytes) { return {bytes, bytes}; }
constexpr range between(std::int64_t least, std::int64_t most) { return {least, most}; }
constexpr range near(std::int64_t bytes, std::int64_t off) { return {bytes - off, bytes + off}; }
// What weir may hold of a device for so many live bytes at most: the default epsilon and a few pages.
constexpr range held_for(std::int64_t bytes) { return {bytes, bytes + bytes / 1000 * 27 + (8 << 20)}; }

struct expected {
  range allocated;
  range reserved;
  range process_grew = {};  // since the row before
};

class table {
 public:
  table(settings const&, std::string_view title, std::string_view article);
  ~table();  // in brief: how many rows and sentences more there were
  // Measures, prints and judges one row. saw: what the article says of PyTorch at this step.
  moment row(std::string_view step, expected const&, std::string_view saw, weir::device = weir::gpu);
  // A sentence under the rows that must be true.
  void holds(bool, std::string_view sentence);
  static std::string columns();  // what stands over them
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
