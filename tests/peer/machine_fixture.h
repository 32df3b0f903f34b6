// What tests of copies stand on: a simulated machine of two devices, streams that can be held, and patterns of bytes.
// Threads: a fixture belongs to its test; gates may be opened by any.
#pragma once
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <optional>
#include <vector>

#include "runtime/driver/faulty.h"
#include "runtime/driver/sim/machine.h"
#include "runtime/parts.h"
#include "streams/context.h"
#include "streams/pinned.h"
#include "streams/staging.h"
#include "weir/copy.h"
#include "weir/peer.h"

namespace weir::test {

using bytes_of_host = std::vector<std::byte>;

inline bytes_of_host pattern(std::size_t n, std::uint64_t salt) {
  bytes_of_host out(n);
  std::uint64_t x = salt * 0x9e3779b97f4a7c15u + 1;
  for (auto& b : out) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    b = static_cast<std::byte>(x >> 56);
  }
  return out;
}

// A machine and its parts, as a thread of a program has them.
struct machine {
  explicit machine(simulated like = {.devices = 2, .memory = 512_MiB}, options o = {}) : own(like, o), in(own) {}

  weir::runtime::impl& get() { return own.get(); }
  driver::driver& driver() { return get().machine(); }
  driver::sim::controls& control() { return dynamic_cast<driver::sim::controls&>(driver()); }
  streams::pinned_memory& pinned() { return get().part<streams::pinned_memory>(); }
  memory::allocator& memory(int device) { return get().part<memory::device_memory>().on(device); }
  clock::clocks& clocks() { return get().part<clock::clocks>(); }

  weir::runtime own;
  runtime_guard in;
};

// While one lives the stream stands still behind what it has been given so far.
class held {
 public:
  held(machine& m, stream_ref s) : machine_(m) {
    auto& line = streams::line_of(s);
    auto const gate = m.driver().hold(line.device(), line.handle());
    EXPECT_TRUE(gate.ok());
    gate_ = gate.value;
  }
  ~held() { open(); }
  held(held const&) = delete;
  held& operator=(held const&) = delete;
  void open() {
    if (!gate_) return;
    EXPECT_TRUE(machine_.driver().open_gate(*gate_).ok());
    gate_.reset();
  }

 private:
  machine& machine_;
  std::optional<driver::gate_handle> gate_;
};

// The bytes of device memory, read over a stream of this call's own once `after` is done.
inline bytes_of_host read_back(machine& m, void const* at, std::size_t bytes, int device) {
  bytes_of_host out(bytes);
  synchronize(weir::device(device));
  copy(default_stream(weir::device(device)), out.data(), at, bytes);
  static_cast<void>(m);
  return out;
}

inline std::uint64_t first_seed() {
  char const* const given = std::getenv("WEIR_TEST_SEED");
  return given ? std::strtoull(given, nullptr, 0) : 1;
}
inline std::uint64_t end_of_seeds(std::uint64_t many) { return first_seed() + (std::getenv("WEIR_TEST_SEED") ? 1 : many); }

}  // namespace weir::test
