// weir/sim.h: holding the simulated machine in your hands. For your tests as much as for ours.
#pragma once
#include "weir/runtime.h"
#include "weir/stream.h"

namespace weir {
class simulation {
 public:
  static simulation of(runtime&);                               // Throws: invalid_use on a real machine
  bool step(stream_ref);                                        // running::stepped: the next piece of work of this stream
  void run();                                                   // until all is done or all wait. Throws: invalid_use naming the circle when streams wait on each other
  void fail_call(std::string_view call, std::uint64_t k);       // "map" the k-th from now
  void lose(device); void cut(device from, device to); void use_up(device, size_t bytes);
  std::uint64_t seed() const noexcept; std::uint64_t trace_hash() const noexcept;
  std::vector<std::string> findings() const;                    // races, stray accesses, leaks
};
}
