// A checker in front of a simulated machine, driven call by call.
// Threads: one.
#pragma once
#include <gtest/gtest.h>

#include "runtime/base/call_site.h"
#include "runtime/driver/allocation_observer.h"
#include "simulator/checker/race_checker.h"
#include "simulator/machine/machine.h"

namespace weir::driver::check {

using scheduling = weir::simulated::scheduling;
using kind = finding::kind;
inline constexpr std::size_t page = 64_KiB;

struct bench : ::testing::Test {
  explicit bench(scheduling how = scheduling::stepped) {
    auto m = sim::make({.devices = 2, .memory = 16_MiB, .schedule = how, .seed = 1});
    sim = m.control;
    auto w = wrap(std::move(m.machine));
    machine = std::move(w.machine);
    judge = w.control;
    witness = machine->watching();
    for (int d = 0; d < 2; ++d)
      EXPECT_TRUE(machine->open(d).ok());
  }
  stream_handle stream(int device = 0, stream_kind k = stream_kind::independent) {
    return machine->create_stream(device, k, 0).value;
  }
  event_handle event(int device = 0) { return machine->create_event(device, event_kind::order_only).value; }
  address addresses(std::size_t bytes = page) { return machine->reserve(bytes, page).value; }
  memory_handle map(address at, memory_handle h = memory_handle::none) {
    if (h == memory_handle::none)
      h = machine->create(0, page).value;
    EXPECT_TRUE(machine->map(at, page, h).ok());
    EXPECT_TRUE(machine->grant(at, page, 0).ok());
    EXPECT_TRUE(machine->grant(at, page, 1).ok());
    return h;
  }
  address memory() {
    address const at = addresses();
    EXPECT_TRUE(machine->release(map(at)).ok());
    return at;
  }
  void write(stream_handle s, address at, std::size_t n = 64, int device = 0) {
    EXPECT_TRUE(machine->fill(device, s, reinterpret_cast<void*>(at), 1, 1, n).ok());
  }
  void read(stream_handle s, address at, std::size_t n = 64, int device = 0) {
    touch const t{at, n, false};
    EXPECT_TRUE(machine->enqueue(device, s, {&t, 1}, {}).ok());
  }
  void order(stream_handle first, stream_handle later) {
    auto const e = event();
    EXPECT_TRUE(machine->record(0, first, e).ok());
    EXPECT_TRUE(machine->wait(0, later, e).ok());
    EXPECT_TRUE(machine->destroy_event(0, e).ok());
  }
  void begins(stream_handle home, address at, std::size_t n, int line) {
    witness->allocated({0, home}, at, n, {"program.cpp", "", static_cast<unsigned>(line)});
  }
  void ends(std::vector<allocation_observer::user> behind, address at, std::size_t n, int line) {
    witness->freed(at, n, behind, {"program.cpp", "", static_cast<unsigned>(line)});
  }
  std::vector<kind> kinds() {
    std::vector<kind> all;
    for (auto const& f : judge->findings())
      all.push_back(f.what);
    return all;
  }
  std::string text() {
    std::string all;
    for (auto const& f : judge->findings())
      all += f.text + "\n";
    return all;
  }
  ~bench() override { (void)judge->findings(); }

  std::unique_ptr<driver> machine;
  test_control* judge = nullptr;
  sim::controls* sim = nullptr;
  weir::driver::allocation_observer* witness = nullptr;
};

}  // namespace weir::driver::check
