// A long life: threads make, use and end everything that weir has, and nothing may grow.
// Threads: a life belongs to one; its actors are its own.
#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/soak/growth.h"
#include "weir/runtime.h"

namespace weir::soak {

// What grows with every 32nd act, as if an end had been forgotten.
enum class leak : std::uint8_t {
  none,
  addresses,
  used_addresses,
  device_bytes,
  descriptors,
  threads,
  host_bytes,
  time
};
inline constexpr leak all_leaks[] = {leak::addresses, leak::used_addresses, leak::device_bytes, leak::descriptors,
                                     leak::threads,   leak::host_bytes,     leak::time};
std::string_view name_of(leak) noexcept;
bool found_by(leak, measure) noexcept;  // whether this measure must see that leak; none sees leak::time

struct life_plan {
  double seconds = 10;
  std::uint64_t seed = 1;
  int actors = 3;
  leak planted = leak::none;
  std::string only;  // names of acts, with commas; empty: all
};

struct life_outcome {
  std::string failure;  // an exception, a wrong byte, a block that is live at rest
  std::vector<growth> grew;
  std::vector<slowdown> slowed;
  struct played {
    std::string_view act;
    std::uint64_t times = 0, refused = 0;
  };  // refused: out of memory
  std::vector<played> acts;
  std::size_t rests = 0;
  double seconds = 0;
  std::string machine;
  bool found(leak) const noexcept;
  bool clean() const noexcept;
};

class actor;

class life {
 public:
  explicit life(life_plan);
  ~life();
  // Calls `tick(share done, the last sample)` after each rest.
  life_outcome run(std::function<void(double, sample const&)> const& tick);

  life_plan const& plan() const noexcept { return plan_; }
  runtime& machine() noexcept { return *runtime_; }
  bookkeeper& driver() noexcept { return *driver_; }
  std::shared_ptr<books> const& held() const noexcept { return books_; }
  std::unique_ptr<runtime> another_runtime();  // of the same machine and the same books, in the same process
  bool simulated() const noexcept { return simulated_; }
  int devices() const noexcept { return devices_; }
  std::size_t limit() const noexcept { return limit_; }  // bytes that weir may reserve of a device
  std::mutex& ranks() noexcept { return ranks_; }  // one communicator at a time: NCCL wants one order of all of them
  // Held shared in a capture, and alone by acts that wait for a whole device: such a wait spoils every capture there.
  std::shared_mutex& captures() noexcept { return captures_; }
  // Blocks that one actor leaves and another frees.
  void* exchange(std::size_t i, void* block) noexcept { return left_[i % left_.size()].exchange(block); }

 private:
  friend class actor;
  struct lasting;      // weights, staging buffers, a memory of graphs: they live as long as the run
  bool rests(actor&);  // an actor waits here while the others rest. Returns: false: the run is over
  void failed(std::string what);
  std::string take_sample();
  void give_back_what_is_shared();
  life_outcome outcome() const;
  int quarter() const noexcept { return quarter_.load(std::memory_order_relaxed); }
  void watch();

  life_plan const plan_;
  std::shared_ptr<books> const books_ = std::make_shared<books>();
  bookkeeper* driver_ = nullptr;
  bool simulated_ = false;
  int devices_ = 0;
  std::size_t limit_ = 0;
  std::string description_;
  std::unique_ptr<runtime> runtime_;
  std::vector<std::unique_ptr<lasting>> lasting_;  // by device
  std::vector<std::unique_ptr<actor>> actors_;
  std::array<std::atomic<void*>, 32> left_{};
  std::mutex ranks_;
  std::shared_mutex captures_;

  std::atomic<bool> pause_{false}, over_{false};
  std::atomic<int> quarter_{0};
  std::vector<sample> samples_;
  std::mutex lock_;
  std::condition_variable changed_;
  int resting_ = 0, gone_ = 0;  // under lock_, as what follows
  std::uint64_t rest_ = 0;      // number of the rest
  std::string failure_;
  std::int64_t began_ns_ = 0;
};

std::string table(life_plan const&, life_outcome const&);
// `soak life …`, and `soak --role …` of its other processes. Return: the exit status.
int life_main(int argc, char** argv);
int role_main(int argc, char** argv);

}  // namespace weir::soak
