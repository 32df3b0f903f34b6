// The crew's queue.
// Threads: any; one lock, not held while bytes are copied.
#include "streams/staging_crew.h"

#include <algorithm>
#include <cstring>

namespace weir::streams {

void copy_crew::run(task& t, base::unique_lock& lock) {
  t.is = task::state::running;
  lock.unlock();
  std::memcpy(t.dst, t.src, t.bytes);
  lock.lock();
  t.is = task::state::done;
  done_.notify_all();
}

void copy_crew::work() {
  base::unique_lock lock(mutex_);
  while (true) {
    queued_.wait(lock, [&] { return ending_ || !queue_.empty(); });
    if (ending_) return;  // what is queued is done by whoever finishes it
    task& next = *queue_.front();
    queue_.pop_front();
    run(next, lock);
  }
}

void copy_crew::submit(task& t) noexcept {
  base::unique_lock lock(mutex_);
  if (t.is != task::state::idle) return;
  if (!started_) {
    started_ = true;
    try {
      while (static_cast<int>(threads_.size()) < wanted_) threads_.emplace_back([this] { work(); });
    } catch (...) {}  // no more threads to be had: fewer are slower, none is whoever finishes
  }
  try {
    queue_.push_back(&t);
  } catch (...) {
    return;
  }
  t.is = task::state::queued;
  queued_.notify_one();
}

void copy_crew::finish(task& t) {
  base::unique_lock lock(mutex_);
  if (t.is == task::state::queued) std::erase(queue_, &t);
  if (t.is == task::state::queued || t.is == task::state::idle) return run(t, lock);
  done_.wait(lock, [&] { return t.is != task::state::running; });
}

void copy_crew::cancel(task& t) noexcept {
  base::unique_lock lock(mutex_);
  if (t.is == task::state::queued) std::erase(queue_, &t);
  done_.wait(lock, [&] { return t.is != task::state::running; });
  t.is = task::state::done;
}

void copy_crew::stop() noexcept {
  std::vector<base::thread> ended;
  {
    base::unique_lock lock(mutex_);
    ending_ = true;
    started_ = true;  // none is made any more
    ended.swap(threads_);
    queued_.notify_all();
  }
  for (auto& one : ended) one.join();
}

}  // namespace weir::streams
