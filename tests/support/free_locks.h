// No driver call comes while its thread holds the lock of a heap: during each call another thread takes and
// releases the lock of every heap.
// Threads: calls may come on any, one at a time. Not for machines that schedule threads.
#pragma once
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "runtime/memory/device/device_allocator.h"
#include "runtime/memory/device/device_memory.h"
#include "simulator/faults/fault_injector.h"

namespace weir::tests {

class free_locks final : public driver::fault_injector::watcher {
 public:
  explicit free_locks(runtime::impl& of) : of_(of), prober_([this] { run(); }) {}
  ~free_locks() override {
    {
      std::lock_guard const hold(lock_);
      over_ = true;
    }
    changed_.notify_all();
    prober_.join();
  }
  free_locks(free_locks const&) = delete;

  void comes(driver::call c) noexcept override {
    auto* const memory = of_.part_if_made<memory::device_memory>();
    if (!memory)
      return;
    for (int d = 0; d < of_.device_count(); ++d) {
      auto* const of_device = static_cast<memory::device_allocator*>(memory->if_made(d));
      if (of_device && !gets_through(*of_device))
        with_a_lock_.emplace(driver::name_of(c));
    }
    ++calls_;
  }
  std::uint64_t calls() const { return calls_; }
  std::set<std::string> const& with_a_lock() const { return with_a_lock_; }  // names of calls

 private:
  bool gets_through(memory::device_allocator& d) {
    std::unique_lock hold(lock_);
    auto const idle = [&] { return changed_.wait_for(hold, std::chrono::seconds(2), [&] { return !busy_; }); };
    if (!idle())
      return false;  // it waits since an earlier call
    busy_ = &d;
    changed_.notify_all();
    return idle();
  }
  void run() {
    std::unique_lock hold(lock_);
    for (;;) {
      changed_.wait(hold, [&] { return busy_ || over_; });
      if (!busy_)
        return;
      memory::device_allocator& d = *busy_;
      hold.unlock();
      d.heaps().index.each([](memory::stream_heap& m) { memory::quiet_session const through(m); });
      hold.lock();
      busy_ = nullptr;
      changed_.notify_all();
    }
  }

  runtime::impl& of_;
  std::mutex lock_;
  std::condition_variable changed_;
  memory::device_allocator* busy_ = nullptr;
  bool over_ = false;
  std::uint64_t calls_ = 0;
  std::set<std::string> with_a_lock_;
  std::thread prober_;  // last: uses the others
};

}  // namespace weir::tests
