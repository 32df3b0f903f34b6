// A forked child destroys its copy of each public owner, and ends. Neither hangs: the child lacks the parent's threads.
// Threads: one, and those of the owners. A child that hangs is killed by its alarm.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <sstream>
#include <thread>

#include "tests/support/sanitized.h"
#include "weir/array.h"
#include "weir/collective.h"
#include "weir/copy.h"
#include "weir/device.h"
#include "weir/graph.h"
#include "weir/memory.h"
#include "weir/observe.h"
#include "weir/optimizer.h"
#include "weir/pipeline.h"
#include "weir/pool.h"
#include "weir/runtime.h"
#include "weir/share.h"
#include "weir/sim.h"
#include "weir/stream.h"
#include "weir/tensor.h"
#include "weir/timeline.h"

namespace weir {
namespace {

using namespace weir::literals;
using owner = std::shared_ptr<void>;

template <class T, class... A>
owner of(A&&... a) {
  return std::make_shared<T>(std::forward<A>(a)...);
}

std::vector<pool>& pools_of_rows() {
  static std::vector<pool> all;
  return all;
}
pool& some_pool(pool_options o = {}) {
  return pools_of_rows().emplace_back("of a row", o);
}

// Both ends are here: a process may open its own buffers.
struct shared_memory {
  int ends[2] = {-1, -1};
  bool made = ::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0;
  share_channel from{ends[0]}, to{ends[1]};
  share_pool parts;
  exportable_buffer whole{1000}, part = parts.allocate(1000);
  imported_buffer opened = (from.send(whole, default_stream(0)), to.receive());
};

struct threads_of_ranks {
  std::vector<communicator> all = communicator::create_all(std::vector<device>{0, 1});
  communicator& first() { return all[0]; }
};

// Rank 1 of two processes is a thread here.
struct ranks_of_processes {
  std::unique_ptr<communicator> mine, other;
  std::unique_ptr<runtime> of_other = std::make_unique<runtime>(simulated{.devices = 1, .memory = 64_MiB});
  ranks_of_processes() {
    std::string const id = communicator::unique_id();
    std::thread second([&] {
      runtime_guard const in(*of_other);
      other = std::make_unique<communicator>(communicator::create(id, 1, 2, device(0)));
    });
    mine = std::make_unique<communicator>(communicator::create(id, 0, 2, device(0)));
    second.join();
  }
  communicator& first() { return *mine; }
};

template <class Ranks>
struct step_of {  // half done
  Ranks ranks;
  std::unique_ptr<collective_group> group;
  std::unique_ptr<gradient_buckets> buckets;
  buffer x{1000};
  step_of() {
    communicator& mine = ranks.first();
    group = std::make_unique<collective_group>(mine);
    group->all_reduce({x.data(), 10, float32});
    buckets = std::make_unique<gradient_buckets>(mine);
    buckets->add("a", 100), buckets->add("b", 100);
    buckets->build();
    buckets->mark_ready(1, current_stream());
  }
};
using step_of_threads = step_of<threads_of_ranks>;
struct step_of_processes : step_of<ranks_of_processes> {
  explicit step_of_processes(bool alone) {  // alone: the last holder of its ranks
    if (alone)
      ranks.other.reset(), ranks.mine.reset();
  }
};

struct captured {
  stream s;
  graph_memory memory;
  buffer b{1000};
  graph step = graph::capture(s, [this] { fill(s, b.data(), std::byte{1}, 1000); }, {.memory = &memory});
  graph_memory_route route{memory, device(0), [](CUstream_st*) { return false; }};
};

struct of_the_program {
  simulated_stream raw;
  external_stream known{device(0), raw.handle()};
};

struct registered {
  std::vector<std::byte> bytes = std::vector<std::byte>(100'000);
  registered_host_memory locked{bytes};
};

struct recorded_event {
  event e;
  recorded_event() { e.record(current_stream()); }
};

struct range_of_timeline {
  range_of_timeline() { record_timeline(); }
  ~range_of_timeline() { range.reset(); }
  std::unique_ptr<profile_range> range = std::make_unique<profile_range>("row");
};

// Its threads wait for a slot.
struct full_loader {
  loader from{{.batch_bytes = 1000, .slots = 2}, [](std::uint64_t, std::span<std::byte> to) { return to.size(); }};
  std::optional<batch> held = from.next();
};

struct trained_parameter {
  buffer parameter{1000}, gradient{1000};
  loss_scale scale;
  adamw by{std::vector<update_item>{{{parameter.data(), 250, float32}, {gradient.data(), 250, float32}}},
           {.scale = &scale}};
  trained_parameter() { by.step(current_stream()); }
};

struct row {
  char const* name;
  std::function<owner()> make;
};
std::vector<row> const rows{
    {"buffer", [] { return of<buffer>(1000); }},
    {"pinned buffer", [] { return of<buffer>(pinned(1000)); }},
    {"pinned vector", [] { return of<std::vector<int, pinned_allocator<int>>>(100); }},
    {"registered_host_memory", [] { return of<registered>(); }},
    {"tensor", [] { return of<tensor>(ones({100})); }},
    {"array", [] { return of<array<float>>(100); }},
    {"stream", [] { return of<stream>(); }},
    {"external_stream, simulated_stream", [] { return of<of_the_program>(); }},
    {"event", [] { return of<recorded_event>(); }},
    {"graph, graph_memory, graph_memory_route", [] { return of<captured>(); }},
    {"pool", [] { return of<pool>("p"); }},
    {"registered pool", [] { return of<pool>("p", pool_options{.limit = 2_MiB, .registered = true}); }},
    {"pool_guard", [] { return of<pool_guard>(some_pool()); }},
    {"pool asleep",
     [] {
       auto p = std::make_shared<pool>("p");
       (void)p->allocate(1000);
       p->sleep();
       return p;
     }},
    {"spill", [] { return of<spill>(std::vector<pool*>{&some_pool()}); }},
    {"callback_registration",
     [] { return of<callback_registration>(on_out_of_memory([](memory_report const&) { return false; })); }},
    {"loader, batch", [] { return of<full_loader>(); }},
    {"optimizer, loss_scale", [] { return of<trained_parameter>(); }},
    {"memory_tracker",
     [] {
       static std::ostringstream out;
       return of<memory_tracker>(out);
     }},
    {"profile_range", [] { return of<range_of_timeline>(); }},
    {"device_guard", [] { return of<device_guard>(1); }},
    {"stream_guard", [] { return of<stream_guard>(default_stream()); }},
    {"runtime", [] { return of<runtime>(simulated{.devices = 1, .memory = 64_MiB}); }},
    {"runtime_guard", [] { return of<runtime_guard>(runtime::current()); }},
    {"route_guard", [] { return of<route_guard>(copy_route::automatic); }},
    {"link_sharing_guard", [] { return of<link_sharing_guard>(std::vector<device>{1}); }},
    {"share_channel, share_pool, exportable_buffer, imported_buffer", [] { return of<shared_memory>(); }},
    {"communicator", [] { return of<threads_of_ranks>(); }},
    {"communicator of processes", [] { return of<ranks_of_processes>(); }},
    {"collective_group, gradient_buckets", [] { return of<step_of_threads>(); }},
    {"collective_group, gradient_buckets of processes", [] { return of<step_of_processes>(false); }},
    {"gradient_buckets whose communicator has gone", [] { return of<step_of_processes>(true); }},
};

// Exit status of a child that runs `body`; 100 + signal if a signal ended it.
int child_that(std::function<void()> const& body) {
  pid_t const child = ::fork();
  if (child == 0) {
    ::alarm(10);
    body();
    ::_exit(7);
  }
  int status = -1;
  if (::waitpid(child, &status, 0) != child)
    return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
}

class fork_owners : public testing::Test {
 protected:
  runtime machine_{simulated{.devices = 2, .memory = 256_MiB}};
  runtime_guard in_{machine_};
  void TearDown() override { pools_of_rows().clear(); }
};

TEST_F(fork_owners, are_destroyed_in_a_child_without_a_wait) {
  for (row const& r : rows) {
    owner held = r.make();
    EXPECT_EQ(child_that([&] { held.reset(); }), 7) << r.name;
    EXPECT_EQ(child_that([&] { std::exit(7); }), 7) << r.name << ", by exit";
    held.reset();  // the parent's own works as before
  }
}

// A child asks what it may not use: it is told so at once, as threads that it lacks would be waited for.
TEST_F(fork_owners, of_ranks_refuse_their_calls_in_a_child) {
  buffer const x(1000);
  stream_ref const s = default_stream();
  device_span const all{x.data(), 10, float32};
  auto const refuses = [&](communicator& c, gradient_buckets& b) {
    auto const is_typed = [](auto f) {
      try {
        f();
        return false;
      } catch (not_supported const& e) {
        return e.operands().find("forked") != std::string_view::npos;
      }
    };
    c.abort();
    bool const told = !c.failure().empty() && c.rank() == 0 && c.size() == 2;
    return told && is_typed([&] { c.barrier(); }) && is_typed([&] { c.all_reduce(all); }) &&
           is_typed([&] { (void)c.split(0); }) && is_typed([&] { b.mark_ready(0, s); }) &&
           is_typed([&] { b.finish(s); });
  };
  step_of_processes processes(false);
  step_of_threads threads;
  EXPECT_EQ(child_that([&] { ::_exit(refuses(*processes.ranks.mine, *processes.buckets) ? 7 : 1); }), 7);
  EXPECT_EQ(child_that([&] { ::_exit(refuses(threads.ranks.all[0], *threads.buckets) ? 7 : 1); }), 7);
  EXPECT_EQ(processes.ranks.mine->failure(), "");
  EXPECT_EQ(threads.ranks.all[1].failure(), "");
}

// The child lacks the threads that fill and write. It is told so, also inside run_pipeline, which both go on with.
TEST_F(fork_owners, of_a_loop_refuse_their_calls_in_a_child) {
  auto const is_typed = [](auto f) {
    try {
      f();
      return false;
    } catch (not_supported const& e) {
      return e.operands().find("child") != std::string_view::npos;
    }
  };
  full_loader full;
  // A sanitizer's own allocator may be locked by another thread at the fork: then the child allocates nothing more.
  if (tests::sanitized)
    return;
  EXPECT_EQ(child_that([&] { ::_exit(is_typed([&] { full.from.next(); }) ? 7 : 1); }), 7);
  pid_t child = -1;
  auto const go = [&] {
    run_pipeline(
        {.batch_bytes = 1000}, [](std::uint64_t n, std::span<std::byte> to) { return n < 4 ? to.size() : 0; },
        [&](batch const& b) {
          if (b.number() == 1)
            child = ::fork();
          if (child == 0)
            ::alarm(10);
        },
        [](std::uint64_t, std::span<std::byte const>) {});
  };
  bool const refused = is_typed(go);
  if (child == 0)
    ::_exit(refused ? 7 : 1);
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_FALSE(refused);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
}

}  // namespace
}  // namespace weir
