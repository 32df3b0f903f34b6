// Where a test of an adaptor runs: on a simulated machine, or on GPUs if there are any.
// Threads: one; other threads enter the machine by a guard of their own.
#pragma once
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>

#include "weir/memory.h"
#include "weir/observe.h"

namespace weir::test {

enum class kind : std::uint8_t { simulated, gpus };

// Null, and why in `missing`, without a GPU.
inline std::unique_ptr<runtime> machine_of(kind k, std::string& missing) {
  if (k == kind::simulated)
    return std::make_unique<runtime>(weir::simulated{.devices = 2, .memory = 4_GiB});
  ::setenv("WEIR_DEVICES", "cuda", 1);
  std::unique_ptr<runtime> made;
  try {
    made = std::make_unique<runtime>();
  } catch (not_supported const& e) {
    missing = e.what();
  }
  ::unsetenv("WEIR_DEVICES");
  return made;
}

struct on_simulated : ::testing::Test {
  std::string missing;
  std::unique_ptr<runtime> r = machine_of(kind::simulated, missing);
  runtime_guard in{*r};
};

struct on_gpus : ::testing::Test {
  void SetUp() override {
    r = machine_of(kind::gpus, missing);
    if (r)
      in.emplace(*r);
    else
      GTEST_SKIP() << missing;
  }
  std::string missing;
  std::unique_ptr<runtime> r;
  std::optional<runtime_guard> in;
};

}  // namespace weir::test
