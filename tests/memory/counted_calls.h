// How often a simulated machine received each call of the driver interface.
// Threads: one.
#pragma once
#include <array>
#include <initializer_list>

#include "simulator/faults/fault_injector.h"
#include "simulator/machine/machine.h"

namespace weir::tests {

class counted_calls final : public driver::fault_injector::watcher {
 public:
  explicit counted_calls(driver::sim::controls& of) : of_(of.refusing()) { of_.watch(this); }
  ~counted_calls() override { of_.watch(nullptr); }
  counted_calls(counted_calls const&) = delete;
  void comes(driver::call c) noexcept override { ++counts_[static_cast<std::size_t>(c)]; }
  std::uint64_t of(std::initializer_list<driver::call> some) const {
    std::uint64_t n = 0;
    for (driver::call const c : some)
      n += counts_[static_cast<std::size_t>(c)];
    return n;
  }
  std::uint64_t all() const {
    std::uint64_t n = 0;
    for (std::uint64_t const one : counts_)
      n += one;
    return n;
  }
  std::uint64_t events() const {  // every call on an event
    using driver::call;
    return of(
        {call::create_event, call::record, call::query_event, call::wait, call::synchronize_event, call::query_stream});
  }
  std::uint64_t host_waits() const {
    using driver::call;
    return of({call::synchronize_device, call::synchronize_stream, call::synchronize_event});
  }
  void forget() { counts_ = {}; }

 private:
  driver::fault_injector& of_;
  std::array<std::uint64_t, driver::call_count> counts_{};
};

}  // namespace weir::tests
