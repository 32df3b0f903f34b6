// A walk moves streams one small step at a time, inside the calls of whoever drives the machine:
// what stepped and seeded machines share.
// Threads: as executor.h says; nothing here makes a thread or waits for one.
#pragma once
#include "simulator/machine/executor.h"

namespace weir::driver::sim {

class walk : public schedule {
 public:
  explicit walk(queues&);
  outcome until(base::unique_lock&, stream&, std::uint64_t position) override;
  void before_unmap() override;
  bool step(stream&) override;
  bool move_one(base::unique_lock&, std::uint32_t from) override;
  bool run(base::unique_lock&) override;

 protected:
  enum class stride : std::uint8_t { part, whole };  // part: start, then write, then complete, each on its own
  bool move(stream&, stride);                        // false: it cannot
  outcome drive(stream&, std::uint64_t position);    // the least that brings it there
  bool can_move(stream const&) const;
  struct obstacle {                                  // of a stream's front: what another stream has to do first
    stream* by = nullptr;                            // null: nothing
    std::uint64_t position = 0;
  };
  obstacle in_the_way(stream const&) const;
  void run_all();
  void leave(base::unique_lock&);
  std::shared_ptr<stream> const* movable(std::uint32_t from, stream const* but);  // looks round from there; null: none

  queues& all_;
  std::int64_t now_ns_ = 0;  // the machine's own time

 private:
  struct shadow {  // what outputs held before they became poison
    std::vector<use> uses;
    std::vector<std::pair<touch, std::vector<std::byte>>> kept;
  };
  void start(stream&);
  void poison(operation const&, shadow&);
  void write(stream&);
  void finish(stream&);

  std::map<std::uint64_t, shadow> running_;  // by stream id
  std::vector<std::shared_ptr<stream>> freed_;
  std::weak_ptr<stream> host_function_of_;  // whose host function is half done: there is one thread for all
};

}  // namespace weir::driver::sim
