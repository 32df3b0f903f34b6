// Fixtures for tests of copies: a machine, simulated or of GPUs, streams that can be held, and patterns of
// bytes.
// Threads: a fixture belongs to its test; gates may be opened by any.
#pragma once
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "runtime/core/parts.h"
#include "simulator/faults/fault_injector.h"
#include "simulator/machine/machine.h"
#include "streams/copy/staging.h"
#include "streams/pinned/pinned_memory.h"
#include "streams/stream/context.h"
#include "tests/support/pattern.h"
#include "tests/support/seeds.h"
#include "weir/copy.h"
#include "weir/peer.h"

namespace weir::test {

// A machine and its parts, as a thread of a program has them.
struct machine {
  explicit machine(simulated like = {.devices = 2, .memory = 512_MiB}, options o = {}) : own(like, o), in(own) {}
  explicit machine(options o) : own(o), in(own) {}  // of GPUs. Throws: not_supported without one
  static std::unique_ptr<machine> of_gpus() {
    ::setenv("WEIR_DEVICES", "cuda", 1);
    try {
      auto made = std::make_unique<machine>(options{});
      ::unsetenv("WEIR_DEVICES");
      return made;
    } catch (not_supported const&) {
      ::unsetenv("WEIR_DEVICES");
      return nullptr;
    }
  }

  weir::runtime::impl& get() { return own.get(); }
  driver::driver& driver() { return get().machine(); }
  driver::sim::controls& control() { return *driver::sim::controls_of(driver()); }
  streams::pinned_memory& pinned() { return get().part<streams::pinned_memory>(); }
  memory::allocator& memory(int device) { return get().part<memory::device_memory>().on(device); }
  clock::clocks& clocks() { return get().part<clock::clocks>(); }

  weir::runtime own;
  runtime_guard in;
};

// Holds a stream behind the work enqueued on it so far. On GPUs the gate opens by itself after five seconds,
// and the test fails: a call that blocks would otherwise hang.
class held {
 public:
  held(machine& m, stream_ref s) : machine_(m) {
    auto& line = streams::clock_of(s);
    auto const gate = m.driver().hold(line.device(), line.handle());
    EXPECT_TRUE(gate.ok());
    if (gate.ok())
      gate_ = gate.value;
    if (!m.driver().simulated())
      watchdog_ = std::thread([this] {
        std::unique_lock lock(mutex_);
        if (changed_.wait_for(lock, std::chrono::seconds(5), [this] { return !gate_; }))
          return;
        ADD_FAILURE() << "a call waited for work that a gate held back";
        open_once();
      });
  }
  ~held() {
    open();
    if (watchdog_.joinable())
      watchdog_.join();
  }
  held(held const&) = delete;
  held& operator=(held const&) = delete;
  void open() {
    std::lock_guard lock(mutex_);
    open_once();
  }

 private:
  void open_once() {
    if (!gate_)
      return;
    EXPECT_TRUE(machine_.driver().open_gate(*gate_).ok());
    gate_.reset();
    changed_.notify_all();
  }

  machine& machine_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<driver::gate_handle> gate_;
  std::thread watchdog_;
};

// Waits for all work of the device first.
inline bytes_of_host read_back(void const* at, std::size_t bytes, int device) {
  bytes_of_host out(bytes);
  synchronize(weir::device(device));
  copy(default_stream(weir::device(device)), out.data(), at, bytes);
  return out;
}

}  // namespace weir::test
