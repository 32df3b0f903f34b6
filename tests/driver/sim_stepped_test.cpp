// The stepped simulated machine, and the controls of every simulated machine.
// Threads: one.
#include <gtest/gtest.h>

#include <functional>

#include "simulator/faults/fault_injector.h"
#include "simulator/machine/machine.h"

namespace weir::driver::sim {
namespace {

using scheduling = weir::simulated::scheduling;

class sim_stepped : public ::testing::Test {
 protected:
  void SetUp() override { remake({.devices = 2, .memory = 1_MiB, .schedule = scheduling::stepped}); }
  void remake(weir::simulated const& like) {
    auto m = make(like);
    machine = std::move(m.machine);
    control = m.control;
    for (int d = 0; d < like.devices; ++d)
      ASSERT_TRUE(machine->open(d).ok());
  }
  stream_handle stream(int device = 0) { return machine->create_stream(device, stream_kind::independent, 0).value; }
  event_handle event(event_kind k = event_kind::order_only) { return machine->create_event(0, k).value; }
  void log(stream_handle s, int what) {
    auto* const body = new std::function<void()>([this, what] { seen.push_back(what); });
    ASSERT_TRUE(machine
                    ->enqueue(0, s, {},
                              {[](void* f) { (*static_cast<std::function<void()>*>(f))(); },
                               [](void* f) { delete static_cast<std::function<void()>*>(f); }, body})
                    .ok());
  }
  std::unique_ptr<driver> machine;
  controls* control = nullptr;
  std::vector<int> seen;
};

TEST_F(sim_stepped, nothing_moves_but_by_a_step_one_operation_each) {
  auto const a = stream(), b = stream();
  auto const e = event();
  log(a, 1);
  machine->record(0, a, e);
  machine->wait(0, b, e);
  log(b, 2);
  for (int i = 0; i < 100; ++i)
    EXPECT_EQ(machine->query_event(e).what, code::not_ready);
  EXPECT_TRUE(seen.empty());
  EXPECT_FALSE(control->step(0, b)) << "its wait is not satisfied";
  EXPECT_TRUE(control->step(0, a));
  EXPECT_EQ(seen, std::vector{1});
  EXPECT_EQ(machine->query_event(e).what, code::not_ready);
  EXPECT_FALSE(control->step(0, b));
  EXPECT_TRUE(control->step(0, a));
  EXPECT_TRUE(machine->query_event(e).ok());
  EXPECT_FALSE(control->step(0, a)) << "it has nothing left";
  EXPECT_TRUE(control->step(0, b));
  EXPECT_TRUE(control->step(0, b));
  EXPECT_EQ(seen, (std::vector{1, 2}));
}

TEST_F(sim_stepped, a_host_that_waits_moves_only_what_it_needs) {
  auto const a = stream(), b = stream(), c = stream();
  auto const e = event();
  log(c, 3);
  log(a, 1);
  machine->record(0, a, e);
  log(a, 4);
  machine->wait(0, b, e);
  log(b, 2);
  ASSERT_TRUE(machine->synchronize_stream(0, b).ok());
  EXPECT_EQ(seen, (std::vector{1, 2}));
  EXPECT_TRUE(control->run());
  EXPECT_EQ(seen.size(), 4u);
}

TEST_F(sim_stepped, run_says_what_holds_the_rest) {
  auto const a = stream();
  auto const gate = machine->hold(0, a);
  log(a, 1);
  EXPECT_FALSE(control->run());
  EXPECT_EQ(control->stuck(), "stream 1 of device 0 is held by gate 1");
  ASSERT_TRUE(machine->open_gate(gate.value).ok());
  EXPECT_EQ(machine->open_gate(gate.value).what, code::invalid);
  EXPECT_TRUE(seen.empty());
  EXPECT_TRUE(control->run());
  EXPECT_EQ(control->stuck(), "");
}

TEST_F(sim_stepped, a_fifth_closed_gate_of_a_device_is_not_permitted) {
  auto const a = stream();
  std::vector<gate_handle> gates;
  for (int i = 0; i < 4; ++i)
    gates.push_back(machine->hold(0, a).value);
  EXPECT_EQ(machine->hold(0, a).is.what, code::not_permitted);
  EXPECT_TRUE(machine->hold(1, stream(1)).ok());
  ASSERT_TRUE(machine->open_gate(gates[2]).ok());
  EXPECT_TRUE(machine->hold(0, a).ok());
}

TEST_F(sim_stepped, a_timed_wait_behind_a_lost_device_answers_lost) {
  auto const a = stream(), b = stream(1);
  auto const e = event();
  auto const start = machine->create_event(1, event_kind::timing).value,
             end = machine->create_event(1, event_kind::timing).value;
  log(a, 1);
  machine->record(0, a, e);
  machine->record(1, b, start);
  machine->wait(1, b, e);
  machine->record(1, b, end);
  EXPECT_EQ(machine->elapsed_ms(start, end).is.what, code::not_ready);
  control->lose_device(0);
  EXPECT_EQ(machine->elapsed_ms(start, end).is.what, code::not_ready) << "the first of them will come";
  while (control->step(1, b)) {}
  EXPECT_EQ(machine->elapsed_ms(start, end).is.what, code::lost);
  EXPECT_EQ(machine->query_stream(1, stream(1)).what, code::lost) << "a call said that the device is lost";
}

TEST_F(sim_stepped, timing_events_count_the_machines_own_time) {
  auto const a = stream();
  auto const start = event(event_kind::timing), end = event(event_kind::timing), untimed = event();
  machine->record(0, a, start);
  log(a, 1);
  log(a, 2);
  machine->record(0, a, end);
  machine->record(0, a, untimed);
  EXPECT_EQ(machine->elapsed_ms(start, end).is.what, code::not_ready);
  ASSERT_TRUE(machine->synchronize_stream(0, a).ok());
  auto const ms = machine->elapsed_ms(start, end);
  ASSERT_TRUE(ms.ok());
  EXPECT_FLOAT_EQ(ms.value, 0.003f);
  EXPECT_EQ(machine->elapsed_ms(start, untimed).is.what, code::invalid);
}

TEST_F(sim_stepped, memory_is_bounded_and_others_may_take_some) {
  auto const half = machine->create(0, 512_KiB);
  ASSERT_TRUE(half.ok());
  EXPECT_EQ(machine->create(0, 576_KiB).is.what, code::out_of_memory);
  control->consume_memory(0, 448_KiB);
  EXPECT_EQ(machine->memory(0).value.free, 64_KiB);
  EXPECT_EQ(machine->create(0, 128_KiB).is.what, code::out_of_memory);
  EXPECT_EQ(machine->create_segment(0, 65_KiB).is.what, code::out_of_memory);
  EXPECT_TRUE(machine->create(0, 64_KiB).ok());
  EXPECT_TRUE(machine->create(1, 1_MiB).ok()) << "the other device has its own";
  ASSERT_TRUE(machine->release(half.value).ok());
  EXPECT_EQ(machine->memory(0).value.free, 512_KiB);
  EXPECT_EQ(machine->create(0, 100).is.what, code::invalid);
  EXPECT_EQ(machine->create(0, 0).is.what, code::invalid);
  EXPECT_EQ(machine->create(2, 64_KiB).is.what, code::invalid);
}

TEST_F(sim_stepped, links_are_as_requested_and_can_be_cut) {
  remake({.devices = 4, .memory = 1_MiB, .schedule = scheduling::stepped, .peers = weir::simulated::links::pairs});
  EXPECT_TRUE(machine->peer(0, 1).value.access);
  EXPECT_TRUE(machine->peer(3, 2).value.access);
  EXPECT_FALSE(machine->peer(1, 2).value.access);
  address const at = machine->reserve(64_KiB, 64_KiB).value;
  auto const h = machine->create(1, 64_KiB).value;
  ASSERT_TRUE(machine->map(at, 64_KiB, h).ok());
  EXPECT_EQ(machine->grant(at, 64_KiB, 2).what, code::not_supported);
  ASSERT_TRUE(machine->grant(at, 64_KiB, 0).ok());
  auto const a = stream();
  touch const t{at, 8, false};
  ASSERT_TRUE(machine->enqueue(0, a, {&t, 1}, {}).ok());
  ASSERT_TRUE(machine->synchronize_stream(0, a).ok());
  control->disconnect(0, 1);
  EXPECT_FALSE(machine->peer(0, 1).value.access);
  EXPECT_TRUE(machine->peer(1, 0).value.access) << "one direction only";
  ASSERT_TRUE(machine->enqueue(0, a, {&t, 1}, {}).ok());
  EXPECT_EQ(machine->synchronize_stream(0, a).what, code::lost);
}

TEST_F(sim_stepped, misuse_of_addresses_changes_nothing) {
  address const at = machine->reserve(256_KiB, 64_KiB).value;
  auto const h = machine->create(0, 128_KiB).value;
  ASSERT_TRUE(machine->map(at, 128_KiB, h).ok());
  auto const before = control->census();
  std::vector<status> const refused{
      machine->map(at, 128_KiB, h),                   // already mapped
      machine->map(at + 64_KiB, 128_KiB, h),          // its second half is already mapped
      machine->map(at + 128_KiB, 64_KiB, h),          // part of a handle
      machine->map(at + 192_KiB, 128_KiB, h),         // past the reservation
      machine->map(at + 128_KiB + 4096, 128_KiB, h),  // not aligned
      machine->map(at + 128_KiB, 128_KiB, memory_handle{77}),
      machine->unmap(at, 64_KiB),
      machine->unmap(at + 64_KiB, 64_KiB),
      machine->unmap(at + 128_KiB, 128_KiB),
      machine->unreserve(at, 256_KiB),  // still mapped
      machine->unreserve(at, 128_KiB),
      machine->grant(at, 64_KiB, 0),   // part of a mapping
      machine->grant(at, 256_KiB, 0),  // partly unmapped
      machine->release(memory_handle{77}),
      machine->release_segment(0, at),
      machine->pin(reinterpret_cast<void*>(at), 4096),  // device memory
      machine->pin(nullptr, 4096),
      machine->unpin(reinterpret_cast<void*>(at)),
      machine->reserve(100, 64_KiB).is,
      machine->reserve(64_KiB, 3).is,
      machine->enqueue(0, stream_handle{99}, {}, {}),
      machine->query_event(event_handle{99}),
      machine->synchronize_device(2),
      machine->destroy_stream(0, stream_handle::none),
  };
  for (std::size_t i = 0; i < refused.size(); ++i)
    EXPECT_EQ(refused[i].what, code::invalid) << "refusal " << i;
  EXPECT_EQ(control->census(), before);
  ASSERT_TRUE(machine->grant(at, 128_KiB, 0).ok());
  auto const s = stream();
  EXPECT_EQ(machine->fill(0, s, reinterpret_cast<void*>(at), 1, 3, 8).what, code::invalid);
  EXPECT_EQ(machine->fill(0, s, reinterpret_cast<void*>(at + 1), 1, 2, 8).what, code::invalid);
  EXPECT_EQ(machine->fill(0, s, reinterpret_cast<void*>(at), 1, 4, 32_KiB + 1).what, code::invalid);
  EXPECT_TRUE(machine->fill(0, s, reinterpret_cast<void*>(at), 1, 4, 32_KiB).ok());
}

TEST_F(sim_stepped, a_device_that_was_not_opened_serves_nothing) {
  auto m = make({.devices = 1, .memory = 1_MiB, .schedule = scheduling::stepped});
  EXPECT_EQ(m.machine->create_stream(0, stream_kind::independent, 0).is.what, code::invalid);
  EXPECT_EQ(m.machine->create(0, 64_KiB).is.what, code::invalid);
  EXPECT_TRUE(m.machine->info(0).ok());
}

TEST_F(sim_stepped, the_census_names_what_is_alive_at_the_end) {
  EXPECT_TRUE(control->census().empty());
  address const at = machine->reserve(64_KiB, 64_KiB).value;
  auto const h = machine->create(1, 64_KiB).value;
  machine->map(at, 64_KiB, h);
  auto const a = stream();
  event();
  machine->hold(0, a);
  int lines = 0;
  control->at_end([&](std::vector<std::string> const& left) { lines = static_cast<int>(left.size()); });
  std::vector<std::string> const want{"stream 1 of device 0, with 1 operations that did not run",
                                      "event " + std::to_string(1) + " of device 0",
                                      "closed gate 1 of device 0",
                                      "reservation 1 of 65536 bytes",
                                      "mapping of 65536 bytes of device 1",
                                      "memory handle 1 of 65536 bytes of device 1"};
  EXPECT_EQ(control->census(), want);
  machine.reset();
  EXPECT_EQ(lines, 6);
}

TEST_F(sim_stepped, the_kth_call_of_a_name_is_refused) {
  control->fail_call("create", 3, code::out_of_memory);
  EXPECT_TRUE(machine->create(0, 64_KiB).ok());
  EXPECT_TRUE(machine->create(0, 64_KiB).ok());
  auto const before = control->census();
  EXPECT_EQ(machine->create(0, 64_KiB).is.what, code::out_of_memory);
  EXPECT_EQ(control->census(), before);
  EXPECT_TRUE(machine->create(0, 64_KiB).ok());
  control->fail_call("any", 2, code::failed);
  EXPECT_TRUE(machine->memory(0).ok());
  EXPECT_EQ(machine->info(1).is.what, code::failed);
  EXPECT_TRUE(machine->info(1).ok());
}

TEST_F(sim_stepped, refused_work_is_dropped) {
  auto const a = stream();
  int drops = 0;
  work const w{[](void*) { FAIL(); }, [](void* n) { ++*static_cast<int*>(n); }, &drops};
  control->fail_call("enqueue", 1, code::failed);
  EXPECT_EQ(machine->enqueue(0, a, {}, w).what, code::failed);
  control->fail_call("host_function", 1, code::failed);
  EXPECT_EQ(machine->host_function(0, a, w).what, code::failed);
  EXPECT_EQ(machine->enqueue(7, a, {}, w).what, code::invalid);
  EXPECT_EQ(machine->host_function(0, stream_handle::none, w).what, code::invalid);
  EXPECT_EQ(drops, 4);
}

TEST_F(sim_stepped, a_call_refused_as_lost_loses_its_device_for_good) {
  auto const a = stream(0), b = stream(1);
  control->fail_call("record", 1, code::lost);
  EXPECT_EQ(machine->record(0, a, event()).what, code::lost);
  EXPECT_EQ(machine->query_stream(0, a).what, code::lost);
  EXPECT_EQ(machine->open(0).what, code::lost);
  EXPECT_TRUE(machine->query_stream(1, b).ok());
}

// One call of each name.
std::vector<std::pair<std::string_view, std::function<status(driver&)>>> every_call() {
  constexpr stream_handle s = stream_handle::none;
  constexpr event_handle e = event_handle::none;
  return {{"info", [](driver& d) { return d.info(0).is; }},
          {"open", [](driver& d) { return d.open(0); }},
          {"memory", [](driver& d) { return d.memory(0).is; }},
          {"make_current", [](driver& d) { return d.make_current(0); }},
          {"current_device", [](driver& d) { return d.current_device().is; }},
          {"synchronize_device", [](driver& d) { return d.synchronize_device(0); }},
          {"peer", [](driver& d) { return d.peer(0, 1).is; }},
          {"reserve", [](driver& d) { return d.reserve(0, 0).is; }},
          {"unreserve", [](driver& d) { return d.unreserve(0, 0); }},
          {"create", [](driver& d) { return d.create(0, 0).is; }},
          {"release", [](driver& d) { return d.release(memory_handle::none); }},
          {"map", [](driver& d) { return d.map(0, 0, memory_handle::none); }},
          {"unmap", [](driver& d) { return d.unmap(0, 0); }},
          {"grant", [](driver& d) { return d.grant(0, 0, 0); }},
          {"create_shared", [](driver& d) { return d.create_shared(0, 0).is; }},
          {"export_handle", [](driver& d) { return d.export_handle(memory_handle::none).is; }},
          {"import_handle", [](driver& d) { return d.import_handle(0, 0, -1).is; }},
          {"create_segment", [](driver& d) { return d.create_segment(0, 0).is; }},
          {"release_segment", [](driver& d) { return d.release_segment(0, 0); }},
          {"pin", [](driver& d) { return d.pin(nullptr, 0); }},
          {"unpin", [](driver& d) { return d.unpin(nullptr); }},
          {"find", [](driver& d) { return d.find(nullptr).is; }},
          {"create_stream", [](driver& d) { return d.create_stream(9, stream_kind::independent, 0).is; }},
          {"destroy_stream", [](driver& d) { return d.destroy_stream(0, s); }},
          {"query_stream", [](driver& d) { return d.query_stream(0, s); }},
          {"synchronize_stream", [](driver& d) { return d.synchronize_stream(0, s); }},
          {"capturing", [](driver& d) { return d.capturing(0, s).is; }},
          {"capture_of", [](driver& d) { return d.capture_of(0, s).is; }},
          {"kind_of", [](driver& d) { return d.kind_of(0, s).is; }},
          {"adopt", [](driver& d) { return d.adopt(0, nullptr).is; }},
          {"identify", [](driver& d) { return d.identify(0, nullptr).is; }},
          {"stream_device", [](driver& d) { return d.stream_device(0, nullptr).is; }},
          {"native", [](driver& d) { return d.native(0, s).is; }},
          {"create_event", [](driver& d) { return d.create_event(9, event_kind::order_only).is; }},
          {"destroy_event", [](driver& d) { return d.destroy_event(0, e); }},
          {"native_event", [](driver& d) { return d.native_event(e).is; }},
          {"record", [](driver& d) { return d.record(0, s, e); }},
          {"wait", [](driver& d) { return d.wait(0, s, e); }},
          {"query_event", [](driver& d) { return d.query_event(e); }},
          {"synchronize_event", [](driver& d) { return d.synchronize_event(e); }},
          {"elapsed_ms", [](driver& d) { return d.elapsed_ms(e, e).is; }},
          {"copy", [](driver& d) { return d.copy(0, s, nullptr, nullptr, 0); }},
          {"copy_peer", [](driver& d) { return d.copy_peer(0, s, nullptr, 0, nullptr, 0, 0); }},
          {"upload", [](driver& d) { return d.upload(0, s, nullptr, nullptr, 0); }},
          {"fill", [](driver& d) { return d.fill(0, s, nullptr, 0, 1, 0); }},
          {"host_function", [](driver& d) { return d.host_function(0, s, {}); }},
          {"enqueue", [](driver& d) { return d.enqueue(0, s, {}, {}); }},
          {"begin_capture", [](driver& d) { return d.begin_capture(0, s, capture_mode::global); }},
          {"end_capture", [](driver& d) { return d.end_capture(0, s).is; }},
          {"keep_with_graph",
           [](driver& d) {
             return d.keep_with_graph(
                 0, s, [](void*) {}, nullptr);
           }},
          {"update", [](driver& d) { return d.update(0, executable_handle::none, graph_handle::none); }},
          {"instantiate", [](driver& d) { return d.instantiate(0, graph_handle::none).is; }},
          {"launch_graph", [](driver& d) { return d.launch_graph(0, s, executable_handle::none); }},
          {"destroy_graph", [](driver& d) { return d.destroy_graph(graph_handle::none); }},
          {"destroy_executable", [](driver& d) { return d.destroy_executable(executable_handle::none); }},
          {"hold", [](driver& d) { return d.hold(0, s).is; }},
          {"open_gate", [](driver& d) { return d.open_gate(gate_handle::none); }}};
}

TEST_F(sim_stepped, every_call_of_the_driver_can_be_refused) {
  auto const calls = every_call();
  ASSERT_EQ(calls.size() + 1, fault_injector::call_names().size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    ASSERT_EQ(calls[i].first, fault_injector::call_names()[i]);
    control->fail_call(calls[i].first, 1, code::unloading);
    for (std::size_t j = 0; j < calls.size(); ++j) {
      if (i == j)
        continue;
      EXPECT_NE(calls[j].second(*machine).what, code::unloading) << calls[j].first << " is not " << calls[i].first;
    }
    EXPECT_EQ(calls[i].second(*machine).what, code::unloading) << calls[i].first;
    EXPECT_NE(calls[i].second(*machine).what, code::unloading) << calls[i].first << " once only";
  }
  EXPECT_FALSE(static_cast<fault_injector&>(*machine).fail_call("no such call", 1, code::failed));
}

}  // namespace
}  // namespace weir::driver::sim
