// A machine whose streams the test moves, entered as the thread's runtime; and work that logs a number.
// Threads: one.
#pragma once
#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <vector>

#include "simulator/machine/machine.h"
#include "streams/stream/context.h"

namespace weir {

struct stepped_machine : testing::Test {
  std::vector<int> log;  // outlives the machine, whose end runs what is left
  runtime rt{simulated{.devices = 2, .memory = 64_MiB, .schedule = simulated::scheduling::stepped, .seed = 1}};
  runtime_guard in{rt};
  driver::driver& machine = rt.get().machine();
  driver::sim::controls& control = *driver::sim::controls_of(machine);

  void work(stream_ref s, int x) {
    struct append {
      std::vector<int>* log;
      int x;
    };
    auto& line = streams::clock_of(s);
    driver::work const w{.run =
                             [](void* p) {
                               auto& a = *static_cast<append*>(p);
                               a.log->push_back(a.x);
                             },
                         .drop = [](void* p) { delete static_cast<append*>(p); },
                         .state = new append{&log, x}};
    ASSERT_TRUE(machine.enqueue(line.device(), line.handle(), {}, w).ok());
  }
  bool step(stream_ref s) { return control.step(s.device().index(), streams::clock_of(s).handle()); }
  void drain(stream_ref s) {
    while (step(s)) {}
  }
};

// What the error that f throws says about its operands.
template <class Error, class F>
std::string refused(F f) {
  try {
    f();
  } catch (Error const& e) {
    return std::string(e.operands());
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

}  // namespace weir
