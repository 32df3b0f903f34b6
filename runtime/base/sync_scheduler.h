// The interface of a scheduler of host threads: one object for each thread that it schedules.
// Threads: the object's own, except join().
#pragma once
#include <cstdint>
#include <memory>

#include "runtime/base/sync.h"

namespace weir::base {

class sync_scheduler {
 public:
  virtual ~sync_scheduler() = default;
  virtual void point() noexcept = 0;  // a switch point
  virtual void lock(mutex&) = 0;
  virtual bool try_lock(mutex&) = 0;
  virtual void unlock(mutex&) noexcept = 0;
  virtual bool wait(condition&, unique_lock&, std::int64_t limit_ns) = 0;  // false: timed out
  virtual void notify(condition&, bool all) noexcept = 0;
  virtual void stay(bool) noexcept = 0;  // true: no switch until as many calls say false
  virtual std::int64_t now_ns() noexcept = 0;
  virtual void sleep(std::int64_t ns) = 0;
  virtual void yield() noexcept = 0;
  // Returns: the new thread, scheduled beside this one, which calls run(body).
  virtual std::shared_ptr<sync_scheduler> start(std::shared_ptr<void> body, void (*run)(void*)) = 0;
  // Blocks: until this object's thread has ended. by: the calling thread's object; null: not scheduled
  virtual void join(sync_scheduler* by) = 0;
};

namespace detail {
// of the calling thread; null: not scheduled
using scheduled_thread = thread_pointer<sync_scheduler, static_cast<sync_scheduler*>(nullptr)>;
}  // namespace detail

}  // namespace weir::base
