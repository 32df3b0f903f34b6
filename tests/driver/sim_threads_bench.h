// A simulated machine of two devices run by threads, and work for it.
// Threads: machine, control and logged(), any.
#pragma once
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "simulator/machine/machine.h"

namespace weir::driver::sim {
namespace {

struct pages_of_host {
  explicit pages_of_host(std::size_t n)
      : bytes(n), at(::mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {}
  ~pages_of_host() { ::munmap(at, bytes); }
  std::size_t bytes;
  void* at;
};

// Work from a lambda. `drops` counts its destruction.
struct task {
  std::function<void()> body;
  std::atomic<int>* drops;
  static work of(std::function<void()> body, std::atomic<int>* drops = nullptr) {
    return {[](void* t) { static_cast<task*>(t)->body(); },
            [](void* t) {
              auto* const self = static_cast<task*>(t);
              if (self->drops)
                ++*self->drops;
              delete self;
            },
            new task{std::move(body), drops}};
  }
};

class sim_threads : public ::testing::Test {
 protected:
  void SetUp() override {
    auto m = make({.devices = 2, .memory = 256_MiB});
    machine = std::move(m.machine);
    control = m.control;
    for (int d = 0; d < 2; ++d)
      ASSERT_TRUE(machine->open(d).ok());
  }
  stream_handle stream(int device = 0) { return machine->create_stream(device, stream_kind::independent, 0).value; }
  event_handle event(int device = 0) { return machine->create_event(device, event_kind::order_only).value; }
  void log(stream_handle s, int what, int device = 0) {
    ASSERT_TRUE(machine
                    ->enqueue(device, s, {}, task::of([this, what] {
                                std::lock_guard lock(mutex);
                                seen.push_back(what);
                              }))
                    .ok());
  }
  std::vector<int> logged() {
    std::lock_guard lock(mutex);
    return seen;
  }
  address map(int device, std::size_t bytes) {
    address const at = machine->reserve(bytes, 2_MiB).value;
    memory_handle const h = machine->create(device, bytes).value;
    EXPECT_TRUE(machine->map(at, bytes, h).ok());
    EXPECT_TRUE(machine->release(h).ok());
    EXPECT_TRUE(machine->grant(at, bytes, device).ok());
    return at;
  }

  std::unique_ptr<driver> machine;
  controls* control = nullptr;
  std::mutex mutex;
  std::vector<int> seen;
};

}  // namespace
}  // namespace weir::driver::sim
