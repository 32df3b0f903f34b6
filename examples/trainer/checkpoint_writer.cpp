// Holds one checkpoint at a time.
// Threads: see checkpoint_writer.h.
#include "checkpoint_writer.h"

#include <exception>

namespace trainer {

checkpoint_writer::checkpoint_writer(std::filesystem::path file)
    : file_(std::move(file)), thread_([this] { labour(); }) {}

checkpoint_writer::~checkpoint_writer() {
  {
    std::lock_guard const lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void checkpoint_writer::labour() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return next_ || ends_; });
    if (!next_)
      return;
    lock.unlock();
    std::exception_ptr failed;
    try {
      write_checkpoint(file_, *next_);
    } catch (...) {
      failed = std::current_exception();
    }
    lock.lock();
    failure_ = failed;
    next_.reset();
    changed_.notify_all();
  }
}

void checkpoint_writer::wait_and_report(std::unique_lock<std::mutex>& lock) {
  changed_.wait(lock, [&] { return !next_; });
  if (failure_)
    std::rethrow_exception(std::exchange(failure_, nullptr));
}

void checkpoint_writer::write(checkpoint c) {
  std::unique_lock lock(mutex_);
  wait_and_report(lock);
  next_ = std::move(c);
  changed_.notify_all();
}

void checkpoint_writer::finish() {
  std::unique_lock lock(mutex_);
  wait_and_report(lock);
}

}  // namespace trainer
