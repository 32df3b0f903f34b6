// How a relay's threads hand on the baton, wait and end.
// Threads: as thread_scheduler.h says.
#include "simulator/threads/thread_scheduler.h"

#include <algorithm>
#include <cstdlib>

#include "runtime/base/os.h"
#include "simulator/threads/scheduled_thread.h"

namespace weir::base {
namespace {
using state = detail::scheduler_thread::state;

void print(std::string const& why) noexcept {
  os::print_error("weir-111: seeded machine: " + why + "\n");
}
[[noreturn]] void end_process(std::string const& why) noexcept {
  print(why);
  std::abort();
}
}  // namespace

thread_scheduler* thread_scheduler::here() noexcept {
  member* const me = detail::this_scheduler_thread();
  return me ? me->in : nullptr;
}

int thread_scheduler::number() noexcept {
  member* const me = detail::this_scheduler_thread();
  return me ? me->number : 0;
}

void thread_scheduler::enter(std::string name, life l) {
  if (active() || here())
    end_process("a scheduled thread enters a second scheduler");
  auto first = std::make_shared<member>();
  first->in = this;
  first->name = std::move(name);
  detail::scheduled_thread::value = first.get();
  threads_.push_back(std::move(first));
  ready_.push_back(0);
  alive_ = 1;
  life_ = l;
  over_ = false;
  why_over_.clear();
  active_.store(true, std::memory_order_relaxed);
  detail::relays.fetch_add(1);
}

void thread_scheduler::leave() noexcept {
  if (!has_this_thread() || alive_ != 1)
    end_process("the scheduler ends while its threads run: " + circle());
  detail::scheduled_thread::value = nullptr;
  threads_.clear();
  ready_.clear();
  held_.clear();
  named_.clear();
  active_.store(false, std::memory_order_relaxed);
  detail::relays.fetch_sub(1);
}

void thread_scheduler::end() noexcept {
  if (!active())
    return;
  if (!has_this_thread())
    end_process("a thread outside the scheduler ends its machine: " + circle());
  if (alive_ > 1) {
    if (!over_)
      why_over_ = "the machine ends before its threads: " + circle();
    give_up();
    for (std::size_t i = 1; i < threads_.size(); ++i)
      join(*detail::this_scheduler_thread(), *threads_[i]);
  }
  leave();
}

void thread_scheduler::spawn(std::string name, std::function<void()> body) {
  auto t = start(std::move(name), std::make_shared<std::function<void()>>(std::move(body)),
                 [](void* b) { (*static_cast<std::function<void()>*>(b))(); });
  t->spawned = true;
  point();
}

thread_scheduler::member_ptr thread_scheduler::start(std::string name, std::shared_ptr<void> body, void (*run)(void*)) {
  auto t = std::make_shared<member>();
  t->in = this;
  t->number = static_cast<int>(threads_.size());
  t->name = std::move(name);
  t->body = std::move(body);
  t->run = run;
  threads_.reserve(threads_.size() + 1);
  ready_.reserve(threads_.size() + 1);
  detail::run_on_kept_thread(t, [](member& self) noexcept { return body_of(self); });
  threads_.push_back(t);
  ready_.push_back(t->number);
  ++alive_;
  return t;
}

thread_scheduler::member_ptr thread_scheduler::body_of(member& me) noexcept {
  thread_scheduler& in = *me.in;
  try {
    if (!in.over_)
      me.run(me.body.get());
  } catch (abandoned const&) {
  } catch (...) {
    if (!me.spawned)
      std::terminate();  // as in any other thread
    if (!in.first_error_)
      in.first_error_ = std::current_exception();
  }
  me.body.reset();
  me.ends = true;
  detail::end_thread_values();
  me.is = state::ended;
  in.not_ready(me);
  --in.alive_;
  for (auto const& t : in.threads_)
    if (t->is == state::thread && t->what == &me)
      in.make_ready(*t);
  return in.threads_[static_cast<std::size_t>(in.choose_other(me.number))];
}

std::string thread_scheduler::join() {
  member& me = *detail::this_scheduler_thread();
  for (std::size_t i = 1; i < threads_.size(); ++i)
    if (threads_[i]->spawned || over_)
      join(me, *threads_[i]);
  over_ = false;
  auto const error = std::exchange(first_error_, nullptr);
  if (life_ == life::while_needed && alive_ == 1)
    leave();
  std::string why = std::exchange(why_over_, {});
  if (error)
    std::rethrow_exception(error);
  return why;
}

void thread_scheduler::join(member& me, member& other) {
  point();
  while (other.is != state::ended) {
    if (me.number != 0)
      throw_if_over(me);  // the first thread must reach the end of the run
    me.is = state::thread;
    me.what = &other;
    block(me);
  }
}

// Switch points ---------------------------------------------------------------------------------------------

void thread_scheduler::point() noexcept {
  member& me = *detail::this_scheduler_thread();
  if (me.quiet > 0 || choosing_)
    return;
  if (++points_ % endless == 0) {
    if (over_)
      end_process("a stopped run does not end: " + why_over_);
    why_over_ = "the run does not end: " + std::to_string(points_) + " switch points; " + circle();
    choices_.stuck(why_over_);
    give_up();
  }
  if (over_)
    return;
  wake_sleepers();
  if (ready_.size() > 1)
    hand_to(choices_.next(me.number, ready_));
}

void thread_scheduler::yield() noexcept {
  member& me = *detail::this_scheduler_thread();
  point();
  if (me.quiet > 0 && ++points_ % endless == 0)
    end_process("a thread waits for another one inside base::no_switch or with base::quiet");
  if (ready_.size() < 2 || me.quiet > 0 || choosing_)
    return;
  choices_.yields(me.number);
  std::vector<int> others = ready_;
  std::erase(others, me.number);
  hand_to(others.size() == 1 ? others[0] : choices_.instead(me.number, others));
}

void thread_scheduler::sleep(std::int64_t ns) {
  member& me = *detail::this_scheduler_thread();
  if (over_ || choosing_)
    return;
  me.is = state::asleep;
  me.until_ns = time_limit(std::chrono::nanoseconds(ns)).after(choices_.now_ns());
  ++limits_;
  block(me);
}

void thread_scheduler::hand_to(int n) noexcept {
  member& me = *detail::this_scheduler_thread();
  if (n == me.number)
    return;
  auto const next = threads_[static_cast<std::size_t>(n)];
  next->go->give();
  me.go->await();
}

// Locks and conditions --------------------------------------------------------------------------------------

int thread_scheduler::holder(mutex const& m) const noexcept {
  auto const at = std::find_if(held_.begin(), held_.end(), [&](held const& h) { return h.what == &m; });
  return at == held_.end() ? -1 : at->by;
}

void thread_scheduler::take(member& me, mutex& m) {
  held_.push_back({&m, me.number});
  if (m.quiet_)
    ++me.quiet;
}

bool thread_scheduler::give_back(member& me, mutex& m) noexcept {
  auto const at =
      std::find_if(held_.rbegin(), held_.rend(), [&](held const& h) { return h.what == &m && h.by == me.number; });
  if (at == held_.rend()) {  // locked before this thread entered, or in not_retaken: see retake()
    if (std::erase(me.not_retaken, &m) == 0)
      m.mutex_.unlock();
    return false;
  }
  held_.erase(std::next(at).base());
  if (m.quiet_)
    --me.quiet;
  m.mutex_.unlock();
  for (auto const& t : threads_)
    if (t->is == state::lock && t->what == &m)
      make_ready(*t);
  return true;
}

void thread_scheduler::lock(member& me, mutex& m) {
  if (!m.quiet_)
    point();
  if (over_ && !m.quiet_ && points_ - over_at_ > patience)
    throw_if_over(me);  // else it takes and frees locks forever
  me.gave_up = false;
  while (!m.mutex_.try_lock()) {
    if (holder(m) < 0) {
      lock_from_outside(m);
      break;
    }
    if (me.gave_up) {
      throw_if_over(me);  // else it unwinds already, and goes on without the lock
      return me.not_retaken.push_back(&m);
    }
    me.is = state::lock;
    me.what = &m;
    me.firm = me.ends || std::uncaught_exceptions() > 0;
    block(me);
  }
  take(me, m);
}

// The holder is outside the relay and needs no baton, or locked it before it entered and waits for the baton.
void thread_scheduler::lock_from_outside(mutex& m) {
  for (int naps = 0; !m.mutex_.try_lock(); ++naps) {
    if (naps > 20'000)
      end_process("a lock is never unlocked, and no thread of this machine holds it: " + circle());
    std::this_thread::sleep_for(std::chrono::microseconds(500));
  }
}

bool thread_scheduler::try_lock(member& me, mutex& m) {
  if (!m.quiet_)
    point();
  if (!m.mutex_.try_lock())
    return false;
  take(me, m);
  return true;
}

void thread_scheduler::unlock(member& me, mutex& m) noexcept {
  if (give_back(me, m))
    point();
}

// After a wait. When all unwind, the holder may never release the lock; one thread runs, so data are safe.
void thread_scheduler::retake(member& me, mutex& m) {
  while (!m.mutex_.try_lock()) {
    if (holder(m) < 0) {
      lock_from_outside(m);
      break;
    }
    if (over_)
      return me.not_retaken.push_back(&m);
    me.is = state::lock;
    me.what = &m;
    block(me);
  }
  take(me, m);
}

bool thread_scheduler::wait(member& me, condition& c, unique_lock& lock, std::int64_t limit_ns) {
  throw_if_over(me);
  mutex& m = *lock.mutex();
  me.is = state::condition;
  me.what = &c;
  me.limit_passed = false;
  if (limit_ns != condition::no_limit) {
    me.until_ns = time_limit(std::chrono::nanoseconds(limit_ns)).after(choices_.now_ns());
    ++limits_;
  }
  give_back(me, m);
  block(me);
  bool const in_time = !me.limit_passed;
  retake(me, m);
  throw_if_over(me);
  return in_time;
}

bool thread_scheduler::wait_for_others(condition& c, unique_lock& lock, std::function<std::string()> const& why) {
  if (over_ || choosing_)
    return false;
  member& me = *detail::this_scheduler_thread();
  me.is = state::others;
  me.what = &c;
  me.why = &why;
  me.gave_up = false;
  give_back(me, *lock.mutex());
  block(me);
  me.why = nullptr;
  bool const moved = !me.gave_up && !over_;
  retake(me, *lock.mutex());
  return moved;
}

void thread_scheduler::notify(condition& c, bool all) noexcept {
  std::vector<member*> waiting;
  for (auto const& t : threads_)
    if ((t->is == state::condition || t->is == state::others) && t->what == &c)
      waiting.push_back(t.get());
  if (all) {
    for (member* t : waiting)
      make_ready(*t);
  } else if (!waiting.empty()) {
    make_ready(*waiting[waiting.size() == 1 ? 0 : choices_.woken(waiting.size())]);
  }
  point();
}

// The next thread ------------------------------------------------------------------------------------------

void thread_scheduler::make_ready(member& t) noexcept {
  if (t.until_ns != member::never)
    --limits_;
  t.until_ns = member::never;
  t.is = state::ready;
  ready_.insert(std::lower_bound(ready_.begin(), ready_.end(), t.number), t.number);
}

void thread_scheduler::not_ready(member& t) noexcept {
  std::erase(ready_, t.number);
}

void thread_scheduler::block(member& me) {
  if (choosing_)
    end_process("work of a simulated device waits for a host thread: " + circle());
  not_ready(me);
  hand_to(choose_other(me.number));
}

int thread_scheduler::choose_other(int now) {
  for (;;) {
    wake_sleepers();
    if (!ready_.empty())
      return ready_.size() == 1 ? ready_[0] : choices_.instead(now, ready_);
    choosing_ = true;
    bool const moved = !over_ && choices_.move();
    choosing_ = false;
    if (!moved && !jump_to_next_limit())
      nothing_moves();
  }
}

void thread_scheduler::wake_sleepers() noexcept {
  if (limits_ == 0)
    return;
  std::int64_t const now = choices_.now_ns();
  for (auto const& t : threads_) {
    if (t->until_ns == member::never || t->until_ns > now)
      continue;
    t->limit_passed = true;
    make_ready(*t);
  }
}

bool thread_scheduler::jump_to_next_limit() noexcept {
  if (limits_ == 0)
    return false;
  std::int64_t first = member::never;
  for (auto const& t : threads_)
    if (t->until_ns != member::never && (first == member::never || t->until_ns < first))
      first = t->until_ns;
  choices_.jump(first);
  return true;
}

// Wakes threads that wait in the machine: they continue with an error. If there are none, all unwind.
void thread_scheduler::nothing_moves() {
  std::string const text = circle();
  if (over_) {
    // First a thread at a lock where something may be thrown.
    if (!wake_at_locks(false) && !wake_at_locks(true))
      end_process("a stuck program cannot be unwound: " + why_over_ + "; then " + text);
    return;
  }
  choices_.stuck(text);
  for (auto const& t : threads_) {
    if (t->is != state::others)
      continue;
    t->gave_up = true;
    make_ready(*t);
  }
  if (!ready_.empty())
    return;
  why_over_ = text;
  give_up();
}

bool thread_scheduler::wake_at_locks(bool firm) noexcept {
  for (auto const& t : threads_) {
    if (t->is != state::lock || t->firm != firm)
      continue;
    t->gave_up = true;
    make_ready(*t);
    return true;
  }
  return false;
}

void thread_scheduler::give_up() noexcept {
  over_ = true;
  over_at_ = points_;
  // the first thread's code may not print the reason of the exception it gets
  if (threads_.front()->is != state::thread)
    print(why_over_);
  for (auto const& t : threads_)
    if (t->is != state::ready && t->is != state::ended)
      make_ready(*t);
}

void thread_scheduler::throw_if_over(member const& me) const {
  if (over_ && !me.ends && std::uncaught_exceptions() == 0)
    throw abandoned{};
}

std::string thread_scheduler::name_of(void const* what) const {
  auto const at = std::find(named_.begin(), named_.end(), what);
  auto const index = at - named_.begin();
  if (at == named_.end())
    named_.push_back(what);
  return std::to_string(index + 1);
}

std::string thread_scheduler::state_of(member const& t) const {
  auto const named = [](member const& m) {
    return "thread " + std::to_string(m.number) + (m.name.empty() ? "" : " (" + m.name + ")");
  };
  std::string const text = named(t) + " waits for ";
  switch (t.is) {
    case state::lock: {
      int const by = holder(*static_cast<mutex const*>(t.what));
      return text + "lock " + name_of(t.what) +
             (by < 0           ? ""
              : by == t.number ? ", which it holds itself"
                               : ", which " + named(*threads_[static_cast<std::size_t>(by)]) + " holds");
    }
    case state::condition: return text + "condition " + name_of(t.what);
    case state::others: return named(t) + " waits in a call: " + (*t.why)();
    case state::thread: return text + "the end of " + named(*static_cast<member const*>(t.what));
    case state::asleep: return named(t) + " sleeps";
    case state::ready: return named(t) + " can run";
    case state::ended: break;
  }
  return {};
}

std::string thread_scheduler::circle() const {
  std::string text;
  for (auto const& t : threads_)
    if (t->is != state::ended)
      text += (text.empty() ? "" : "; ") + state_of(*t);
  return text;
}

// sync_scheduler.h's calls ----------------------------------------------------------------------------------

namespace detail {

void scheduler_thread::point() noexcept {
  in->point();
}
void scheduler_thread::lock(mutex& m) {
  in->lock(*this, m);
}
bool scheduler_thread::try_lock(mutex& m) {
  return in->try_lock(*this, m);
}
void scheduler_thread::unlock(mutex& m) noexcept {
  in->unlock(*this, m);
}
bool scheduler_thread::wait(condition& c, unique_lock& lock, std::int64_t limit_ns) {
  return in->wait(*this, c, lock, limit_ns);
}
void scheduler_thread::notify(condition& c, bool all) noexcept {
  in->notify(c, all);
}
void scheduler_thread::stay(bool yes) noexcept {
  quiet += yes ? 1 : -1;
}
std::int64_t scheduler_thread::now_ns() noexcept {
  return in->now_ns();
}
void scheduler_thread::sleep(std::int64_t ns) {
  in->sleep(ns);
}
void scheduler_thread::yield() noexcept {
  in->yield();
}

std::shared_ptr<sync_scheduler> scheduler_thread::start(std::shared_ptr<void> with, void (*run_it)(void*)) {
  auto t = in->start("weir's", std::move(with), run_it);
  in->point();
  return t;
}

void scheduler_thread::join(sync_scheduler* by) {
  if (is == state::ended)
    return;
  auto* const me = static_cast<scheduler_thread*>(by);
  if (!me || me->in != in)
    end_process("a thread outside a seeded machine joins a thread of the machine");
  in->join(*me, *this);
}

}  // namespace detail
}  // namespace weir::base
