// The threads, thread slots and clock behind sync.h.
// Threads: any.
#include "runtime/base/sync.h"

#include <cstdlib>
#include <system_error>

#include "runtime/base/os.h"
#include "runtime/base/sync_scheduler.h"

namespace weir::base {
namespace detail {
namespace {
// the thread's values are destroyed; destructors that run later may still make new ones
constinit thread_local bool values_ended = false;

struct slots_of_thread {
  std::array<slot_value, thread_slots> at{};
  ~slots_of_thread() {
    destroy();
    values_ended = true;
  }
  void destroy() noexcept {
    for (auto slot = at.rbegin(); slot != at.rend(); ++slot)
      if (slot->value)
        slot->destroy(std::exchange(slot->value, nullptr));
  }
};

slots_of_thread& slots() noexcept {
  thread_local slots_of_thread mine;
  return mine;
}
constinit thread_local std::uint64_t id_of_thread = 0;  // 0: not assigned yet
}  // namespace

std::array<slot_value, thread_slots>& this_thread_slots() noexcept {
  return slots().at;
}

void keep_late_value() noexcept {
  if (values_ended)
    os::run_after_thread_locals([](void*) { slots().destroy(); });
}

void end_thread_values() noexcept {
  slots().destroy();
  id_of_thread = 0;
}

int new_thread_slot() noexcept {
  no_switch const here;
  static atomic<int> next{0};
  int const slot = next.fetch_add(1);
  if (slot >= thread_slots)
    std::abort();  // raise thread_slots
  return slot;
}

void may_make_thread() {
  if (os::refused(os::call::make_thread))
    throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
}

void point() noexcept {
  if (sync_scheduler* const me = scheduled_thread::value)
    me->point();
}

void lock(mutex& m) {
  sync_scheduler* const me = scheduled_thread::value;
  me ? me->lock(m) : m.mutex_.lock();
}

bool try_lock(mutex& m) {
  sync_scheduler* const me = scheduled_thread::value;
  return me ? me->try_lock(m) : m.mutex_.try_lock();
}

void unlock(mutex& m) noexcept {
  sync_scheduler* const me = scheduled_thread::value;
  me ? me->unlock(m) : m.mutex_.unlock();
}

bool wait(condition& c, unique_lock& lock, std::int64_t limit_ns) {
  if (sync_scheduler* const me = scheduled_thread::value)
    return me->wait(c, lock, limit_ns);
  c.wait_plainly(lock);
  return true;
}

void notify(condition& c, bool all) noexcept {
  if (sync_scheduler* const me = scheduled_thread::value)
    me->notify(c, all);
}

void keep_baton(bool yes) noexcept {
  if (sync_scheduler* const me = scheduled_thread::value)
    me->stay(yes);
}

bool in_scheduler() noexcept {
  return scheduled_thread::value != nullptr;
}

std::shared_ptr<sync_scheduler> start_scheduled(std::shared_ptr<void> body, void (*run)(void*)) {
  return scheduled_thread::value->start(std::move(body), run);
}

void join_scheduled(std::shared_ptr<sync_scheduler> t) {
  t->join(scheduled_thread::value);
}
}  // namespace detail

bool has_process_wide_fence() noexcept {
  static bool const answer = os::can_fence_other_threads();
  return answer;
}

void process_wide_fence() noexcept {
  os::fence_other_threads();
}

// The thread sleeps after a few yields, so that an owner of lower priority gets the processor.
void bias_word::wait_for_end() const noexcept {
  constexpr int quick = 100;
  constexpr std::int64_t nap_ns = 50'000;
  int times = 0;
  while (word_.load(memory_order_acquire) & begun) {
    if (times < quick || detail::is_scheduled())
      yield_thread();
    else
      sleep_ns(nap_ns);
    times = std::min(times + 1, quick);
  }
}

void biased_mutex::lock() {
  mutex_.lock();
  std::uint64_t const me = this_thread_id();
  // An owner is always the last thread that locked, so no ownership ends here.
  if (last_ == me) {
    ++in_a_row_;
    return;
  }
  last_ = me, in_a_row_ = 0;
  bias_word const* const owner = owner_.load(memory_order_relaxed);
  if (!owner)
    return;
  // Another thread's ownership ends. It may be inside by its word, without the mutex: that is waited for.
  owner_.store(nullptr, memory_order_relaxed);
  process_wide_fence();
  owner->wait_for_end();
  if (patience_ < most_patience)
    patience_ *= 2;
}

std::int64_t now_ns() noexcept {
  if (detail::is_scheduled()) [[unlikely]] {
    if (sync_scheduler* const me = detail::scheduled_thread::value)
      return me->now_ns();
  }
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::int64_t calendar_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::uint64_t ticks() noexcept {
#if defined(__x86_64__)
  if (!detail::is_scheduled()) [[likely]]
    return __builtin_ia32_rdtsc();
#endif
  return static_cast<std::uint64_t>(now_ns());
}

void sleep_ns(std::int64_t ns) noexcept {
  if (detail::is_scheduled()) [[unlikely]] {
    if (sync_scheduler* const me = detail::scheduled_thread::value)
      return me->sleep(ns);
  }
  std::this_thread::sleep_for(std::chrono::nanoseconds(ns));
}

void yield_thread() noexcept {
  if (detail::is_scheduled()) [[unlikely]] {
    if (sync_scheduler* const me = detail::scheduled_thread::value)
      return me->yield();
  }
  std::this_thread::yield();
}

std::uint64_t this_thread_id() noexcept {
  static constinit std::atomic<std::uint64_t> next{1};
  std::uint64_t& id = detail::id_of_thread;
  if (id == 0)
    id = next.fetch_add(1);
  return id;
}

int hardware_threads() noexcept {
  int const n = static_cast<int>(std::thread::hardware_concurrency());
  return n > 0 ? n : 1;
}

}  // namespace weir::base
