// Clocks over a stepped machine. A driver in between runs hooks inside its calls, as another thread would.
// Threads: one.
#pragma once
#include <atomic>
#include <functional>

#include "runtime/clock/stream_clock.h"
#include "simulator/faults/fault_injector.h"
#include "simulator/machine/machine.h"

namespace weir::clock {

class watched : public driver::fault_injector {
 public:
  using fault_injector::fault_injector;
  std::function<void()> in_record, after_record, in_wait, in_query, after_asking;  // called once each, then gone
  bool under_capture = false;
  bool moves = false;  // claims that the machine moves by itself: the hooks move it
  std::atomic<int> asked_for_captures{0};

  bool moves_by_itself() const noexcept override { return moves || fault_injector::moves_by_itself(); }
  weir::driver::status record(int device, weir::driver::stream_handle s, weir::driver::event_handle e) override {
    once(in_record);
    auto const r = fault_injector::record(device, s, e);
    once(after_record);
    return r;
  }
  weir::driver::status wait(int device, weir::driver::stream_handle s, weir::driver::event_handle e) override {
    once(in_wait);
    return fault_injector::wait(device, s, e);
  }
  weir::driver::status query_event(weir::driver::event_handle e) override {
    once(in_query);
    return fault_injector::query_event(e);
  }
  weir::driver::result<bool> capturing(int device, weir::driver::stream_handle s) override {
    ++asked_for_captures;
    auto const is = under_capture ? weir::driver::result<bool>{{}, true} : fault_injector::capturing(device, s);
    once(after_asking);
    return is;
  }

 private:
  static void once(std::function<void()>& f) {
    if (auto const now = std::exchange(f, nullptr))
      now();
  }
};

// runtime::impl needs a facade to name. No test enters this one.
inline weir::runtime& some_runtime() {
  static auto* const r = new weir::runtime(
      simulated{.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::stepped, .seed = 1});
  return *r;
}

struct rig {
  static constexpr int devices = 2;
  driver::sim::controls* control;
  watched* machine;
  std::unique_ptr<runtime::impl> rt;
  clocks& all;

  explicit rig(
      simulated like = {.devices = devices, .memory = 64_MiB, .schedule = simulated::scheduling::stepped, .seed = 1})
      : rig(driver::sim::make(like)) {}

  stream_clock& stream(int device = 0, life l = life::own) {
    auto const s = machine->create_stream(device, driver::stream_kind::independent, 0);
    return all.make(device, s.value, l);
  }
  void work(stream_clock& t) {
    (void)machine->enqueue(t.device(), t.handle(), {}, {.run = [](void*) {}});
  }
  bool step(stream_clock& t) { return control->step(t.device(), t.handle()); }
  void drain(stream_clock& t) {
    while (step(t)) {}
  }

 private:
  explicit rig(driver::sim::made made)
      : control(made.control),
        machine(new watched(std::move(made.machine))),
        rt(std::make_unique<runtime::impl>(some_runtime(), std::unique_ptr<driver::driver>(machine), options{},
                                           "a test")),
        all(rt->part<clocks>()) {
    for (int d = 0; d < machine->device_count(); ++d)
      rt->open(d, "rig", source_location::current());
  }
};

}  // namespace weir::clock
