// The queue of the copy workers.
// Threads: any; one lock, not held while bytes are copied.
#include "streams/copy/copy_workers.h"

#include <algorithm>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "runtime/base/os_numa.h"

namespace weir::streams {

void copy_workers::work_by(tuning how) noexcept {
  base::lock_guard const lock(mutex_);
  how_ = how;
}

// Takes and copies one piece. Requires: one is left.
void copy_workers::take_grain(task& t, base::unique_lock& lock) {
  std::size_t const from = t.taken, n = std::min(t.grain, t.bytes - from);
  t.taken += n;
  ++t.hands;
  if (t.taken == t.bytes) {  // all are taken
    if (t.is == task::state::queued)
      std::erase(queue_, &t);
    t.is = task::state::running;
  }
  lock.unlock();
  copy_in_host(static_cast<char*>(t.dst) + from, static_cast<char const*>(t.src) + from, n, t.by);
  lock.lock();
  --t.hands;
  // The last thread with a piece ends the task, once no piece is left.
  if (t.hands > 0 || t.is != task::state::running)
    return;
  t.is = task::state::done;
  finished_.fetch_add(1, base::memory_order_relaxed);
  done_.notify_all();
}

// Until the word changes, at most for the tuned time. A thread spins before it sleeps, because it wakes slowly:
// on virtual machines, many pieces are copied in that time. Threads that a scheduler runs do not spin.
void copy_workers::spin_while(base::atomic<std::uint64_t> const& word, std::uint64_t value, base::unique_lock& lock) {
  if (how_.spin_ns <= 0 || base::order_is_chosen())
    return;
  std::int64_t const end = base::now_ns() + how_.spin_ns;
  lock.unlock();
  while (word.load(base::memory_order_relaxed) == value && base::now_ns() < end) {
#if defined(__SSE2__)
    _mm_pause();
#endif
  }
  lock.lock();
}

void copy_workers::work(int number) {
  if (!near_.empty())
    os::keep_this_thread_on(near_);
  base::unique_lock lock(mutex_);
  // Threads beyond the tuned number stand by.
  auto const has_work_or_ends = [&] { return ending_ || (number < how_.threads && !queue_.empty()); };
  while (true) {
    if (!has_work_or_ends())
      spin_while(submitted_, submitted_.load(base::memory_order_relaxed), lock);
    queued_.wait(lock, has_work_or_ends);
    if (ending_)
      return;  // finish() does what is queued
    take_grain(*queue_.front(), lock);
  }
}

void copy_workers::submit(task& t) noexcept {
  base::unique_lock lock(mutex_);
  if (t.is != task::state::idle)
    return;
  try {
    while (asked_ < how_.threads && !ending_) {
      int const number = asked_++;
      threads_.emplace_back([this, number] { work(number); });
    }
  } catch (...) {
    asked_ = std::max(asked_, how_.threads);  // fewer threads are slower; with none, finish() copies
  }
  try {
    queue_.push_back(&t);
  } catch (...) {
    return;  // no memory: it stays idle, and finish() copies it
  }
  t.is = task::state::queued;
  submitted_.fetch_add(1, base::memory_order_relaxed);
  bool const one_thread_takes_all = t.grain >= t.bytes;
  bool const some_stand_by = asked_ > how_.threads;  // notify_one could wake one of these, which may not work
  if (one_thread_takes_all && !some_stand_by)
    queued_.notify_one();
  else
    queued_.notify_all();
}

void copy_workers::finish(task& t) {
  base::unique_lock lock(mutex_);
  while (t.is == task::state::idle || t.is == task::state::queued)
    take_grain(t, lock);
  while (t.is == task::state::running) {  // other threads copy its last pieces
    if (how_.helps && !queue_.empty()) {
      take_grain(*queue_.front(), lock);
      continue;
    }
    spin_while(finished_, finished_.load(base::memory_order_relaxed), lock);
    if (t.is == task::state::running)
      done_.wait(lock);
  }
}

void copy_workers::cancel(task& t) noexcept {
  base::unique_lock lock(mutex_);
  if (t.is == task::state::queued)
    std::erase(queue_, &t);
  // Either way no more pieces are taken.
  t.is = t.hands ? task::state::running : task::state::done;
  done_.wait(lock, [&] { return t.is != task::state::running; });
}

void copy_workers::stop() noexcept {
  std::vector<base::thread> ended;
  {
    base::unique_lock lock(mutex_);
    ending_ = true;  // no new threads are made
    ended.swap(threads_);
    queued_.notify_all();
  }
  for (auto& one : ended)
    one.join();
}

// Workers are created at the first copy for a device of its node.
std::shared_ptr<copy_workers> node_workers::of(int node) noexcept {
  if (node < 0 || threads_ == 0)
    return common_;
  try {
    auto all = known_.lock();
    if (auto const its = all->near.find(node); its != all->near.end())
      return its->second;
    auto near = os::usable_processors_near(node);
    bool const gets_its_own = near.size() >= static_cast<std::size_t>(threads_) && !all->stopped;
    auto const workers = gets_its_own ? std::make_shared<copy_workers>(threads_, std::move(near)) : common_;
    if (gets_its_own && all->how.threads)
      workers->work_by(all->how);
    // Remembered, the common ones too, so that the system is asked once.
    return all->near.emplace(node, workers).first->second;
  } catch (...) {
    return common_;  // no memory for its own workers
  }
}

void node_workers::work_by(copy_workers::tuning how) noexcept {
  auto all = known_.lock();
  all->how = how;
  common_->work_by(how);
  for (auto& [node, one] : all->near)
    one->work_by(how);
}

void node_workers::stop() noexcept {
  std::map<int, std::shared_ptr<copy_workers>> near;
  {
    auto all = known_.lock();
    all->stopped = true;
    near = std::exchange(all->near, {});
  }
  common_->stop();
  for (auto& [node, one] : near)
    one->stop();
}

}  // namespace weir::streams
