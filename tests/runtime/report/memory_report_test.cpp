// The text of a memory report: sizes that add up, the steps tried, and a remedy that fits the cause.
// Threads: one.
#include "weir/stats.h"

#include <gtest/gtest.h>

#include <sstream>

namespace weir {
namespace {

using namespace literals;

memory_report full_device() {
  memory_report r{};
  r.on = device(1);
  r.requested = 3_MiB - 7;
  r.rounded = 3_MiB;
  r.capacity = 64_MiB;
  r.allocated = 61_MiB;
  r.pending = 1_MiB;
  r.reserved = 64_MiB;
  r.recovery = {{"own cache", 512, 2'000}};
  return r;
}

bool says(memory_report const& r, std::string_view words) {
  return r.text().find(words) != std::string::npos;
}

TEST(memory_report, names_the_device_the_sizes_and_each_rung) {
  auto const r = full_device();
  EXPECT_TRUE(says(r, "gpu:1: no room for 3.00 MiB (3.00 MiB rounded)")) << r.text();
  EXPECT_TRUE(says(r, "allocated     61.00 MiB")) << r.text();
  EXPECT_TRUE(says(r, "cached        2.00 MiB")) << "reserved = allocated + pending + cached\n" << r.text();
  EXPECT_TRUE(says(r, "  recovery steps\n    own cache: 512 B in 2 us\n")) << r.text();
}

TEST(memory_report, ends_in_the_remedy_that_fits_the_cause) {
  auto r = full_device();
  EXPECT_TRUE(says(r, "smaller batches")) << r.text();
  r.limit = 62_MiB;
  EXPECT_TRUE(says(r, "raise the limit")) << r.text();
  r.limit = 0;
  r.pending = 10_MiB;
  r.allocated = 51_MiB;
  r.rounded = 4_MiB;
  EXPECT_TRUE(says(r, "ynchronize before the allocation")) << r.text();
  r.allocated = 20_MiB;
  EXPECT_TRUE(says(r, "so weir cannot merge them")) << r.text();
  r.other_processes = 40_MiB;
  EXPECT_TRUE(says(r, "another device")) << r.text();
  r.exported = 33_MiB;
  EXPECT_TRUE(says(r, "trim the pools")) << r.text();
  EXPECT_TRUE(says(r, "outside weir    7.00 MiB")) << r.text();
  EXPECT_TRUE(says(r, "shared          33.00 MiB")) << r.text();
  r.rounded = 65_MiB;
  EXPECT_TRUE(says(r, "larger than the device")) << r.text();
}

TEST(memory_report, every_name_is_apart_from_its_figure) {
  auto r = full_device();
  r.on = cpu;
  r.limit = 1_MiB;
  r.exported = 1_MiB;
  r.host_available = 104_MiB;
  r.host_kept = 100_MiB;
  std::istringstream lines(r.text());
  int rows = 0;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("  ") || line == "  recovery steps" || line.ends_with(" us"))
      continue;
    std::size_t const figure = line.find_first_of("0123456789");
    EXPECT_EQ(figure, 18u) << line;
    EXPECT_EQ(line[figure - 1], ' ') << line;
    ++rows;
  }
  EXPECT_EQ(rows, 11) << r.text();
}

TEST(memory_report, fragments_of_a_full_device_are_not_the_cause) {
  auto r = full_device();
  r.requested = r.rounded = 512;
  r.allocated = 64_MiB - 256_KiB;
  r.pending = 0;
  EXPECT_TRUE(says(r, "smaller batches")) << r.text();
}

TEST(memory_report, a_limit_that_leaves_no_whole_page_is_the_cause) {
  auto r = full_device();
  r.allocated = r.pending = r.reserved = 0;
  r.limit = r.rounded + 1;
  EXPECT_TRUE(says(r, "raise the limit")) << r.text();
}

TEST(memory_report, pending_blocks_are_the_cause_at_a_limit) {
  auto r = full_device();
  r.allocated = 8_MiB;
  r.pending = r.limit = r.reserved = 20_MiB;
  r.pending -= r.allocated;
  EXPECT_TRUE(says(r, "ynchronize before the allocation")) << r.text();
}

}  // namespace
}  // namespace weir
