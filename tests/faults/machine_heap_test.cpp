// Calls of a simulated machine whose host has no memory: each is refused and changes nothing, or is made whole.
// Threads: one, beside the machine's own.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/call_site.h"
#include "runtime/core/parts.h"
#include "runtime/driver/race_control.h"
#include "runtime/memory/device/device_memory.h"
#include "runtime/observe/external_memory.h"
#include "runtime/observe/history.h"
#include "runtime/observe/span_recorder.h"
#include "simulator/faults/fault_injector.h"
#include "simulator/machine/machine.h"
#include "streams/pinned/pinned_memory.h"
#include "streams/stream/timed_work.h"
#include "tests/faults/heap.h"
#include "weir/collective.h"
#include "weir/launch.h"
#include "weir/memory.h"
#include "weir/observe.h"
#include "weir/stream.h"
#include "weir/timeline.h"

namespace weir::faults {
namespace {

using namespace driver;
using scheduling = simulated::scheduling;
constexpr auto legacy = stream_handle::legacy;

// Two blocking streams have work behind closed gates, so that the legacy stream waits for two others.
class rig {
 public:
  explicit rig(scheduling how) : made_(sim::make({.devices = 1, .schedule = how, .seed = 1}, {})) {
    EXPECT_TRUE(machine().open(0).ok());
    plain = stream(stream_kind::independent);
    bytes = machine().create_segment(0, 4096).value;
    event = machine().create_event(0, event_kind::order_only).value;
    graph = captured();
    gates.reserve(8);
    for (int i = 0; i < 2; ++i) {
      stream_handle const s = stream(stream_kind::blocking);
      gates.push_back(machine().hold(0, s).value);
      EXPECT_TRUE(machine().fill(0, s, at(1024 + 64 * i), 0, 1, 1).ok());  // nothing orders it after the calls' bytes
      held.push_back(s);
    }
    EXPECT_TRUE(machine().record(0, held[0], event).ok());
    inside = stream(stream_kind::independent);
    EXPECT_TRUE(machine().begin_capture(0, inside, capture_mode::relaxed).ok());
  }
  driver::driver& machine() { return *made_.machine; }
  stream_handle stream(stream_kind k) { return machine().create_stream(0, k, 0).value; }
  void* at(int offset = 0) const {
    return reinterpret_cast<void*>(bytes + static_cast<address>(offset));  // NOLINT(performance-no-int-to-ptr)
  }
  work counted() {
    return {[](void* p) { static_cast<rig*>(p)->ran.fetch_add(1); },
            [](void* p) { static_cast<rig*>(p)->dropped.fetch_add(1); }, this, nullptr};
  }
  // Returns: whether all streams have come to their end.
  bool ends() {
    EXPECT_TRUE(machine().end_capture(0, inside).ok());
    for (gate_handle const g : gates)
      EXPECT_TRUE(machine().open_gate(g).ok());
    auto const end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    do {
      if (!machine().moves_by_itself())
        (void)made_.control->run();
      if (made_.control->stuck().empty())
        return true;
      ::usleep(100);
    } while (std::chrono::steady_clock::now() < end);
    return false;
  }

  base::atomic<int> ran{0}, dropped{0};
  stream_handle plain{}, inside{};
  std::vector<stream_handle> held;
  std::vector<gate_handle> gates;
  event_handle event{};
  executable_handle graph{};
  address bytes = 0;

 private:
  // Two lanes that have joined, with a value that the graph keeps.
  executable_handle captured() {
    auto const first = stream(stream_kind::blocking), second = stream(stream_kind::blocking);
    auto& m = machine();
    EXPECT_TRUE(m.begin_capture(0, first, capture_mode::relaxed).ok());
    EXPECT_TRUE(m.record(0, first, event).ok() && m.wait(0, second, event).ok());
    for (stream_handle const s : {first, second, first})
      EXPECT_TRUE(m.enqueue(0, s, {}, counted()).ok());
    EXPECT_TRUE(m.keep_with_graph(
                     0, first, [](void*) {}, this)
                    .ok());
    EXPECT_TRUE(m.record(0, second, event).ok() && m.wait(0, first, event).ok());
    auto const kept = m.end_capture(0, first);
    auto const made = m.instantiate(0, kept.value);
    EXPECT_TRUE(made.ok() && m.destroy_graph(kept.value).ok());
    return made.value;
  }
  sim::made made_;
};

struct one_call {
  char const* name;
  std::function<status(rig&)> make;
  int runs = 0;        // counted work, when all streams have ended
  int drops = 0;       // by a refused call
  bool waits = false;  // behind the gates
  std::function<void(rig&)> before = [](rig&) {};
};

std::vector<one_call> const all_calls{
    {"enqueue", [](rig& r) { return r.machine().enqueue(0, r.plain, {}, r.counted()); }, 1, 1},
    {"enqueue with bytes",
     [](rig& r) {
       touch const t{r.bytes, 8, true};
       return r.machine().enqueue(0, r.plain, {&t, 1}, r.counted());
     },
     1, 1},
    {"enqueue on the legacy stream", [](rig& r) { return r.machine().enqueue(0, legacy, {}, r.counted()); }, 1, 1,
     true},
    {"enqueue in a capture", [](rig& r) { return r.machine().enqueue(0, r.inside, {}, r.counted()); }, 0, 1},
    {"host_function", [](rig& r) { return r.machine().host_function(0, r.plain, r.counted()); }, 1, 1},
    {"fill on the legacy stream", [](rig& r) { return r.machine().fill(0, legacy, r.at(), 1, 1, 8); }},
    {"copy", [](rig& r) { return r.machine().copy(0, r.plain, r.at(), r.at(64), 8); }},
    {"record on the legacy stream", [](rig& r) { return r.machine().record(0, legacy, r.event); }},
    {"wait", [](rig& r) { return r.machine().wait(0, r.plain, r.event); }},
    {"hold",
     [](rig& r) {
       auto const made = r.machine().hold(0, r.plain);
       if (made.ok())
         r.gates.push_back(made.value);
       return made.is;
     }},
    {"launch_graph on the legacy stream", [](rig& r) { return r.machine().launch_graph(0, legacy, r.graph); }, 3, 0,
     true},
    {"launch_graph after another", [](rig& r) { return r.machine().launch_graph(0, r.plain, r.graph); }, 6, 0, true,
     [](rig& r) { EXPECT_TRUE(r.machine().launch_graph(0, r.held[0], r.graph).ok()); }},
    {"keep_with_graph", [](rig& r) { return r.machine().keep_with_graph(0, r.inside, r.counted().drop, &r); }, 0, 1},
    {"create_stream", [](rig& r) { return r.machine().create_stream(0, stream_kind::blocking, 0).is; }},
    {"destroy_stream", [](rig& r) { return r.machine().destroy_stream(0, r.plain); }},
    {"create_event", [](rig& r) { return r.machine().create_event(0, event_kind::timing).is; }},
    {"destroy_event", [](rig& r) { return r.machine().destroy_event(0, r.event); }},
    {"destroy_executable", [](rig& r) { return r.machine().destroy_executable(r.graph); }},
};

class machine_without_memory : public ::testing::TestWithParam<scheduling> {};

// A part of a call that stayed would keep its stream, and all that wait for it, for ever.
TEST_P(machine_without_memory, makes_a_call_whole_or_not_at_all) {
  for (one_call const& c : all_calls) {
    std::uint64_t refused = 1;
    for (std::uint64_t k = 0; k <= 1 || refused; ++k) {  // 0: what the process and the thread keep
      SCOPED_TRACE(std::string(c.name) + ", allocation " + std::to_string(k));
      rig r(GetParam());
      c.before(r);
      heap::fail(k, 0);
      status is = c.make(r);
      refused = heap::stop();
      EXPECT_TRUE(is.ok() || refused);
      if (!is.ok()) {
        EXPECT_TRUE(is.what == code::out_of_memory || is.what == code::failed) << name_of(is.what);
        EXPECT_EQ(r.dropped.load(), c.drops);
        EXPECT_EQ(r.ran.load(), 0);
        is = c.make(r);
      }
      EXPECT_TRUE(is.ok());
      if (c.waits) {
        EXPECT_EQ(r.ran.load(), 0) << "its order is lost";
      }
      ASSERT_TRUE(r.ends());
      EXPECT_EQ(r.ran.load(), c.runs);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(of, machine_without_memory,
                         ::testing::Values(scheduling::threads, scheduling::stepped, scheduling::seeded),
                         [](auto const& info) -> std::string {
                           return info.param == scheduling::threads   ? "threads"
                                  : info.param == scheduling::stepped ? "stepped"
                                                                      : "seeded";
                         });

// A worker can refuse nothing: what it needs is made by the call that enqueues. The first work takes its memory.
TEST(a_machines_worker, needs_no_memory) {
  auto const made = sim::make({.devices = 1}, {});
  driver::driver& m = *made.machine;
  ASSERT_TRUE(m.open(0).ok());
  stream_handle const s = m.create_stream(0, stream_kind::independent, 0).value;
  address const at = m.create_segment(0, 4096).value;
  base::atomic<int> ran{0};
  work const takes_memory{[](void*) { heap::fail(1, heap::without_end); }, [](void*) {}, nullptr, nullptr};
  work const counts{[](void* n) { static_cast<base::atomic<int>*>(n)->fetch_add(1); }, [](void*) {}, &ran, nullptr};
  work const gives_memory{[](void*) { heap::stop(); }, [](void*) {}, nullptr, nullptr};
  std::vector<touch> const many(100, touch{at, 8, true});
  EXPECT_TRUE(m.begin_capture(0, s, capture_mode::relaxed).ok());
  EXPECT_TRUE(m.enqueue(0, s, many, counts).ok());
  auto const graph = m.instantiate(0, m.end_capture(0, s).value);
  ASSERT_TRUE(graph.ok());
  EXPECT_TRUE(m.enqueue(0, s, {}, takes_memory).ok());
  EXPECT_TRUE(m.enqueue(0, s, many, counts).ok());
  EXPECT_TRUE(m.fill(0, s, reinterpret_cast<void*>(at), 1, 1, 8).ok());  // NOLINT(performance-no-int-to-ptr)
  EXPECT_TRUE(m.launch_graph(0, s, graph.value).ok());
  EXPECT_TRUE(m.enqueue(0, s, {}, gives_memory).ok());
  EXPECT_TRUE(m.synchronize_stream(0, s).ok());
  EXPECT_EQ(ran.load(), 2);
}

// A wrong use is told in words, for which there is no memory: the device is lost all the same.
TEST(a_machines_worker, loses_a_device_without_memory_for_words) {
  auto const made = sim::make({.devices = 1}, {});
  driver::driver& m = *made.machine;
  ASSERT_TRUE(m.open(0).ok());
  stream_handle const s = m.create_stream(0, stream_kind::independent, 0).value;
  work const takes_memory{[](void*) { heap::fail(1, heap::without_end); }, [](void*) {}, nullptr, nullptr};
  work const nothing{[](void*) {}, [](void*) {}, nullptr, nullptr};
  touch const wrong{64, 8, true};
  EXPECT_TRUE(m.enqueue(0, s, {}, takes_memory).ok());
  EXPECT_TRUE(m.enqueue(0, s, {&wrong, 1}, nothing).ok());
  EXPECT_EQ(m.synchronize_stream(0, s).what, code::lost);
}

// What a process keeps is made by its first call. Some of these promise not to throw, others may.
TEST(a_process_first_call, ends_no_process_without_memory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // each needs a process without earlier calls
  static int foreign = 0;
  struct first_call {
    char const* name;
    void (*make)();
  };
  first_call const calls[] = {
      {"find_block", [] { EXPECT_FALSE(find_block(&foreign)); }},
      {"a device block's owner", [] { EXPECT_FALSE(memory::device_memory::owner_in_process(&foreign)); }},
      {"a pinned block's owner", [] { EXPECT_FALSE(streams::pinned_memory::owner(&foreign)); }},
      {"memory beside", [] { EXPECT_FALSE(observe::external_memory::find_in_process(&foreign)); }},
      {"is_alive", [] { EXPECT_FALSE(memory::device_memory::is_alive(nullptr)); }},
      {"the findings of all checkers", [] { check::print_all_findings(); }},
      {"record_memory_history", [] { record_memory_history(); }},
      {"stop_memory_history", [] { stop_memory_history(); }},
      {"stop_timeline", [] { stop_timeline(); }},
      {"the recorder of spans", [] { (void)observe::span_recorder::process().turn(); }},
      {"open",
       [] {
         heap::pause();
         auto const made = sim::make({.devices = 1, .schedule = scheduling::stepped}, {});
         heap::go_on();
         (void)made.machine->open(0);
         heap::pause();
       }},
  };
  for (first_call const& c : calls) {
    EXPECT_EXIT(
        {
          heap::fail(1, heap::without_end);
          try {
            c.make();
          } catch (std::bad_alloc const&) {}  // it says so: it made nothing
          heap::stop();
          std::_Exit(::testing::Test::HasFailure() ? 1 : 7);
        },
        ::testing::ExitedWithCode(7), "")
        << c.name;
  }
}

// A thread's first calls make what the thread keeps. Some promise not to throw: without memory they ended the process.
TEST(a_threads_first_call, ends_no_process_without_memory) {
  if (std::getenv("WEIR_CHECK_RACES"))
    GTEST_SKIP() << "the checker does not go on without memory";
  runtime own(simulated{.devices = 1, .memory = 64_MiB});
  runtime_guard const in(own);
  stream_ref const known = current_stream();
  struct first_call {
    char const* name;
    std::function<void()> make;
  };
  buffer ends(1000), host_ends = pinned(1000);
  std::optional<stream> leased(std::in_place);
  std::optional<event> recorded(known.record_event());
  auto ranks = communicator::create_all(std::vector{device(0)});
  auto& machine = own.get().machine();
  first_call const calls[] = {
      {"a driver call", [&] { (void)machine.query_stream(0, stream_handle::per_thread); }},
      {"inside_work", [] { EXPECT_FALSE(inside_work::here()); }},
      {"moving_a_pool", [] { base::moving_a_pool const now; }},
      {"find_block", [&] { EXPECT_TRUE(find_block(ends.data())); }},
      {"the end of a buffer", [&] { ends.reset(); }},
      {"the end of a pinned buffer", [&] { host_ends.reset(); }},
      {"the end of a stream", [&] { leased.reset(); }},
      {"the end of an event", [&] { recorded.reset(); }},
      {"recheck", [&] { machine.recheck(); }},
      {"abort", [&] { ranks[0].abort(); }},
  };
  auto const on_a_fresh_thread = [](std::function<void()> const& call) {
    std::thread([&] {
      heap::fail(1, heap::without_end);
      call();
      heap::stop();
    }).join();
  };
  for (first_call const& c : calls) {
    SCOPED_TRACE(c.name);
    on_a_fresh_thread(c.make);
  }
  buffer noted(1000);
  auto const its = reinterpret_cast<std::uintptr_t>(noted.data());
  record_memory_history();
  host_ends = pinned(1000);  // what the process keeps of a history
  on_a_fresh_thread([&] { noted.reset(); });
  on_a_fresh_thread([] { observe::history::process().take_back(0); });
  for (memory_event const& e : memory_history())
    EXPECT_NE(e.address, its) << "a history that misses an event ends";
  stop_memory_history();
  record_timeline();
  launch(
      known, {}, [](CUstream_st*) {}, [] {});
  on_a_fresh_thread([] { streams::end_timed_launch(); });
  stop_timeline();
}

}  // namespace
}  // namespace weir::faults
