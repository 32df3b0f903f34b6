// A driver in front of any other that refuses calls on demand:
// the k-th of a kind, alone or with those after it, with a given code.
// Threads: as the seam; orders may be given and cancelled from any thread.
#pragma once
#include <span>
#include <string_view>

#include "runtime/base/sync.h"
#include "runtime/driver/driver_front.h"

namespace weir::driver {

class faulty : public driver_front<faulty> {
 public:
  explicit faulty(std::unique_ptr<driver> inner) : driver_front(std::move(inner)) {}
  driver& inner() const noexcept { return *inner_; }

  static constexpr std::uint64_t without_end = ~std::uint64_t{0};
  struct order {
    call of = call::any;
    std::uint64_t k = 1;       // the k-th from now; 1 is the next
    code with = code::failed;
    // how many of those after it are refused too: without_end is "from k on", a few are its unwinding
    std::uint64_t more = 0;
    bool by_contract = true;   // only calls that may answer so: when the k-th may not, the first after it that may
  };
  // Refused calls do not reach the driver behind, but for the end of a capture, which is its end all the
  // same. Orders add up. Returns: its number, for cancel(); 0: k is 0 or with is ok, and nothing was ordered.
  std::uint64_t refuse(order);
  // The same by name, whatever the call's contract says. 0 also: no such name in call_names().
  std::uint64_t fail_call(std::string_view call, std::uint64_t k, code);
  bool cancel(std::uint64_t number);  // Returns: it was still there
  void forget_orders();
  // that can be refused
  std::uint64_t calls_so_far() const noexcept { return calls_.load(base::memory_order_relaxed); }
  // every call that can be refused, then "any"
  static std::span<std::string_view const> call_names() noexcept { return weir::driver::call_names; }

  // Looks on from inside every call, on the caller's thread. Set while no call is under way; null: nobody.
  class watcher {
   public:
    virtual ~watcher() = default;
    virtual void comes(call) noexcept {}          // whether it will be refused or not
    virtual void refused(call, code) noexcept {}
    virtual void enters(call) noexcept {}         // the driver behind
    virtual void leaves(call) noexcept {}
  };
  void watch(watcher* w) noexcept { watcher_.store(w); }

  void recheck() override;
  status host_function(int device, stream_handle, work) override;
  status enqueue(int device, stream_handle, std::span<touch const>, work) override;
  result<graph_handle> end_capture(int device, stream_handle) override;

 protected:
  // A call that names this device was refused with code::lost: sticky, so say so. every_device:
  // all are lost, as pin() means it.
  static constexpr int no_device = call_subject::no_device, every_device = call_subject::every_device;
  virtual void refused_as_lost(int /*device*/) {}
  virtual int device_of(event_handle) const { return no_device; }  // for calls that name an event alone

 private:
  friend class driver_front<faulty>;
  struct standing {
    std::uint64_t number;
    faulty::order order;  // k: how many calls are still to come; 0: the next that may be refused is
  };
  template <class Behind>
  auto through(call c, Behind&& behind) -> decltype(behind()) {
    watcher* const w = watcher_.load(base::memory_order_acquire);
    if (!w) [[likely]] return behind();
    w->enters(c);
    auto answer = behind();
    w->leaves(c);
    return answer;
  }
  template <class Behind>
  auto pass(call c, call_subject who, Behind&& behind) -> decltype(behind()) {
    if (status const refused = refusal(c, who); !refused.ok()) [[unlikely]] return {refused};
    return through(c, behind);
  }
  template <class Behind>
  status pass_work(call, int device, work const&, Behind&& behind);
  status refusal(call c, call_subject who) {
    calls_.fetch_add(1, base::memory_order_relaxed);
    if (watcher* const w = watcher_.load(base::memory_order_acquire)) [[unlikely]] w->comes(c);
    if (!any_orders_.load(base::memory_order_acquire)) [[likely]] return {};
    return look_through_orders(c, who);
  }
  status look_through_orders(call, call_subject);

  base::atomic<std::uint64_t> calls_{0};
  base::atomic<bool> any_orders_{false};
  base::atomic<watcher*> watcher_{nullptr};
  base::guarded<std::vector<standing>> orders_;
  std::uint64_t next_number_ = 1;  // under orders_
};

// Null: none stands there or behind.
inline faulty* faulty_of(driver& d) noexcept {
  for (driver* at = &d; at; at = at->behind()) {
    if (auto* const found = dynamic_cast<faulty*>(at)) return found;
  }
  return nullptr;
}

}  // namespace weir::driver
