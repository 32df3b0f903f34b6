// Topic 4: the articles' memory counters; a fragmented cache, its report and its compaction.
#include <vector>

#include "examples/seeds/topics.h"
#include "weir/device.h"
#include "weir/tensor.h"

namespace seeds {
namespace {

// Allocates blocks of that size until `room` is full, then frees every second one.
std::vector<weir::buffer> every_other(std::size_t bytes, std::size_t room) {
  std::vector<weir::buffer> all;
  for (std::size_t i = 0; i < room / bytes; ++i)
    all.emplace_back(bytes);
  for (std::size_t i = 0; i < all.size(); i += 2)
    all[i].reset();
  return all;
}

void counters(table& t) {
  std::int64_t const both = 5 << 20;
  t.row("", {exactly(0), exactly(0)}, "");
  {
    weir::tensor const t1 = weir::randn({1024, 1024}), t2 = weir::randn({512, 512});
    t.row("t1 = randn(1024, 1024), t2 = randn(512, 512)", {exactly(both), held_for(both)},
          "allocated and reserved go up");
    weir::empty_cache();
    t.row("empty_cache while both live", {exactly(both), held_for(both)}, "frees nothing a tensor has");
  }
  weir::synchronize();
  t.row("both dropped", {exactly(0), held_for(both)}, "allocated falls, reserved stays");
  t.holds(weir::max_memory_allocated() == static_cast<std::size_t>(both),
          "max_memory_allocated is still " + in_words(both));
  weir::empty_cache();
  t.row("empty_cache", {exactly(0), exactly(0)}, "reserved falls, perhaps not to 0");
  weir::reset_peak_memory_stats();
  t.holds(weir::max_memory_allocated() == 0 && weir::max_memory_reserved() == 0,
          "reset_peak_memory_stats: both maxima begin again");
}

void fragmented(table& t, std::size_t room) {
  auto const half = static_cast<std::int64_t>(room / 2);
  {
    std::vector<weir::buffer> const rest = every_other(4_MiB, room);
    t.row("full of 4 MiB blocks, every other one dropped", {exactly(half), exactly(2 * half)}, "");
    weir::memory_report const report = weir::current_memory_report();
    t.holds(report.largest_free < room / 4, "current_memory_report: half is free, the largest free block is " +
                                                in_words(static_cast<std::int64_t>(report.largest_free)));
    weir::buffer const large(room / 4);
    t.row("a block of a quarter of the device", {exactly(half + half / 2), exactly(2 * half)},
          "out of memory, though twice that is free");
  }
  weir::empty_cache();
  {  // Each page holds a live block, so no page can be moved.
    std::vector<weir::buffer> rest = every_other(1_MiB, room);
    t.row("the same with 1 MiB blocks", {exactly(half), exactly(2 * half)}, "");
    std::string said;
    try {
      weir::buffer const large(room / 4);
    } catch (weir::out_of_memory const& e) {
      said = e.report().text();
    }
    t.holds(!said.empty(), "a quarter of the device is refused here: each page of 2 MiB holds a live block");
    t.holds(said.find("largest free") != std::string::npos, "and the report names the largest free block");
    for (std::size_t i = 0; i < rest.size() / 2; ++i)
      rest[i].reset();
    weir::buffer const large(room / 4);
    t.row("the older half of them dropped: it fits", {exactly(half), exactly(2 * half)}, "");
  }
}

}  // namespace

int watching(settings const& with) {
  std::size_t const room = with.part > 1 ? 256_MiB : 1_GiB;
  machine const on(with, {.devices = 1, .memory = room}, {.device_limit = room});
  table t(with, "4. Watching");
  counters(t);
  fragmented(t, room);
  weir::memory_statistics const all = weir::memory_stats();
  t.holds(all.reserved_bytes.all.current ==
                  all.allocated_bytes.all.current + all.pending_bytes.all.current + all.cached_bytes.all.current &&
              !weir::memory_summary().empty(),
          "memory_stats and memory_summary: reserved = allocated + pending + cached");
  return t.failures();
}

}  // namespace seeds
