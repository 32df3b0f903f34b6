// What the stream clocks of one runtime share: events, counts, and the lost devices.
// Threads: any.
#pragma once
#include <memory>

#include "runtime/clock/stream_clock.h"
#include "runtime/driver/allocation_observer.h"

namespace weir::clock {

namespace detail {
void enter(std::uint64_t id, stream_clock*);  // Throws: bad_alloc
void leave(std::uint64_t id) noexcept;        // Requires: entered once. No id is used twice
}  // namespace detail

struct stream_clock::common {
  common(driver::driver& m, int devices)
      : machine(m),
        events(std::make_shared<event_pool>(m, devices)),
        lost(new base::atomic<std::int64_t>[static_cast<std::size_t>(devices)]),
        waits_by_device(new device_waits[static_cast<std::size_t>(devices)]) {}
  driver::driver& machine;
  driver::allocation_observer* const observer = machine.watching();
  std::shared_ptr<event_pool> const events;
  std::unique_ptr<base::atomic<std::int64_t>[]> const lost;  // 0: usable, else 2 × the driver's number + 1
  // Waits for the whole device and questions about its streams, which spoil captures. Each counts from the look for
  // captures to the end of its driver call.
  struct device_waits {
    base::mutex lock;  // held while a capture begins
    base::condition changed;
    int under_way = 0;
  };
  class device_wait {  // one of them, as long as it lives
   public:
    explicit device_wait(device_waits& w) : all_(w) {
      base::lock_guard const hold(all_.lock);
      ++all_.under_way;
    }
    ~device_wait() {
      base::lock_guard const hold(all_.lock);
      --all_.under_way;
      all_.changed.notify_all();
    }
    device_wait(device_wait const&) = delete;

   private:
    device_waits& all_;
  };
  std::unique_ptr<device_waits[]> const waits_by_device;
  base::atomic<std::uint64_t> fences{0}, waits{0}, polls{0};

  // Returns: ok, or lost with the driver's number.
  driver::status state_of(int device) const noexcept {
    std::int64_t const native = lost[static_cast<std::size_t>(device)].load(base::memory_order_acquire);
    if (native == 0)
      return {};
    return {driver::code::lost, static_cast<int>((native - 1) / 2)};
  }
  // Requires: the answer of a call that concerns this device alone.
  driver::status note(int device, driver::status s) const noexcept {
    if (s.what != driver::code::lost)
      return s;
    lost[static_cast<std::size_t>(device)].store(2 * static_cast<std::int64_t>(s.native) + 1,
                                                 base::memory_order_release);
    invalidate_fast_paths();
    return s;
  }
};

}  // namespace weir::clock
