// Common parts of weir bench copy's rows.
// Threads: one.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "raw_calls.h"
#include "runtime/base/sync.h"
#include "weir/copy.h"

namespace weir::tool {

inline constexpr int large_copies = 4;  // enqueued back to back

enum class measure : std::uint8_t { rate, call, span };  // GB/s; µs of host time per call; ms

struct row {
  std::string name;
  size_t bytes = 0;  // of one copy
  measure in = measure::rate;
  std::function<double()> weir{}, raw{};  // measures one round. Null raw: the driver has no such call
  std::string note{};
  std::function<std::string()> said{};  // evaluated after all rounds; replaces the note
};

struct rings;  // state that the rows of several devices share
struct rig {
  raw_calls raw;
  size_t bytes;  // of a large copy
  size_t fresh;  // of new pinned memory
  size_t broadcast;
  int devices = device_count();
  stream on{device(0)};
  std::shared_ptr<rings> shared{};
};
using maker = std::function<std::optional<row>(rig&)>;

inline double seconds_since(std::int64_t from) {
  return static_cast<double>(base::now_ns() - from) * 1e-9;
}

// Large copies, back to back. Returns: GB/s; counts the bytes `times` over.
template <class Copy>
double rate(size_t bytes, Copy copies, double times = 1) {
  std::int64_t const from = base::now_ns();
  copies();
  return static_cast<double>(bytes) * large_copies * times / seconds_since(from) * 1e-9;
}

std::vector<std::pair<std::string, maker>> ring_rows();    // broadcast, scatter, gather
std::vector<std::pair<std::string, maker>> pinned_rows();  // pin_…: methods of page-locking; only by name
// stage_…: limits of pageable copies, and variants of staging; only by name
std::vector<std::pair<std::string, maker>> staged_rows();

// bytes 0: those of a large copy
row pageable_row(rig&, std::string const& name, bool to_device, blocking waits = non_blocking, size_t bytes = 0);

}  // namespace weir::tool
