// Rules M1 to M8 of docs/reference/simulated-machine.md, on every machine: order, blocking and completion.
#include <chrono>
#include <numeric>
#include <thread>

#include "tests/conformance/rig.h"

namespace weir::conformance {
namespace {

std::vector<std::uint32_t> count_to(std::uint32_t n) {
  std::vector<std::uint32_t> all(n);
  std::iota(all.begin(), all.end(), 0u);
  return all;
}

class order : public conformance {};
WEIR_CONFORMANCE(order);

TEST_P(order, m1_a_stream_runs_its_work_in_order) {
  auto const s = stream(0);
  auto const b = memory(0);
  write(b, 7);
  auto& g = hold(0, s);
  for (std::uint32_t k = 0; k < 64; ++k) {
    log(0, s, k);
    if (k % 2 == 0) {
      copy_word(0, s, b.words() + k + 1, b.words() + k);
    } else {
      EXPECT_OK(machine().copy(0, s, b.words() + k + 1, b.words() + k, 4));
    }
  }
  EXPECT_TRUE(logged().empty());
  g.open();
  finish(0, s);
  EXPECT_EQ(logged(), count_to(64));
  EXPECT_EQ(read(b, 64), 7u);
}

TEST_P(order, m1_fills_of_every_width_write_exactly_their_bytes) {
  auto const s = stream(0);
  auto const b = memory(0);
  EXPECT_OK(machine().fill(0, s, b.words(), 0, 4, 8));
  EXPECT_OK(machine().fill(0, s, reinterpret_cast<char*>(b.at) + 1, 0xab, 1, 2));
  EXPECT_OK(machine().fill(0, s, reinterpret_cast<char*>(b.at) + 6, 0x1234, 2, 2));
  EXPECT_OK(machine().fill(0, s, b.words() + 4, 0xdeadbeef, 4, 2));
  finish(0, s);
  EXPECT_EQ(read(b, 0), 0x00ababu << 8);
  EXPECT_EQ(read(b, 1), 0x12340000u);
  EXPECT_EQ(read(b, 2), 0x1234u);
  EXPECT_EQ(read(b, 3), 0u);
  EXPECT_EQ(read(b, 5), 0xdeadbeefu);
  EXPECT_EQ(read(b, 6), 0u);
  EXPECT_SAYS(code::invalid, machine().fill(0, s, b.words(), 0, 3, 1));
  EXPECT_SAYS(code::invalid, machine().fill(0, s, reinterpret_cast<char*>(b.at) + 1, 0, 4, 1));
  EXPECT_SAYS(code::invalid, machine().fill(0, s, b.words(), 0, 4, SIZE_MAX / 2));
}

// About 250 operations: CUDA accepts more of every kind before a call waits for room.
constexpr std::uint32_t rounds_under_250 = 27;

TEST_P(order, m2_no_enqueueing_call_waits_for_device_work) {
  auto const s = stream(0), other = stream(0);
  auto const e = event(0), f = event(0);
  auto const b = memory(0);
  auto* const h = pinned(4096);
  log(0, other, 1000);  // the first of its kind may block
  finish(0, other);
  EXPECT_OK(machine().record(0, other, f));
  auto& g = hold(0, s);
  int runs = 0;
  driver::work count;
  count.run = [](void* n) { ++*static_cast<int*>(n); };
  count.state = &runs;
  for (std::uint32_t k = 0; k < rounds_under_250; ++k) {
    log(0, s, k);
    store(0, s, b.words(), k);
    EXPECT_OK(machine().copy(0, s, b.words() + 8, h, 64));
    EXPECT_OK(machine().copy(0, s, h + 64, b.words(), 64));
    EXPECT_OK(machine().copy(0, s, b.words() + 64, b.words(), 64));
    EXPECT_OK(machine().fill(0, s, b.words() + 128, k, 4, 16));
    EXPECT_OK(machine().record(0, s, e));
    EXPECT_OK(machine().wait(0, s, f));
    EXPECT_OK(machine().host_function(0, s, count));
    EXPECT_SAYS(code::not_ready, machine().query_stream(0, s));
    EXPECT_SAYS(code::not_ready, machine().query_event(e));
  }
  EXPECT_EQ(logged(), std::vector<std::uint32_t>{1000});
  EXPECT_EQ(runs, 0);
  g.open();
  finish(0, s);
  EXPECT_EQ(logged().size(), rounds_under_250 + 1);
  EXPECT_EQ(runs, static_cast<int>(rounds_under_250));
  EXPECT_OK(machine().query_event(e));
}

TEST_P(order, m2_a_copy_between_devices_does_not_wait) {
  NEED_DEVICES(2);
  auto const s = stream(0);
  auto const from = memory(0), to = memory(1);
  write(from, 41);
  EXPECT_OK(machine().copy_peer(0, s, to.words(), 1, from.words(), 0, 4));  // the first of its kind may block
  finish(0, s);
  auto& g = hold(0, s);
  store(0, s, from.words(), 42);
  for (int k = 0; k < 30; ++k)
    EXPECT_OK(machine().copy_peer(0, s, to.words(), 1, from.words(), 0, 4));
  EXPECT_SAYS(code::not_ready, machine().query_stream(0, s));
  EXPECT_EQ(read(to), 41u);
  g.open();
  finish(0, s);
  EXPECT_EQ(read(to), 42u);
}

TEST_P(order, m3_a_wait_takes_the_last_record_at_its_call) {
  auto const a = stream(0), b = stream(0), c = stream(0);
  auto const e = event(0);
  auto& g = hold(0, a);
  log(0, a, 1);
  EXPECT_OK(machine().record(0, a, e));
  EXPECT_OK(machine().wait(0, b, e));
  log(0, b, 2);
  EXPECT_OK(machine().record(0, c, e));
  EXPECT_TRUE(becomes(code::ok, [&] { return machine().query_event(e); }));
  EXPECT_SAYS(code::not_ready, machine().query_stream(0, b));
  EXPECT_TRUE(logged().empty());
  g.open();
  finish(0, b);
  EXPECT_EQ(logged(), (std::vector<std::uint32_t>{1, 2}));
}

TEST_P(order, m3_a_record_takes_the_stream_as_it_is_now) {
  auto const a = stream(0), b = stream(0);
  auto const e = event(0);
  auto& first = hold(0, a);  // so that the event is incomplete when a stream waits for it
  log(0, a, 1);
  EXPECT_OK(machine().record(0, a, e));
  auto& g = hold(0, a);  // after the record: a wait for the event must not wait for this gate
  log(0, a, 3);
  EXPECT_OK(machine().wait(0, b, e));
  log(0, b, 2);
  EXPECT_TRUE(logged().empty());
  first.open();
  finish(0, b);
  EXPECT_EQ(logged(), (std::vector<std::uint32_t>{1, 2}));
  g.open();
  finish(0, a);
  EXPECT_EQ(logged(), (std::vector<std::uint32_t>{1, 2, 3}));
}

TEST_P(order, m4_an_event_never_recorded_is_complete) {
  auto const s = stream(0);
  auto const e = event(0);
  EXPECT_OK(machine().query_event(e));
  EXPECT_OK(machine().synchronize_event(e));
  EXPECT_OK(machine().wait(0, s, e));
  log(0, s, 1);
  finish(0, s);
  EXPECT_EQ(logged(), std::vector<std::uint32_t>{1});
}

TEST_P(order, m4_destroying_a_pending_object_cancels_nothing) {
  auto const a = stream(0), b = stream(0);
  auto const made = machine().create_stream(0, stream_kind::independent, 0);
  auto const event_made = machine().create_event(0, event_kind::order_only);
  ASSERT_OK(made.is);
  ASSERT_OK(event_made.is);
  auto& g = hold(0, a);
  auto& g2 = hold(0, made.value);
  log(0, a, 1);
  EXPECT_OK(machine().record(0, a, event_made.value));
  EXPECT_OK(machine().wait(0, b, event_made.value));
  log(0, b, 2);
  EXPECT_OK(machine().destroy_event(0, event_made.value));
  EXPECT_TRUE(logged().empty());
  g.open();
  finish(0, b);
  EXPECT_EQ(logged(), (std::vector<std::uint32_t>{1, 2}));
  log(0, made.value, 3);
  EXPECT_OK(machine().destroy_stream(0, made.value));
  g2.open();
  EXPECT_OK(machine().synchronize_device(0));
  EXPECT_EQ(logged(), (std::vector<std::uint32_t>{1, 2, 3}));
}

// Order passes through streams, devices, and a host that saw completion.
TEST_P(order, m5_order_is_transitive) {
  NEED_DEVICES(2);
  auto const a = stream(0), b = stream(1), c = stream(0), d = stream(1);
  auto const ea = event(0), eb = event(1), ec = event(0);
  auto& g = hold(0, a);
  log(0, a, 0);
  EXPECT_OK(machine().record(0, a, ea));
  EXPECT_OK(machine().wait(1, b, ea));
  log(1, b, 1);
  EXPECT_OK(machine().record(1, b, eb));
  EXPECT_OK(machine().wait(0, c, eb));
  log(0, c, 2);
  EXPECT_OK(machine().record(0, c, ec));
  EXPECT_TRUE(logged().empty());
  g.open();
  EXPECT_OK(machine().synchronize_event(ec));
  log(1, d, 3);
  finish(1, d);
  EXPECT_EQ(logged(), count_to(4));
}

TEST_P(order, m5_a_record_on_another_devices_stream_is_refused) {
  NEED_DEVICES(2);
  auto const s = stream(1);
  auto const e = event(0);
  EXPECT_SAYS(code::invalid, machine().record(1, s, e));
  EXPECT_OK(machine().query_event(e));
  EXPECT_OK(machine().wait(1, s, e));
  EXPECT_SAYS(code::invalid, machine().destroy_event(1, e));
}

struct seen_inside {
  driver::driver* machine;
  stream_handle stream;
  event_handle event;
  std::vector<status> answers;
};

// A host function runs in order and may not call the driver.
TEST_P(order, m7_a_host_function_holds_its_stream) {
  auto const s = stream(0);
  auto const e = event(0);
  seen_inside in{&machine(), s, e, {}};
  int dropped = 0;
  struct both {
    seen_inside* in;
    int* dropped;
  } state{&in, &dropped};
  driver::work ask;
  ask.state = &state;
  ask.run = [](void* p) {
    auto& in = *static_cast<both*>(p)->in;
    in.answers.push_back(in.machine->query_stream(0, in.stream));
    in.answers.push_back(in.machine->query_event(in.event));
    in.answers.push_back(in.machine->create(0, 2 << 20).is);
    in.answers.push_back(in.machine->find(p).is);
    in.answers.push_back(in.machine->record(0, in.stream, in.event));
  };
  ask.drop = [](void* p) { ++*static_cast<both*>(p)->dropped; };
  auto& g = hold(0, s);
  log(0, s, 1);
  EXPECT_OK(machine().host_function(0, s, ask));
  log(0, s, 2);
  EXPECT_TRUE(in.answers.empty());
  g.open();
  finish(0, s);
  ASSERT_EQ(in.answers.size(), 5u);
  for (status const said : in.answers)
    EXPECT_EQ(said.what, code::not_permitted);
  EXPECT_EQ(dropped, 1);
  EXPECT_EQ(logged(), (std::vector<std::uint32_t>{1, 2}));
  EXPECT_OK(machine().query_event(e));
}

TEST_P(order, m7_a_host_function_separates_earlier_from_later_work) {
  auto const s = stream(0), other = stream(0);
  log(0, other, 1000);  // the first of its kind may block
  finish(0, other);
  std::vector<std::uint32_t> at_entry, at_exit;
  std::atomic<bool> inside{false}, leave{seeded()};  // a seeded machine runs it inside a call of this thread
  auto const soon = [](std::atomic<bool> const& flag) {
    auto const end = std::chrono::steady_clock::now() + std::chrono::seconds(2);
    while (!flag && std::chrono::steady_clock::now() < end)
      std::this_thread::yield();
    EXPECT_TRUE(flag) << "not within 2 s";
  };
  std::function<void()> body = [&] {
    at_entry = logged();
    inside = true;
    soon(leave);
    at_exit = logged();
  };
  log(0, s, 1);
  EXPECT_OK(
      machine().host_function(0, s, {[](void* f) { (*static_cast<std::function<void()>*>(f))(); }, nullptr, &body}));
  log(0, s, 3);
  if (!seeded()) {
    soon(inside);
    log(0, other, 2);
    finish(0, other);
    EXPECT_EQ(logged(), (std::vector<std::uint32_t>{1000, 1, 2}));
    EXPECT_SAYS(code::not_ready, machine().query_stream(0, s));
    leave = true;
  }
  finish(0, s);
  EXPECT_EQ(at_entry, (std::vector<std::uint32_t>{1000, 1}));
  EXPECT_EQ(at_exit, (seeded() ? std::vector<std::uint32_t>{1000, 1} : std::vector<std::uint32_t>{1000, 1, 2}));
  EXPECT_EQ(logged().back(), 3u);
}

TEST_P(order, m7_a_refused_host_function_is_dropped_and_never_runs) {
  struct counts {
    int runs = 0, drops = 0;
  } n;
  driver::work w;
  w.run = [](void* p) { ++static_cast<counts*>(p)->runs; };
  w.drop = [](void* p) { ++static_cast<counts*>(p)->drops; };
  w.state = &n;
  EXPECT_SAYS(code::invalid, machine().host_function(machine().device_count(), stream(0), w));
  EXPECT_EQ(n.runs, 0);
  EXPECT_EQ(n.drops, 1);
}

TEST_P(order, m8_complete_stays_so_until_the_event_is_recorded_again) {
  auto const s = stream(0);
  auto const e = event(0);
  auto& g = hold(0, s);
  EXPECT_OK(machine().record(0, s, e));
  int const times = seeded() ? 200 : 10'000;
  for (int i = 0; i < times; ++i)
    ASSERT_SAYS(code::not_ready, machine().query_event(e));
  g.open();
  EXPECT_TRUE(becomes(code::ok, [&] { return machine().query_event(e); }));
  auto const ask = [&] {
    for (int i = 0; i < times; ++i)
      ASSERT_OK(machine().query_event(e));
  };
  ask();
  if (!seeded())
    std::thread(ask).join();
  auto& again = hold(0, s);
  EXPECT_OK(machine().record(0, s, e));
  EXPECT_SAYS(code::not_ready, machine().query_event(e));
  again.open();
  finish(0, s);
  EXPECT_OK(machine().query_event(e));
}

TEST_P(order, a_fifth_closed_gate_of_a_device_is_refused) {
  std::vector<stream_handle> all;
  for (int i = 0; i < 5; ++i)
    all.push_back(stream(0));
  for (int i = 0; i < 4; ++i)
    hold(0, all[static_cast<std::size_t>(i)]);
  EXPECT_SAYS(code::not_permitted, machine().hold(0, all[4]).is);
  EXPECT_OK(machine().query_stream(0, all[4]));
}

TEST_P(order, elapsed_time_needs_timing_events_that_were_recorded) {
  auto const s = stream(0);
  auto const start = event(0, event_kind::timing), end = event(0, event_kind::timing), plain = event(0);
  EXPECT_SAYS(code::invalid, machine().elapsed_ms(start, end).is);
  EXPECT_OK(machine().record(0, s, start));
  log(0, s, 1);
  EXPECT_OK(machine().record(0, s, plain));
  auto& g = hold(0, s);
  EXPECT_OK(machine().record(0, s, end));
  EXPECT_SAYS(code::not_ready, machine().elapsed_ms(start, end).is);
  g.open();
  finish(0, s);
  auto const took = machine().elapsed_ms(start, end);
  EXPECT_OK(took.is);
  EXPECT_GE(took.value, 0.f);
  EXPECT_SAYS(code::invalid, machine().elapsed_ms(start, plain).is);
}

}  // namespace
}  // namespace weir::conformance
