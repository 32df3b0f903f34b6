// The environment of a child process that runs the test's own program.
// Threads: any, as long as none changes the environment.
#pragma once
#include <unistd.h>

#include <string>
#include <string_view>
#include <vector>

namespace weir::tests {

// This process's variables, without those that make GoogleTest run a shard: the child has one test to run.
inline std::vector<std::string> environment_of_a_child() {
  std::vector<std::string> all;
  for (char** at = environ; *at; ++at) {
    std::string_view const v = *at;
    if (!v.starts_with("GTEST_TOTAL_SHARDS=") && !v.starts_with("GTEST_SHARD_INDEX="))
      all.emplace_back(v);
  }
  return all;
}

}  // namespace weir::tests
