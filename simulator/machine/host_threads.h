// Schedules the host threads of a seeded machine, by its tape.
// Threads: as base::relay.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "simulator/machine/schedule_policy.h"
#include "simulator/machine/tape.h"
#include "simulator/threads/thread_scheduler.h"

namespace weir::driver::sim {

class host_order final : public base::schedule_choices {
 public:
  struct machine {               // callbacks into the machine
    std::function<bool()> move;  // one step of some stream. false: none can move
    std::function<std::int64_t()> now_ns;
    std::function<void(std::string const&)> stuck;
  };
  host_order(tape&, machine);

  base::thread_scheduler& threads() noexcept { return threads_; }
  schedule_policy by() const noexcept { return policy_; }

  int next(int now, std::span<int const> can) noexcept override;
  int instead(int now, std::span<int const> can) noexcept override;
  void yields(int now) noexcept override;
  std::size_t woken(std::size_t of) noexcept override { return tape_.draw(static_cast<std::uint32_t>(of)); }
  bool move() noexcept override { return machine_.move(); }
  std::int64_t now_ns() noexcept override;
  void jump(std::int64_t to_ns) noexcept override { jumped_ns_ += to_ns - now_ns(); }
  void stuck(std::string const& why) noexcept override { machine_.stuck(why); }

 private:
  void decide();
  int other(int now, std::span<int const> can, std::uint32_t percent);
  int highest(std::span<int const> can);
  static int after(int now, std::span<int const> can) noexcept;  // round robin
  std::uint32_t& rank(int number);

  tape& tape_;
  machine machine_;
  schedule_policy policy_ = schedule_policy::undecided;
  std::uint32_t percent_ = 0;           // chance, starved: share of switch points that switch
  int starved_ = 0;                     // a thread's number
  std::vector<std::uint32_t> ranks_;    // by thread's number; 0: none yet
  std::vector<std::uint64_t> changes_;  // switch points at which the highest rank becomes the lowest; descending
  std::uint32_t lowest_ = 100;          // the next rank for a thread that becomes the lowest
  int switches_left_ = 0;               // enumerated
  int in_a_row_ = 0;                    // switch points passed by one thread in a row
  std::int64_t jumped_ns_ = 0;
  base::thread_scheduler threads_;  // last member: destroyed first
};

}  // namespace weir::driver::sim
