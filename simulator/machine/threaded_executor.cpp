// Runs a machine with threads: two workers a device (work, copies), and one for host functions.
// Threads: as executor.h says; workers take the machine's lock between operations, not during one.
#include <algorithm>
#include <boost/container/static_vector.hpp>
#include <cassert>

#include "simulator/machine/executor.h"

namespace weir::driver::sim {
namespace {

constexpr std::chrono::seconds longest_end{10};
constexpr std::size_t full_queue = 1024;  // operations; an appending call blocks while its stream has more

class threaded_executor final : public executor {
 public:
  explicit threaded_executor(queues& q) : all_(q) {
    for (std::size_t i = 0; i < 2 * q.devices.size() + 1; ++i)
      engines_.push_back(std::make_unique<engine>());
  }

  ~threaded_executor() override {
    {
      base::lock_guard lock(all_.mutex);
      ending_ = true;
      for (auto& e : engines_)
        e->wake.notify_one();
    }
    for (auto& e : engines_)
      if (e->worker.joinable())
        e->worker.join();
  }

  // Not at the first work: an enqueue could not report that no thread can be made.
  bool make_ready(int device) override {
    try {
      auto const first = 2 * static_cast<std::size_t>(device);
      for (std::size_t const i : {first, first + 1, engines_.size() - 1}) {
        engine& e = *engines_[i];
        if (!e.worker.joinable())
          e.worker = base::thread([this, &e] { labour(e); });
      }
      return true;
    } catch (...) {
      return false;
    }
  }

  // After this, libraries and the program destroy what running work may use. What never ends must not keep the
  // process; nor may a host function that ends it wait for itself.
  void stop() noexcept override {
    base::unique_lock lock(all_.mutex);
    ending_ = true;
    for (auto& e : engines_)
      e->wake.notify_one();
    std::size_t const own = inside_work::here() ? 1 : 0;
    ++waiting_for_rest_;
    bool const at_rest = rest_.wait_for(lock, base::time_limit(longest_end), [&] { return busy_ <= own; });
    --waiting_for_rest_;
    lock.unlock();
    if (!at_rest || own > 0)
      return;
    for (auto& e : engines_)
      if (e->worker.joinable())
        e->worker.join();
  }

  bool given(base::unique_lock& lock, stream& s) override {
    settle(s);
    bool room = true;
    if (s.queue.size() > full_queue) {
      auto const alive = s.shared_from_this();  // another thread may destroy the stream meanwhile
      ++waiting_for_room_;
      wake_engines_locked();
      bool const& gone = all_.devices[static_cast<std::size_t>(s.device)].lost;
      room_.wait(
          lock, [&] { return gone || s.queue.size() <= full_queue / 2 || all_.hopeless(s, s.given - full_queue / 2); });
      --waiting_for_room_;
      room = !gone && s.queue.size() <= full_queue / 2;
      if (!room && !gone) {  // blocked by a lost device: the stream's device becomes lost too, as in machine::answer
        all_.lose(s.device);
        todo_all();
        settle_all();
      }
    }
    leave(lock);
    return room;
  }

  void changed(base::unique_lock& lock) override {
    todo_all();
    settle_all();
    leave(lock);
  }

  void asked(stream&, std::uint64_t) override {}
  void pause() override {}
  void before_unmap() override {}
  bool step(stream&) override { return false; }

  outcome until(base::unique_lock& lock, stream& s, std::uint64_t position) override {
    auto const& device = all_.devices[static_cast<std::size_t>(s.device)];
    auto const end = [&] { return s.done >= position || device.lost || all_.hopeless(s, position); };
    if (!end()) {
      host_waiter self(position);
      s.hosts.push_back(self);
      self.wake.wait(lock, end);
      self.unlink();
    }
    return s.done >= position ? outcome::done : outcome::lost;
  }

  bool run(base::unique_lock& lock) override {
    ++waiting_for_rest_;
    rest_.wait(lock, [&] { return busy_ == 0; });
    --waiting_for_rest_;
    for (auto const& s : all_.live())
      if (!s->queue.empty())
        return false;
    return true;
  }

 private:
  struct engine {
    list_of<stream, of_engine> urgent, ready;
    base::condition wake;
    bool asleep = false, to_wake = false;
    base::thread worker;
  };

  engine& engine_for(stream const& s, operation const& o) {
    if (o.what == operation::kind::host)
      return *engines_.back();
    bool const copies = o.what == operation::kind::copy;
    return *engines_[2 * static_cast<std::size_t>(s.device) + (copies ? 1 : 0)];
  }

  void todo_all() {
    for (auto const& s : all_.live())
      if (!s->busy && !s->queue.empty())
        add(todo_, *s);
  }

  void settle(stream& s) {
    add(todo_, s);
    settle_all();
  }

  // Advances the streams in todo_ as far as no engine is needed.
  void settle_all() {
    while (!todo_.empty()) {
      std::shared_ptr<stream> const s = take_from<to_settle>(todo_.back());
      if (!s->busy && !all_.devices[static_cast<std::size_t>(s->device)].lost)
        advance(*s);
      all_.forget_if_finished(*s);
    }
    if (waiting_for_room_ > 0)
      room_.notify_all();
  }

  void advance(stream& s) {
    using kind = operation::kind;
    while (!s.queue.empty()) {
      operation& o = s.queue.front();
      if (all_.ahead_of(s)) {
        all_.takes.took(freedom::shared_connections);
        return;
      }
      if (o.what == kind::wait) {
        stream& other = o.awaited();
        if (other.done < o.position) {
          add(other.followed_by, s);
          s.follows_until = o.position;
          if (all_.any_lost)
            all_.wake_hosts();  // a host's wait may be hopeless now
          return;
        }
      } else if (o.what == kind::gate) {
        if (!o.held().open)
          return;
      } else if (o.what != kind::record) {
        if (ending_)
          return;
        if (o.job.ready && !o.job.ready(o.job.state)) {
          add(standing_, s);
          return;
        }
        engine& e = engine_for(s, o);
        assert(e.worker.joinable());  // invariant: an open device has its engines
        s.busy = true;
        ++busy_;
        let_begin(s);
        add(s.priority < 0 ? e.urgent : e.ready, s);
        if (e.asleep && !e.to_wake) {
          e.to_wake = true;
          to_wake_.push_back(&e);
        }
        return;
      }
      all_.retire(s, todo_);
      let_begin(s);
    }
  }

  // The front of s has begun: streams on its connection may begin.
  void let_begin(stream const& s) {
    if (all_.connections == 0)
      return;
    for (auto const& other : all_.devices[static_cast<std::size_t>(s.device)].live)
      if (other.get() != &s && other->connection == s.connection && !other->busy && !other->queue.empty())
        add(todo_, *other);
  }

  void wake_engines_locked() {
    for (engine* e : to_wake_)
      e->wake.notify_one();
    to_wake_.clear();
  }

  // Wakes after it releases the lock: the woken threads take it at once.
  void leave(base::unique_lock& lock) {
    operations dropped = std::move(all_.dropped);
    auto const wake = std::exchange(to_wake_, {});
    lock.unlock();
    for (engine* const e : wake)
      e->wake.notify_one();
    if (dropped.empty())
      return;
    drop_all(dropped);
    lock.lock();  // ready() of other work may have waited for dropped work
    changed(lock);
  }

  void tell_rest() noexcept {
    if (waiting_for_rest_ > 0)
      rest_.notify_all();
  }

  std::string begin(std::span<use const> uses) {
    try {
      return all_.bytes.begin(uses);
    } catch (std::bad_alloc const&) {
      return "no host memory";  // so short that it needs none
    }
  }
  void tell(std::string const& wrong) {
    try {
      all_.note_finding("stray: " + wrong);
    } catch (std::bad_alloc const&) {}  // the device is lost all the same
  }

  void labour(engine& e) {
    callers::this_thread_never_calls();
    base::unique_lock lock(all_.mutex);
    for (;;) {
      auto& from = e.urgent.empty() ? e.ready : e.urgent;
      if (from.empty()) {
        if (ending_)
          return;
        e.asleep = true;
        e.wake.wait(lock);
        e.asleep = e.to_wake = false;
        continue;
      }
      std::shared_ptr<stream> const s = take_from<of_engine>(from.front());
      if (ending_) {
        s->busy = false;
        --busy_;
        tell_rest();
        continue;
      }
      operation& o = s->queue.front();  // stays valid: appending moves no operation
      auto& device = all_.devices[static_cast<std::size_t>(s->device)];
      std::string wrong;
      if (!device.lost) {
        wake_engines_locked();  // now: the operation may take long
        lock.unlock();
        auto& uses = o.reached;
        o.uses(s->device, uses);
        wrong = begin(uses);
        if (wrong.empty()) {
          {
            memory::at_work const now(
                all_.bytes, uses, o.what == operation::kind::host ? memory::pins::anywhere : memory::pins::declared);
            o.run();
            all_.distort(o, uses);
          }
          all_.bytes.end(uses);
        }
        o.drop();
        lock.lock();
      }
      s->busy = false;
      --busy_;
      if (!wrong.empty()) {
        tell(wrong);
        all_.fault(s->device);
        if (all_.connections > 0)
          todo_all();  // work blocked behind the fault no longer holds up its connection
      }
      if (device.lost) {
        all_.forget_queue(*s);
        all_.forget_if_finished(*s);
      } else {
        all_.retire(*s, todo_);
        add(todo_, *s);
      }
      while (!standing_.empty())  // the end of this work may have made other work ready
        add(todo_, *take_from<before_unready>(standing_.front()));
      settle_all();
      tell_rest();
      if (!all_.dropped.empty() || !to_wake_.empty()) {
        leave(lock);
        lock.lock();
      }
    }
  }

  queues& all_;
  std::vector<std::unique_ptr<engine>> engines_;
  list_of<stream, to_settle> todo_;
  list_of<stream, before_unready> standing_;
  boost::container::static_vector<engine*, 2 * most_devices + 1> to_wake_;
  base::condition room_, rest_;
  int waiting_for_room_ = 0, waiting_for_rest_ = 0;
  std::size_t busy_ = 0;  // streams that an engine runs
  bool ending_ = false;
};

}  // namespace

std::unique_ptr<executor> make_threaded_executor(queues& q) {
  return std::make_unique<threaded_executor>(q);
}

}  // namespace weir::driver::sim
