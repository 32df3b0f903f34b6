// A library that contains weir. A program loads, uses and closes it while weir's threads and work go on.
// Threads: one.
#include <chrono>
#include <optional>
#include <string>
#include <thread>

#include "weir/launch.h"
#include "weir/tensor.h"

namespace {
std::optional<weir::buffer> kept;
std::optional<weir::stream> on;
}  // namespace

// Creates and destroys an idle machine. No thread of weir remains whose destructors keep the library loaded.
extern "C" __attribute__((visibility("default"))) int touch_weir() {
  try {
    weir::runtime const brief{weir::simulated{.devices = 1}};
    return 0;
  } catch (weir::error const&) {
    return 2;
  }
}

// What making a runtime threw; empty: nothing.
extern "C" __attribute__((visibility("default"))) char const* why_weir_cannot_start() {
  static std::string why;
  why.clear();
  try {
    weir::runtime const brief{weir::simulated{.devices = 1}};
  } catch (weir::invalid_use const& e) {
    why = e.what();
  }
  return why.c_str();
}

extern "C" __attribute__((visibility("default"))) int use_weir() {
  try {
    kept.emplace(1000);
    on.emplace();
    for (int i = 0; i < 5; ++i)
      weir::launch_host(*on, [] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); });
    return weir::ones({10}).cpu().data<float>()[9] == 1 ? 0 : 1;
  } catch (weir::error const&) {
    return 2;
  }
}
