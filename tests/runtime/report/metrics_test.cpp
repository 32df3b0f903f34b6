// Prometheus text: every family is announced once, before its samples; states add up to reserved bytes.
// Threads: one.
#include "runtime/report/summary.h"

#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include "weir/memory.h"
#include "weir/observe.h"
#include "weir/pool.h"

namespace weir {
namespace {

TEST(metrics, the_text_is_prometheus_and_agrees_with_the_counters) {
  runtime machine(simulated{.devices = 2, .memory = 1_GiB});
  runtime_guard const in(machine);
  pool const odd("od\"d\\");
  pool_guard const here(odd);
  buffer const small(1000), large(5_MiB), pinned_one(3000, {.kind = memory_kind::pinned});
  std::istringstream text(memory_metrics());
  std::set<std::string> announced;
  std::string family;
  std::int64_t reserved = 0, of_pool = 0, blocks = 0;
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with("# HELP ")) {
      family = line.substr(7, line.find(' ', 7) - 7);
      EXPECT_TRUE(announced.insert(family).second) << family << " is announced twice";
    } else if (line.starts_with("# TYPE ")) {
      EXPECT_TRUE(line == "# TYPE " + family + " gauge" || line == "# TYPE " + family + " counter") << line;
      EXPECT_EQ(line.ends_with("counter"), family.ends_with("_total")) << line;
    } else {
      ASSERT_TRUE(line.starts_with(family + "{device=\"")) << line;
      size_t const labels = family.size() + 9, end = line.find("\"", labels), close = line.find("} ", end);
      ASSERT_NE(close, line.npos) << line;
      std::string const on = line.substr(labels, end - labels), more = line.substr(end + 1, close - end - 1);
      EXPECT_TRUE(on == "cpu" || on == "gpu:0" || on == "gpu:1") << line;
      EXPECT_TRUE(more.empty() || (more.front() == ',' && more.find("=\"") != more.npos && more.back() == '"')) << line;
      size_t digits = 0;
      std::int64_t const value = std::stoll(line.substr(close + 2), &digits);
      EXPECT_EQ(digits, line.size() - close - 2) << line;
      if (on == "gpu:0" && family == "weir_memory_bytes")
        reserved += value;
      if (on == "gpu:0" && family == "weir_pool_bytes")
        of_pool += value;
      if (on == "gpu:0" && family == "weir_blocks")
        blocks += value;
    }
  }
  EXPECT_EQ(reserved, static_cast<std::int64_t>(memory_reserved()));
  EXPECT_EQ(of_pool, reserved);
  EXPECT_NE(memory_metrics().find("pool=\"od\\\"d\\\\\",state"), std::string::npos) << memory_metrics();
  EXPECT_EQ(blocks, 2);
  EXPECT_TRUE(announced.contains("weir_out_of_memory_total"));
}

}  // namespace
}  // namespace weir
