// The wanderer: its tape decides when streams move: early, late, interleaved, by half, or on host waits.
// Threads: as executor.h says.
#include "simulator/machine/stepping.h"

namespace weir::driver::sim {
namespace {

class seeded_executor final : public stepping {
 public:
  seeded_executor(queues& q, tape& t) : stepping(q), tape_(t) {
    if (tape_.enumerating())
      return;
    policy_ = mixed_policies[tape_.weighted(mix_of_policies)];
    if (policy_ == schedule_policy::starved)
      starved_ = 1 + tape_.draw(6);  // a stream's id
    if (policy_ == schedule_policy::ranked)
      turns_left_ = 1 + tape_.draw(3);
  }

  schedule_policy by() const override { return policy_; }
  bool given(base::unique_lock& lock, stream&) override { return changed(lock), true; }
  void changed(base::unique_lock& lock) override {
    try {
      wander();
    } catch (std::bad_alloc const&) {}  // of the host: the streams move later
    leave(lock);
  }

  void asked(stream& s, std::uint64_t position) override {
    if (s.done >= position) {
      patience_ = 0;
      return;
    }
    if (policy_ == schedule_policy::chance || policy_ == schedule_policy::enumerated) {
      if (tape_.coin(50))
        drive(s, position);
    } else {
      wander();
    }
    if (s.done >= position) {
      patience_ = 0;
    } else if (++patience_ > 12) {  // a polling host succeeds eventually
      patience_ = 0;
      drive(s, position);
    } else if (!s.queue.empty() && s.queue.front().at == operation::phase::written) {
      all_.takes.took(freedom::seen_late);
    }
  }

  outcome until(base::unique_lock& lock, stream& s, std::uint64_t position) override {
    // jumps up to five hours
    if (s.done < position && all_.takes.takes(freedom::time, 20))
      now_ns_ += std::int64_t{1} << tape_.draw(45);
    return stepping::until(lock, s, position);
  }

  void pause() override {
    if (policy_ == schedule_policy::lazy || policy_ == schedule_policy::enumerated || !tape_.coin(12))
      return;
    all_.takes.took(freedom::blocking_calls);
    run_all();  // never waits at a closed gate: the caller itself may open it later
  }

 private:
  void wander() {
    switch (policy_) {
      case schedule_policy::eager: run_all(); return;
      case schedule_policy::lazy:
      case schedule_policy::undecided: return;
      case schedule_policy::enumerated: return;  // only answers are enumerated: the host sees nothing else
      case schedule_policy::chance: moves(tape_.draw(8) == 7 ? 1 : 0, nullptr); return;
      case schedule_policy::uniform: moves(tape_.draw(6), nullptr); return;
      case schedule_policy::starved: moves(tape_.draw(6), find_starved()); return;
      case schedule_policy::ranked: ranked_moves(tape_.draw(5)); return;
    }
  }

  stream const* find_starved() const {
    for (auto const& s : all_.live())
      if (s->id == starved_)
        return s.get();
    return nullptr;
  }

  void moves(std::uint32_t n, stream const* but) {
    for (; n > 0; --n) {
      auto const* const next = movable(tape_.draw(64), but);
      if (!next)
        return;
      auto const s = *next;
      operation const& o = s->queue.front();
      if (o.what == operation::kind::host && o.at == operation::phase::queued &&
          all_.takes.takes(freedom::host_functions, 50))
        continue;
      move(*s, stride::part);
    }
  }

  // Moves the highest-ranked stream that can move. A few times in a run it becomes the lowest.
  void ranked_moves(std::uint32_t n) {
    for (; n > 0; --n) {
      std::shared_ptr<stream> best;
      for (auto const& s : all_.live()) {
        if (s->rank == 0)
          s->rank = 1000 + tape_.draw(1000);
        if (can_move(*s) && (!best || s->rank > best->rank))
          best = s;
      }
      if (!best)
        return;
      if (turns_left_ > 0 && tape_.draw(20) == 19) {
        best->rank = turns_left_--;
        continue;
      }
      move(*best, stride::part);
    }
  }

  tape& tape_;
  schedule_policy policy_ = schedule_policy::enumerated;
  std::uint64_t starved_ = 0;
  std::uint32_t turns_left_ = 0;
  int patience_ = 0;
};

}  // namespace

std::unique_ptr<executor> make_seeded_executor(queues& q, tape& t) {
  return std::make_unique<seeded_executor>(q, t);
}

}  // namespace weir::driver::sim
