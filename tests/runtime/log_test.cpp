// The log is silent by default; a level includes those before it; lines name device, stream and bytes.
// Threads: one.
#include "weir/log.h"

#include <gtest/gtest.h>

#include <vector>

#include "runtime/options/options.h"
#include "weir/memory.h"
#include "weir/sim.h"
#include "weir/stream.h"

namespace weir {
namespace {

struct log_lines : testing::Test {
  struct kept {
    log_level level;
    int device;
    std::uint64_t stream;
    size_t bytes;
    std::string text, whole;
  };
  std::vector<kept> all;
  log_lines() {
    on_log([this](log_line const& l) {
      all.push_back({l.level, l.device, l.stream, l.bytes, std::string(l.text), l.str()});
    });
  }
  ~log_lines() override { on_log({}); }

  std::uint64_t program(log_level level) {
    all.clear();
    runtime machine(simulated{.devices = 1, .memory = 64_MiB}, {.log = level});
    runtime_guard const in(machine);
    stream on;
    deallocate(allocate(on, 5_MiB));
    void* const most = allocate(on, 40_MiB);
    EXPECT_THROW((void)allocate(on, 40_MiB), out_of_memory);
    deallocate(most);
    return on.id();
  }
  bool has(log_level level, std::string const& text) const {
    for (kept const& l : all) {
      if (l.level == level && l.text.find(text) != l.text.npos)
        return true;
    }
    return false;
  }
};

TEST_F(log_lines, there_are_none_unless_asked_for) {
  program(log_level::silent);
  EXPECT_TRUE(all.empty());
}

TEST_F(log_lines, each_level_includes_those_before_it) {
  program(log_level::error);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_TRUE(has(log_level::error, "out of memory"));
  program(log_level::warning);
  EXPECT_TRUE(all.size() == 2 && has(log_level::error, "out of memory") && has(log_level::warning, "memory is short"));
  program(log_level::info);
  EXPECT_TRUE(has(log_level::info, "begins: 1 simulated device of 64 MiB") && has(log_level::info, "opened") &&
              has(log_level::info, "ends") && has(log_level::warning, "memory is short"));
  EXPECT_FALSE(has(log_level::debug, ""));
  program(log_level::debug);
  EXPECT_TRUE(has(log_level::debug, "memory mapped") && has(log_level::error, "out of memory"));
}

TEST_F(log_lines, name_device_stream_and_bytes) {
  std::uint64_t const stream = program(log_level::debug);
  for (kept const& l : all) {
    if (l.level != log_level::warning)
      continue;
    EXPECT_EQ(l.device, 0);
    EXPECT_EQ(l.stream, stream);
    EXPECT_EQ(l.bytes, 40_MiB);
    EXPECT_NE(l.whole.find(" warning gpu:0 stream " + std::to_string(stream) + ", 40 MiB: memory is short"),
              l.whole.npos)
        << l.whole;
  }
}

TEST_F(log_lines, a_lost_device_is_logged_once) {
  runtime machine(simulated{.devices = 1, .memory = 64_MiB}, {.log = log_level::error});
  runtime_guard const in(machine);
  stream on;
  simulation::of(machine).lose_device(0);
  EXPECT_THROW(on.synchronize(), device_lost);
  EXPECT_THROW(on.synchronize(), device_lost);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_TRUE(has(log_level::error, "lost"));
}

TEST_F(log_lines, a_level_that_is_none_is_refused_with_the_nearest) {
  EXPECT_EQ(parse_options("log:debug").log, log_level::debug);
  try {
    (void)parse_options("log:warn");
    FAIL() << "nothing was thrown";
  } catch (invalid_use const& e) {
    EXPECT_NE(std::string(e.what()).find("Did you mean log:warning?"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace weir
