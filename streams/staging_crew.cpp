// The crew's queue.
// Threads: any; one lock, not held while bytes are copied.
#include "streams/staging_crew.h"

#include <algorithm>
#include <cstring>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace weir::streams {
namespace {

// Whole cache lines go to memory without being read first, and push nothing else out of the caches.
void copy_past_caches(void* dst, void const* src, std::size_t bytes) noexcept {
#if defined(__SSE2__)
  constexpr std::size_t line = 64;
  auto* to = static_cast<char*>(dst);
  auto const* from = static_cast<char const*>(src);
  std::size_t const before = std::min(bytes, (line - reinterpret_cast<std::uintptr_t>(dst) % line) % line);
  std::memcpy(to, from, before);
  to += before, from += before, bytes -= before;
  for (; bytes >= line; to += line, from += line, bytes -= line) {
    auto const* const in = reinterpret_cast<__m128i const*>(from);
    auto* const out = reinterpret_cast<__m128i*>(to);
    __m128i const a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1), c = _mm_loadu_si128(in + 2), d = _mm_loadu_si128(in + 3);
    _mm_stream_si128(out, a), _mm_stream_si128(out + 1, b), _mm_stream_si128(out + 2, c), _mm_stream_si128(out + 3, d);
  }
  std::memcpy(to, from, bytes);
  _mm_sfence();  // before anybody is told that it is done
#else
  std::memcpy(dst, src, bytes);
#endif
}

}  // namespace

void copy_crew::run(task& t, base::unique_lock& lock) {
  t.is = task::state::running;
  lock.unlock();
  (t.past_caches ? copy_past_caches : [](void* d, void const* s, std::size_t n) noexcept { std::memcpy(d, s, n); })(t.dst, t.src, t.bytes);
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
