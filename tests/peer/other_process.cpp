#include "tests/peer/other_process.h"

#include <chrono>
#include <cstdlib>

namespace weir::test {
namespace {

// Plays the role that the environment of this process names. A failure becomes the exit status.
TEST(in_another_process, plays_its_role) {
  char const* const name = std::getenv("WEIR_TEST_ROLE");
  if (!name)
    GTEST_SKIP() << "the other cases start it";
  ASSERT_EQ(roles().count(name), 1u) << name;
  share_channel line(its_socket, std::chrono::seconds(20));
  roles()[name](line);
}

}  // namespace
}  // namespace weir::test
