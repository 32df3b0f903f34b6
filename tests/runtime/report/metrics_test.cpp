// Prometheus' text: every family is announced once and its samples follow; states add up to what is reserved.
#include "runtime/report/metrics.h"

#include <gtest/gtest.h>

#include <regex>
#include <set>
#include <sstream>

#include "weir/memory.h"
#include "weir/observe.h"

namespace weir {
namespace {

TEST(metrics, the_text_is_as_prometheus_reads_it_and_says_what_the_counters_say) {
  runtime machine(simulated{.devices = 2, .memory = 1_GiB});
  runtime_guard const in(machine);
  buffer const small(1000), large(5_MiB), pinned_one(3000, {.kind = memory_kind::pinned});
  std::istringstream text(memory_metrics());
  std::regex const sample(R"re(([a-z_]+)\{device="(gpu:[0-9]+|cpu)"(,[a-z]+="[a-z]+")?\} (-?[0-9]+))re");
  std::set<std::string> announced;
  std::string family;
  std::int64_t reserved = 0, blocks = 0;
  for (std::string line; std::getline(text, line);) {
    std::smatch found;
    if (line.starts_with("# HELP ")) {
      family = line.substr(7, line.find(' ', 7) - 7);
      EXPECT_TRUE(announced.insert(family).second) << family << " is announced twice";
    } else if (line.starts_with("# TYPE ")) {
      EXPECT_TRUE(line == "# TYPE " + family + " gauge" || line == "# TYPE " + family + " counter") << line;
      EXPECT_EQ(line.ends_with("counter"), family.ends_with("_total")) << line;
    } else {
      ASSERT_TRUE(std::regex_match(line, found, sample)) << line;
      EXPECT_EQ(found[1], family);
      if (found[2] == "gpu:0" && family == "weir_memory_bytes") reserved += std::stoll(found[4]);
      if (found[2] == "gpu:0" && family == "weir_blocks") blocks += std::stoll(found[4]);
    }
  }
  EXPECT_EQ(reserved, static_cast<std::int64_t>(memory_reserved()));
  EXPECT_EQ(blocks, 2);
  EXPECT_TRUE(announced.contains("weir_out_of_memory_total"));
}

}  // namespace
}  // namespace weir
