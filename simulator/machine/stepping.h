// A walk moves streams in small steps inside driver calls: the base of stepped and seeded machines.
// Threads: as executor.h says; it starts and waits for no thread.
#pragma once
#include "simulator/machine/executor.h"

namespace weir::driver::sim {

class stepping : public executor {
 public:
  explicit stepping(queues&);
  outcome until(base::unique_lock&, stream&, std::uint64_t position) override;
  void before_unmap() override;
  bool step(stream&) override;
  bool move_one(base::unique_lock&, std::uint32_t from) override;
  bool run(base::unique_lock&) override;

 protected:
  enum class stride : std::uint8_t { part, whole };  // part: start, write and complete are separate steps
  bool move(stream&, stride);                        // false: it cannot move
  outcome drive(stream&, std::uint64_t position);    // takes the fewest steps to that position
  bool can_move(stream const&) const;
  struct obstacle {        // what another stream must do before a stream's front
    stream* by = nullptr;  // null: nothing
    std::uint64_t position = 0;
  };
  obstacle in_the_way(stream const&) const;
  void run_all();
  void leave(base::unique_lock&);
  std::shared_ptr<stream> const* movable(std::uint32_t from, stream const* but);  // searched from `from`; null: none

  queues& all_;
  std::int64_t now_ns_ = 0;  // the machine's own time

 private:
  struct shadow {  // the former content of poisoned outputs
    std::vector<use> uses;
    std::vector<std::pair<std::byte*, std::vector<std::byte>>> kept;
  };
  void start(stream&);
  void poison(operation const&, shadow&);
  memory::pins reach_of(operation const&) const;  // the pinned bytes that it may access
  void write(stream&);
  void finish(stream&);

  std::map<std::uint64_t, shadow> running_;  // by stream id
  list_of<stream, to_settle> freed_;
  std::weak_ptr<stream> host_function_of_;  // the stream whose host function is half done: at most one on the machine
};

}  // namespace weir::driver::sim
