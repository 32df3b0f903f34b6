// The steps of a walk: an operation starts (its outputs become poison), writes and completes.
// Threads: as stepping.h says.
#include "simulator/machine/stepping.h"

#include <algorithm>
#include <cstring>
#include <optional>

namespace weir::driver::sim {
namespace {
constexpr std::byte poison_byte{0xdb};
constexpr std::size_t poisoned_at_most = 1u << 20;  // bytes of one output

bool overlap(touch const& a, touch const& b) {
  return a.at < b.at + b.bytes && b.at < a.at + a.bytes;
}
}  // namespace

stepping::stepping(queues& q) : all_(q) {
  q.clock = [this] { return now_ns_; };
  q.abandon = [this](stream& s) {
    if (auto const half = running_.find(s.id); half != running_.end()) {
      all_.bytes.end(half->second.uses);
      running_.erase(half);
      s.queue.front().at = operation::phase::queued;
    }
  };
}

bool stepping::can_move(stream const& s) const {
  auto const& device = all_.devices[static_cast<std::size_t>(s.device)];
  if (s.queue.empty() || device.lost || device.failing)
    return false;
  operation const& o = s.queue.front();
  if (o.at != operation::phase::queued)
    return true;
  bool const ready = o.what == operation::kind::wait   ? o.awaited().done >= o.position
                     : o.what == operation::kind::gate ? o.held().open
                     : o.what == operation::kind::work ? !o.job.ready || o.job.ready(o.job.state)
                                                       : true;
  return ready && !in_the_way(s).by;
}

stepping::obstacle stepping::in_the_way(stream const& s) const {
  if (stream* const ahead = all_.ahead_of(s)) {
    all_.takes.took(freedom::shared_connections);
    bool const begun = ahead->queue.front().at != operation::phase::queued;  // then the one behind it is in the way
    return {ahead, ahead->done + (begun ? 2 : 1)};
  }
  if (s.queue.empty() || s.queue.front().what != operation::kind::host)
    return {};
  auto const other = host_function_of_.lock();
  if (!other || other.get() == &s || other->queue.empty() || other->queue.front().what != operation::kind::host ||
      other->queue.front().at != operation::phase::running)
    return {};
  all_.takes.took(freedom::host_functions);
  return {other.get(), other->done + 1};
}

// A correctly ordered stream cannot see that an operation has started. An unordered read sees poison.
void stepping::poison(operation const& o, shadow& into) {
  if (o.what == operation::kind::copy && overlap(into.uses[0].what, into.uses[1].what))
    return;
  memory::at_work const now(all_.bytes, into.uses, memory::pins::declared);
  auto const each_output = [&](auto const& visit) {
    for (use const& u : into.uses)
      if (u.what.writes && u.what.bytes > 0)
        visit(reinterpret_cast<std::byte*>(u.what.at), std::min(u.what.bytes, poisoned_at_most));
  };
  each_output([&](std::byte* at, std::size_t n) {  // work may read its outputs, or write only some bytes
    if (o.what == operation::kind::work)
      into.kept.emplace_back(at, std::vector<std::byte>(at, at + n));
  });
  each_output([](std::byte* at, std::size_t n) { std::memset(at, static_cast<int>(poison_byte), n); });
}

void stepping::start(stream& s) {
  operation& o = s.queue.front();
  shadow& mine = running_[s.id];
  o.uses(s.device, mine.uses);
  if (std::string const wrong = all_.bytes.begin(mine.uses); !wrong.empty()) {
    running_.erase(s.id);
    all_.note_finding("stray: " + wrong);
    all_.fault(s.device);
    drop_all(all_.dropped);  // under the lock: ready() of other work may depend on it
    return;
  }
  o.at = operation::phase::running;
  if (o.what == operation::kind::host && all_.takes.on(freedom::host_functions))
    host_function_of_ = s.weak_from_this();
}

memory::pins stepping::reach_of(operation const& o) const {
  using kind = operation::kind;
  if (o.what == kind::host)
    return memory::pins::anywhere;
  // Pages are closed to every thread: the system would refuse a call of another one with them.
  bool const others_run = !all_.has_hosts() && all_.who_calls && all_.who_calls->count() > 1;
  return o.what == kind::work && o.job.run && !others_run ? memory::pins::alone : memory::pins::declared;
}

void stepping::write(stream& s) {
  operation& o = s.queue.front();
  shadow& mine = running_[s.id];
  std::optional<memory::at_work> now(std::in_place, all_.bytes, mine.uses, reach_of(o));
  for (auto k = mine.kept.rbegin(); k != mine.kept.rend(); ++k)
    std::memcpy(k->first, k->second.data(), k->second.size());
  o.run();
  all_.distort(o, mine.uses);
  now.reset();
  o.drop();
  all_.bytes.end(mine.uses);
  running_.erase(s.id);
  o.at = operation::phase::written;
}

void stepping::finish(stream& s) {
  auto const alive = s.shared_from_this();
  all_.retire(s, freed_);
  freed_.clear();  // no wake-up needed: the next step searches again
  all_.forget_if_finished(s);
}

bool stepping::move(stream& s, stride how) {
  if (!can_move(s))
    return false;
  all_.tell_hosts();
  using kind = operation::kind;
  now_ns_ += 1000;
  operation& o = s.queue.front();
  if (o.what == kind::wait || o.what == kind::gate || o.what == kind::record) {
    finish(s);
    return true;
  }
  if (o.at == operation::phase::queued) {
    start(s);
    if (s.queue.empty() || all_.devices[static_cast<std::size_t>(s.device)].failing)
      return true;  // its uses were wrong
    if (how == stride::part) {
      all_.takes.took(freedom::overlap);
      poison(o, running_[s.id]);
      return true;
    }
  }
  if (o.at == operation::phase::running) {
    write(s);
    if (how == stride::part)
      return true;
  }
  finish(s);
  return true;
}

std::shared_ptr<stream> const* stepping::movable(std::uint32_t from, stream const* but) {
  std::size_t total = 0;
  for (auto const& d : all_.devices)
    total += d.live.size();
  if (total == 0)
    return nullptr;
  std::size_t skip = from % total;
  // In the second round, those that were skipped.
  for (int round = 0; round < 2; ++round) {
    for (auto const& d : all_.devices) {
      for (auto const& s : d.live) {
        if (skip > 0)
          --skip;
        else if (s.get() != but && can_move(*s))
          return &s;
      }
    }
  }
  return nullptr;
}

void stepping::run_all() {
  while (auto const* next = movable(0, nullptr)) {
    auto const s = *next;
    move(*s, stride::whole);
  }
}

outcome stepping::drive(stream& target, std::uint64_t position) {
  auto const alive = target.shared_from_this();
  std::vector<std::pair<std::shared_ptr<stream>, std::uint64_t>> path{{alive, position}};
  while (!path.empty()) {
    auto const [s, needed] = path.back();
    if (s->done >= needed) {
      path.pop_back();
      continue;
    }
    auto const &of_target = all_.devices[static_cast<std::size_t>(alive->device)],
               &of_this = all_.devices[static_cast<std::size_t>(s->device)];
    if (of_target.failing || of_this.failing) {
      all_.surface();  // reports the loss to the waiting host
      drop_all(all_.dropped);
    }
    if (of_target.lost || of_this.lost)
      return outcome::lost;
    if (move(*s, stride::whole))
      continue;
    operation const& o = s->queue.front();
    if (auto const first = in_the_way(*s); first.by) {
      path.emplace_back(first.by->shared_from_this(), first.position);
    } else if (o.what == operation::kind::wait) {
      path.emplace_back(o.awaited().shared_from_this(), o.position);
    } else if (o.what == operation::kind::work) {  // its ready() waits for unknown other work: try any
      auto const* const other = movable(0, s.get());
      if (!other)
        return outcome::stuck;
      auto const moved = *other;
      move(*moved, stride::whole);
    } else {
      return outcome::stuck;
    }
  }
  return outcome::done;
}

outcome stepping::until(base::unique_lock& lock, stream& s, std::uint64_t position) {
  auto const alive = s.shared_from_this();
  outcome end = outcome::stuck;
  do {                 // again after another thread's call, which may have enqueued what was missing
    if (all_.hosts) {  // other threads may act between the call and its first look
      lock.unlock();
      lock.lock();
    }
    end = drive(s, position);
  } while (end == outcome::stuck && (all_.has_hosts() ? all_.wait_for_hosts(lock, s) : all_.wait_for_callers(lock)));
  if (end == outcome::stuck && !all_.has_hosts())
    all_.note_finding("stuck: the host waits, and no stream can proceed: " + all_.why_not(s));
  return end;
}

void stepping::before_unmap() {
  for (auto const& s : all_.live())
    if (!s->queue.empty() && s->queue.front().at == operation::phase::running)
      write(*s);
}

bool stepping::move_one(base::unique_lock& lock, std::uint32_t from) {
  auto const* const next = movable(from, nullptr);
  if (!next)
    return false;
  auto const s = *next;
  move(*s, stride::part);
  leave(lock);
  return true;
}

bool stepping::step(stream& s) {
  return move(s, stride::whole);
}

bool stepping::run(base::unique_lock&) {
  run_all();
  all_.surface();
  for (auto const& s : all_.live())
    if (!s->queue.empty())
      return false;
  return true;
}

void stepping::leave(base::unique_lock& lock) {
  all_.tell_hosts();
  all_.unlock_and_drop(lock);
}

namespace {

class stepping_executor final : public stepping {
 public:
  using stepping::stepping;
  bool given(base::unique_lock& lock, stream&) override { return leave(lock), true; }
  void changed(base::unique_lock& lock) override { leave(lock); }
  void asked(stream&, std::uint64_t) override {}
  void pause() override {}
};

}  // namespace

std::unique_ptr<executor> make_stepping_executor(queues& q) {
  return std::make_unique<stepping_executor>(q);
}

}  // namespace weir::driver::sim
