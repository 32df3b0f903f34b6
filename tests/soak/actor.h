// One thread of a long life: the things that it holds, and its next act.
// Threads: one.
#pragma once
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
#include <vector>

#include "tests/soak/life.h"
#include "tests/soak/stamp.h"
#include "weir/collective.h"
#include "weir/copy.h"
#include "weir/graph.h"
#include "weir/pool.h"
#include "weir/share.h"

namespace weir::soak {

#define WEIR_CALLS(X)  \
  X(allocate)          \
  X(free)              \
  X(mark)              \
  X(launch)            \
  X(copy)              \
  X(stream)            \
  X(stream_end)        \
  X(borrow)            \
  X(register_stream)   \
  X(unregister_stream) \
  X(record)            \
  X(wait)              \
  X(thread)            \
  X(pin)               \
  X(unpin)             \
  X(register_range)    \
  X(unregister_range)  \
  X(capture)           \
  X(graph_launch)      \
  X(graph_update)      \
  X(graph_end)         \
  X(pool)              \
  X(pool_end)          \
  X(sleep)             \
  X(wake)              \
  X(spill)             \
  X(refusal)           \
  X(report)            \
  X(empty_cache)       \
  X(export_buffer)     \
  X(send)              \
  X(receive)           \
  X(return_import)     \
  X(export_end)        \
  X(communicator)      \
  X(collective)        \
  X(group)             \
  X(buckets)           \
  X(step)              \
  X(communicator_end)  \
  X(process)           \
  X(fork)              \
  X(runtime)           \
  X(runtime_end)
enum class call : std::uint8_t {
#define WEIR_CALL(name) name,
  WEIR_CALLS(WEIR_CALL)
#undef WEIR_CALL
      count
};
inline constexpr std::size_t calls = static_cast<std::size_t>(call::count);
std::string_view name_of(call) noexcept;

struct wrong : std::runtime_error {  // weir did not do what it promises
  using std::runtime_error::runtime_error;
};

struct life::lasting {  // of one device
  stream on;
  buffer weights, staging;
  graph_memory graphs;
  explicit lasting(int device);
};

class actor {
 public:
  actor(life&, int number);
  void run();

  // What an act is: its name, how often it is drawn, and what it does.
  struct act {
    std::string_view name;
    int weight;
    void (actor::*play)();
    bool (*possible)(life const&) = nullptr;  // null: everywhere
  };
  static std::span<act const> acts() noexcept;

 private:
  friend class life;
  struct block {
    void* at = nullptr;
    std::size_t bytes = 0;
  };

  // Acts, by the file that has them.
  void blocks();  // acts_memory.cpp
  void marks_of_own();
  void marks_of_borrowed();
  void pinned_blocks();
  void pageable_copies();
  void registered_ranges();
  void refusals();
  void reports();
  void caches();
  void own_streams();  // acts_streams.cpp
  void borrowed_streams();
  void registered_streams();
  void events();
  void threads();
  void unwinding();
  void graphs();  // acts_graphs.cpp
  void graphs_with_memory();
  void graphs_of_one_memory();
  void graph_updates();
  void pools();  // acts_pools.cpp
  void sleep();
  void frees_asleep();
  void spills();
  void registered_pools();
  void ranks();  // acts_ranks.cpp
  void ranks_with_pools();
  void ranks_that_throw();
  void ranks_of_processes();
  void shares();  // acts_processes.cpp
  void shares_of_pool();
  void other_processes();
  void killed_processes();
  void forks();
  void forks_that_read();
  void forks_with_ranks();
  void exits_at_work();
  void runtimes();

  void play(act const&);
  void end_all();  // every thing that this actor holds
  void plant();
  template <class F>
  decltype(auto) timed(call c, F&& f) {
    struct clock {
      actor& of;
      call of_call;
      std::chrono::nanoseconds from = time_of_thread();
      ~clock() { of.took(of_call, time_of_thread() - from); }
    } const now{*this, c};
    return f();
  }
  void took(call, std::chrono::nanoseconds) noexcept;

  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % n); }
  bool chance(std::size_t of) { return below(of) == 0; }
  int some_device() { return static_cast<int>(below(static_cast<std::size_t>(in_.devices()))); }
  std::size_t some_bytes();
  unsigned delay() { return static_cast<unsigned>(below(in_.simulated() ? 2'000 : 50'000)); }  // cycles
  stream& some_stream(int device);
  void put(block, std::size_t i);  // frees what was there
  void work(stream_ref, void*, std::size_t bytes);
  void check_bytes(stream_ref, void const*, std::size_t bytes, std::uint64_t id, char const* where);
  // Runs body(communicator) as every rank of the devices: as the first here, as the others on threads.
  void as_ranks(std::function<void(communicator&)> const& body);
  void fork_that(std::function<void()> const& does);

  life& in_;
  int const number_;
  std::mt19937_64 random_;
  std::vector<block> blocks_;
  std::vector<std::optional<stream>> streams_;  // of each device, in turn
  std::vector<std::optional<event>> events_;
  std::vector<std::optional<buffer>> pinned_;
  std::vector<std::optional<exportable_buffer>> exported_;
  std::vector<std::uint64_t> played_, refused_;
  std::array<call_times, calls> first_{}, last_{};
  std::atomic<std::string_view const*> doing_{nullptr};
  std::atomic<std::int64_t> since_ns_{0};
  std::uint64_t next_id_ = 1;
  std::uint64_t all_played_ = 0;
};

}  // namespace weir::soak
