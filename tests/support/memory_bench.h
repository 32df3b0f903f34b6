// A runtime over a chosen simulated machine, with its controls.
// Threads: as the machine.
#pragma once
#include <string>

#include "runtime/memory/device/device_memory.h"
#include "simulator/faults/fault_injector.h"
#include "simulator/machine/machine.h"
#include "tests/support/seeds.h"

namespace weir::tests {

struct no_mapping final : weir::driver::fault_injector {  // cannot map: segments only
  using fault_injector::fault_injector;
  weir::driver::result<weir::driver::device_info> info(int device) override {
    auto i = fault_injector::info(device);
    i.value.maps = false;
    return i;
  }
};

struct memory_bench {
  explicit memory_bench(simulated const& like, options o = {}) : memory_bench(driver::sim::make(like), o) {}
  // `around` puts another driver in front of the machine.
  template <class Around>
  memory_bench(simulated const& like, options o, Around around)
      : memory_bench(wrap(driver::sim::make(like), around), o) {}

  driver::driver& machine() { return core.machine(); }
  clock::clocks& clocks() { return core.part<clock::clocks>(); }
  memory::device_memory& memory() { return core.part<memory::device_memory>(); }
  memory::allocator& on(int device) { return memory().on(device); }
  clock::stream_clock& stream(int device) {
    core.open(device, "test", source_location::current());
    return clocks().make(device, machine().create_stream(device, driver::stream_kind::independent, 0).value,
                         clock::life::own);
  }

 private:
  memory_bench(driver::sim::made m, options o)
      : control(m.control), core(facade(), std::move(m.machine), o, "a test") {}
  template <class Around>
  static driver::sim::made wrap(driver::sim::made m, Around around) {
    m.machine = around(std::move(m.machine));
    return m;
  }
  static runtime& facade() {  // for parts to refer to; no test uses it
    static auto* const r =
        new runtime(simulated{.devices = 1, .memory = 1 << 20, .schedule = simulated::scheduling::stepped, .seed = 1});
    return *r;
  }

 public:
  driver::sim::controls* control;
  runtime::impl core;
};

}  // namespace weir::tests
