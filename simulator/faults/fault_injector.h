// A decorator of any driver that refuses calls on demand: the k-th of a kind, or several from there.
// Threads: as the driver interface; any thread may place and cancel orders.
#pragma once
#include <new>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/base/held_door.h"
#include "runtime/base/sync.h"
#include "runtime/driver/driver_front.h"

namespace weir::driver {

class fault_injector : public driver_front<fault_injector> {
 public:
  explicit fault_injector(std::unique_ptr<driver> inner) : driver_front(std::move(inner)) {}
  driver& inner() const noexcept { return *inner_; }

  static constexpr std::uint64_t without_end = ~std::uint64_t{0};
  struct order {
    call of = call::any;
    std::uint64_t k = 1;  // the k-th call from now; 1 is the next
    code with = code::failed;
    // further calls to refuse after it. without_end: all. A few: also the calls that unwind the first
    std::uint64_t more = 0;
    bool by_contract = true;  // only the k-th, or the first after it, whose contract allows the code
  };
  // A refused call does not reach the inner driver, except end_capture. Orders are independent.
  // Returns: the number for cancel(). 0: nothing is ordered (k is 0, or `with` is ok).
  std::uint64_t refuse(order);
  // The same by name, whatever the call's contract allows. Returns: also 0 for a name not in call_names().
  std::uint64_t fail_call(std::string_view call, std::uint64_t k, code);
  bool cancel(std::uint64_t number);  // Returns: whether it was still pending
  void forget_orders();
  // that an order could refuse
  std::uint64_t calls_so_far() const noexcept { return calls_.load(base::memory_order_relaxed); }
  // every call that an order can refuse, then "any"
  static std::span<std::string_view const> call_names() noexcept { return weir::driver::call_names; }

  // Observes every call, on the caller's thread. Set it only while no call is in progress; null removes it.
  class watcher {
   public:
    virtual ~watcher() = default;
    virtual void comes(call) noexcept {}  // before every call, refused or not
    virtual void refused(call, code) noexcept {}
    virtual void enters(call) noexcept {}  // the inner driver
    virtual void leaves(call) noexcept {}
  };
  void watch(watcher* w) noexcept { watcher_.store(w); }

  void recheck() override;
  status host_function(int device, stream_handle, work) override;
  status enqueue(int device, stream_handle, std::span<touch const>, work) override;
  result<graph_handle> end_capture(int device, stream_handle) override;
  result<std::uint64_t> capture_of(int device, stream_handle) override;
  status keep_with_graph(int device, stream_handle, void (*drop)(void*), void* state) override;

 protected:
  // A call that names this device was refused with the sticky code::lost. every_device: pin() loses all.
  static constexpr int no_device = call_subject::no_device, every_device = call_subject::every_device;
  virtual void refused_as_lost(int /*device*/) {}
  virtual int device_of(event_handle) const { return no_device; }  // for calls that only name an event

 private:
  friend class driver_front<fault_injector>;
  struct standing {
    std::uint64_t number;
    fault_injector::order order;  // k: further calls until the refusal; 0: the next call that may be refused
  };
  status spoil_as_said(status const& refused, int device, stream_handle);
  // The driver interface does not throw. A simulated call without host memory does, with no effect.
  template <class Behind>
  static auto answer_of(call c, Behind&& behind) -> decltype(behind()) try {
    return behind();
  } catch (std::bad_alloc const&) {
    bool const may_say_so = c != call::any && contract_of(c).has(code::out_of_memory);
    return {status{may_say_so ? code::out_of_memory : code::failed}};
  }
  template <class Behind>
  auto through(call c, Behind&& behind) -> decltype(behind()) {
    watcher* const w = watcher_.load(base::memory_order_acquire);
    if (!w) [[likely]]
      return answer_of(c, behind);
    w->enters(c);
    auto answer = answer_of(c, behind);
    w->leaves(c);
    return answer;
  }
  template <class Behind>
  auto pass(call c, call_subject subject, Behind&& behind) -> decltype(behind()) {
    if (status const refused = refusal(c, subject); !refused.ok()) [[unlikely]]
      return {refused};
    return through(c, behind);
  }
  template <class Behind>
  status pass_work(call, int device, work const&, Behind&& behind);
  template <class Behind>
  status with_work(call, work const&, Behind&& behind);
  status refusal(call c, call_subject subject) {
    WEIR_RULE(!base::held_door::by_this_thread(), "a driver call is made under a heap's lock");
    calls_.fetch_add(1, base::memory_order_relaxed);
    if (watcher* const w = watcher_.load(base::memory_order_acquire)) [[unlikely]]
      w->comes(c);
    if (!any_orders_.load(base::memory_order_acquire)) [[likely]]
      return {};
    return look_through_orders(c, subject);
  }
  status look_through_orders(call, call_subject);

  base::atomic<std::uint64_t> calls_{0};
  base::atomic<bool> any_orders_{false};
  base::atomic<watcher*> watcher_{nullptr};
  base::guarded<std::vector<standing>> orders_;
  std::uint64_t next_number_ = 1;  // under orders_
};

// Returns null if no injector is in front of that driver.
inline fault_injector* fault_injector_of(driver& d) noexcept {
  for (driver* at = &d; at; at = at->behind())
    if (auto* const found = dynamic_cast<fault_injector*>(at))
      return found;
  return nullptr;
}

}  // namespace weir::driver
