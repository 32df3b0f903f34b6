// weir/runtime.h: the object that owns a driver, its devices and their pools; and how a thread chooses one.
#pragma once
#include <filesystem>
#include <functional>
#include "weir/error.h"

namespace weir {
struct simulated {  // a machine of this process; see weir/sim.h to step, break and question it
  int devices = 4;
  size_t memory = 16_GiB;                                   // a device, bytes; costs only what is touched
  enum class running { threads, seeded, stepped } how = running::threads;
  std::uint64_t seed = 0;                                   // 0: a fresh one, printed
  enum class links { all, none, pairs } peers = links::all;
};
struct options {  // unit, default and effect of each in docs/options.md, which is generated from this table
  double epsilon = 0.03;                                    // reserved <= (1 + epsilon) * peak live + constant an arena
  size_t device_limit = 0, pinned_limit = 0;                // bytes; 0: none
  bool launch_blocking = false, check_races = false, deterministic = false, history = false;
  static options from_environment();                        // WEIR_CONF=key:value,…  Throws: invalid_use, with the nearest key
};
class runtime {
 public:
  explicit runtime(options = options::from_environment());  // WEIR_DEVICES=auto | cuda | sim[:N[:GiB]]
  explicit runtime(simulated, options = {});
  ~runtime();                                               // Blocks: until its own streams are done. Memory still held is reported, not freed under its owner
  static runtime& current();                                // Threads: this thread's; else the process default, made on first use, never destroyed
  bool is_simulated() const noexcept;
  struct impl; impl& get() noexcept;
 private:
  impl* impl_;
};
class [[nodiscard]] runtime_guard {  // free functions of this thread speak to `r`; objects always know their own
 public:
  explicit runtime_guard(runtime& r) noexcept;
  ~runtime_guard();
  runtime_guard(runtime_guard const&) = delete;
};
}
