// Every row and sentence of the articles' experiments is as it must be; and one that is not is told. Threads: those of the topics.
#include <gtest/gtest.h>

#include <sstream>

#include "examples/seeds/topics.h"
#include "weir/memory.h"

namespace seeds {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif

settings small(std::ostream& out) {
  // A block of 64 MiB goes back to the system at once; smaller ones the C library may keep.
  return {.out = out, .part = 64, .touched_part = 16, .process_memory = !sanitized, .seeds = sanitized ? 20 : 50};
}

class seeds_topic : public testing::TestWithParam<topic> {};

TEST_P(seeds_topic, EveryRowIsAsItMustBe) {
  std::ostringstream said;
  EXPECT_EQ(GetParam().run(small(said)), 0) << said.str();
}
INSTANTIATE_TEST_SUITE_P(all, seeds_topic, testing::ValuesIn(topics().begin(), topics().end()), [](auto const& which) { return std::string(which.param.name); });

TEST(seeds_table, ARowThatIsNotAsItMustBeIsToldAndCounted) {
  std::ostringstream said;
  settings const with = small(said);
  machine const on(with, {.devices = 1, .memory = 64_MiB}, {});
  table t(with, "a table", "no article");
  weir::buffer const block(2_MiB);
  t.row("right", {exactly(2 << 20), held_for(2 << 20)}, "");
  EXPECT_EQ(t.failures(), 0) << said.str();
  t.row("wrong", {exactly(1 << 20), held_for(1 << 20)}, "");
  EXPECT_EQ(t.failures(), 1) << said.str();  // what is reserved may be a few pages more
  EXPECT_NE(said.str().find("NOT AS IT MUST BE: allocated 2097152 B"), std::string::npos) << said.str();
  t.holds(false, "water flows up");
  EXPECT_EQ(t.failures(), 2);
  EXPECT_NE(said.str().find("NOT TRUE: water flows up"), std::string::npos);
}

}  // namespace
}  // namespace seeds
