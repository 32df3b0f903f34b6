// A runtime: a driver, and typed slots that upper floors fill on first use and that are destroyed in reverse.
// Threads: any, except construction and destruction.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/process.h"
#include "runtime/base/sync.h"
#include "runtime/base/text.h"
#include "runtime/driver/driver.h"
#include "weir/runtime.h"

namespace weir {

// Two functions that simulator/open_machine.cpp defines, or core/open_gpus.cpp where a build leaves simulator/ out.
// Opens the chosen machine; `why` describes it.
// Throws: not_supported (cuda without a usable GPU, a simulated machine that was left out)
struct machine_choice;
driver::opened open_machine(machine_choice const&, source_location = source_location::current());
// Puts a race checker in front, unless there is one. Throws: not_supported (it was left out)
std::unique_ptr<driver::driver> with_checker(std::unique_ptr<driver::driver>, source_location);
runtime& runtime_of_thread(source_location const&);  // runtime::current()
runtime* runtime_if_made() noexcept;                 // the same; null: the process has none yet
// This thread's, by a runtime_guard; null without one.
inline runtime*& guarded_runtime() noexcept {
  return base::thread_pointer<struct of_runtime_guard, static_cast<runtime*>(nullptr)>::value;
}
// A runtime over a given driver, for tools that wrap one.
std::unique_ptr<runtime> make_runtime(std::unique_ptr<driver::driver>, options, std::string why);

namespace detail {
inline constexpr int part_slots = 32;
int new_part_slot() noexcept;
template <class T>
int part_slot() noexcept {
  static int const slot = new_part_slot();
  return slot;
}
}  // namespace detail

// Held by a runtime: this copy of weir is in use. A program and a plugin that both hold the static library
// are two copies in one process. Their pools would compete for one device, so the second that makes a runtime
// is refused.
class copy_in_use {
 public:
  explicit copy_in_use(source_location);  // Throws: invalid_use naming both files
  ~copy_in_use();
  copy_in_use(copy_in_use const&) = delete;
};

// A reference to a runtime from an object that may outlive it.
// Threads: any, while that runtime is not being destroyed
class known_runtime {
 public:
  known_runtime() noexcept = default;
  explicit known_runtime(runtime::impl&) noexcept;
  bool any() const noexcept { return of_ != nullptr; }
  runtime::impl* if_alive() const noexcept { return of_ ? of_->load(base::memory_order_acquire) : nullptr; }
  // `what`: the calling object, for the error. Requires: any(). Throws: invalid_use if the runtime has ended
  runtime::impl& get(std::string_view operation, std::string const& what, source_location) const;

 private:
  friend struct runtime::impl;
  std::shared_ptr<base::atomic<runtime::impl*> const> of_;
};

struct WEIR_LOCAL runtime::impl {
  impl(weir::runtime& facade, std::unique_ptr<driver::driver>, weir::options, std::string why,
       source_location = source_location::current());
  ~impl();  // destroys the parts in reverse order, then the driver

  // A part is any class with a constructor T(runtime::impl&). Made on first use, the same object afterwards.
  // Throws: what T's constructor throws; the next call tries again.
  template <class T>
  T& part() {
    if (void* there = slots_[static_cast<std::size_t>(detail::part_slot<T>())].load(base::memory_order_acquire))
      return *static_cast<T*>(there);
    return *static_cast<T*>(make_part(
        detail::part_slot<T>(), [](impl& self) -> void* { return new T(self); },
        [](void* p) noexcept { delete static_cast<T*>(p); }));
  }
  template <class T>
  T* part_if_made() noexcept {
    return static_cast<T*>(slots_[static_cast<std::size_t>(detail::part_slot<T>())].load(base::memory_order_acquire));
  }

  // For a part that other parts may wait for at their end: `let_go` is called once, before the first part is
  // destroyed. Throws: bad_alloc, with no effect
  void before_the_end(void* part, void (*let_go)(void*) noexcept);

  driver::driver& machine() noexcept { return *driver_; }
  driver::allocation_observer* observer() const noexcept { return observer_; }  // null without a checker
  int device_count() const noexcept { return device_count_; }
  weir::options const& options() const noexcept { return options_; }
  std::string const& why() const noexcept { return why_; }  // why this driver, for people
  std::uint64_t id() const noexcept { return id_; }         // never reused in a process
  weir::runtime& facade() noexcept { return facade_; }

  // Makes the device usable. Throws: invalid_use (no such device), device_lost, driver_error, not_supported
  void open(int device, std::string_view operation, source_location);
  void open_any(int likely, std::string_view operation, source_location);  // no effect if some device is open
  // Blocks: until every device in use is idle. False: one cannot answer. For the end of a runtime.
  bool has_come_to_rest();

 private:
  friend class weir::known_runtime;
  struct made_part {
    int slot;
    void* part;
    void (*destroy)(void*) noexcept;
  };
  void* make_part(int slot, void* (*make)(impl&), void (*destroy)(void*) noexcept);

  copy_in_use const in_use_;
  weir::runtime& facade_;
  std::shared_ptr<base::atomic<impl*>> const life_;  // null once the end begins
  std::unique_ptr<driver::driver> driver_;
  driver::allocation_observer* observer_;
  weir::options options_;
  std::string why_;
  std::uint64_t id_;
  int device_count_;
  std::unique_ptr<base::atomic<bool>[]> opened_;
  std::array<base::atomic<void*>, detail::part_slots> slots_{};
  std::vector<made_part> made_;  // under making_
  // under making_, which the maker of a part holds
  std::vector<std::pair<void*, void (*)(void*) noexcept>> before_the_end_;
  // held while a part is made; making_thread_ lets that thread make parts below it
  base::mutex making_;
  base::atomic<std::uint64_t> making_thread_{0};
};

inline known_runtime::known_runtime(runtime::impl& r) noexcept : of_(r.life_) {}

// Throws the exception for a driver's refusal. `operands`: the values; `remedy`: what to do.
[[noreturn]] void throw_refusal(driver::status, std::string_view operation, std::string operands, std::string remedy,
                                source_location);
inline void require(driver::status s, std::string_view operation, std::string operands, std::string remedy,
                    source_location at) {
  if (!s.ok()) [[unlikely]]
    throw_refusal(s, operation, std::move(operands), std::move(remedy), at);
}

}  // namespace weir
