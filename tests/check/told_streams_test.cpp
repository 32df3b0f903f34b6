// Streams past weir that end: what they did is judged as long as it can be unordered with anything, and no longer.
// Threads: one, but for the streams of threads.
#include <chrono>
#include <thread>

#include "tests/check/told.h"
#include "tests/support/sanitized.h"

namespace weir::driver::check {
namespace {

struct told_streams : told {
  stream_handle const a = stream();
  address const x = block(a), y = block(a);

  static stream_handle handle(int i) { return stream_handle{0x500000 + static_cast<std::uintptr_t>(i) * 16}; }
  stream_handle made(int i, bool is_blocking = false) {
    calls.stream_made(0, cuda(handle(i)), is_blocking);
    return handle(i);
  }
  void gone(stream_handle s) { calls.stream_gone(0, cuda(s)); }
  // Others come and go, so that the checker looks for what it may forget, and gives their places to later ones.
  void idle_ones(int n = 200) {
    for (int i = 0; i < n; ++i)
      (void)made(1000 + i, i % 2 != 0);
    for (int i = 0; i < n; ++i)
      gone(handle(1000 + i));
  }
};

TEST_F(told_streams, that_ended_race_with_their_unfinished_work) {
  for (bool const is_blocking : {false, true}) {
    auto const s = made(1, is_blocking);
    launch(s, {writes_at(x)}, 11);
    gone(s);
    idle_ones();
    auto const next = made(2, is_blocking);
    launch(next, {writes_at(x)}, is_blocking ? 13 : 12);
    gone(next);
    idle_ones();
  }
  // In the second turn each of the two meets what is left of the first turn, too.
  auto const all = judge->findings();
  ASSERT_GE(all.size(), 2u) << text();
  EXPECT_EQ(std::pair(all[0].first.line(), all[0].second.line()), std::pair(11u, 12u));
  for (auto const& f : all)
    EXPECT_EQ(f.what, kind::possible_race) << f.text;
  expect_words({"launch of scale at program.cu:11 may write them on stream 2 of gpu:0",
                "launch of scale at program.cu:12 may write them on stream 203 of gpu:0"});
}

TEST_F(told_streams, that_ended_are_ordered_by_their_events) {
  auto const s = made(1);
  launch(s, {writes_at(x)}, 11);
  calls.recorded(0, cuda(s), 0x1000);
  gone(s);
  idle_ones();
  auto const next = made(2);
  calls.waited(0, cuda(next), 0x1000);
  launch(next, {writes_at(x)}, 12);
  expect_none();
}

// The stream that ended hands on what it waited for, though nothing of its own is left.
TEST_F(told_streams, that_ended_hand_on_their_order) {
  launch(a, {writes_at(x)}, 11);
  auto const s = made(1, true);
  told_order(a, s);
  gone(s);
  idle_ones();
  launch(stream_handle::legacy, {writes_at(x)}, 12);
  expect_none();
}

TEST_F(told_streams, that_ended_are_joined_by_the_legacy_one) {
  auto const s = made(1, true);
  launch(s, {writes_at(x)}, 11);
  gone(s);
  idle_ones();
  launch(stream_handle::legacy, {writes_at(y)}, 12);
  idle_ones();
  auto const next = made(2, true);
  launch(next, {writes_at(x)}, 13);
  expect_none();
  auto const beside = made(3);
  launch(beside, {writes_at(x)}, 14);
  expect({kind::possible_race});
}

// A later stream has the place of the one that recorded the event. Its wait is no wait for itself.
TEST_F(told_streams, that_ended_leave_their_events_to_their_place) {
  launch(a, {writes_at(x)}, 11);
  auto const s = made(1);
  told_order(a, s);
  calls.recorded(0, cuda(s), 0x2000);
  gone(s);
  idle_ones();
  for (int i = 2; i < 300; ++i) {  // one of them gets that place
    auto const next = made(i);
    calls.waited(0, cuda(next), 0x2000);
    launch(next, {reads_at(x)}, 12);
  }
  expect_none();
}

// A program cannot end the predefined streams: such a call fails.
TEST_F(told_streams, that_are_predefined_have_no_end) {
  for (std::uintptr_t const predefined : {0, 1, 2}) {
    for (int const line : {11, 12}) {
      calls.launched(0, predefined, "scale", pointers{writes_at(x)}, at_line(line));
      calls.stream_gone(0, predefined);
    }
    calls.device_done(0);
    calls.stream_gone(0, predefined);
    idle_ones();
    launch(made(1, true), {writes_at(y)}, 13);
    launch(stream_handle::legacy, {writes_at(y)}, 14);
    launch(made(2, true), {writes_at(y)}, 15);
    calls.device_done(0);
  }
  expect_none();
}

// The block is still marked for the stream: another one with its place is another one.
TEST_F(told_streams, that_ended_leave_their_marks_to_no_other) {
  auto const s = made(1);
  witness->marked({0, s}, x);
  launch(s, {writes_at(x)}, 11);
  gone(s);
  idle_ones();
  launch(made(2), {reads_at(x)}, 12);
  ends({{0, a}}, x, 4096, 50);
  EXPECT_EQ(kinds().back(), kind::freed_in_use) << text();
}

TEST_F(told_streams, of_a_thread_keep_what_they_waited_for) {
  launch(a, {writes_at(x)}, 11);
  told_order(a, stream_handle::per_thread);
  std::thread([this] { launch(stream_handle::per_thread, {writes_at(y)}, 12); }).join();
  idle_ones();
  launch(stream_handle::per_thread, {writes_at(x)}, 13);
  expect_none();
  launch(a, {reads_at(y)}, 14);  // the other thread has ended, and its work has not
  expect({kind::possible_race});
}

// Cost -------------------------------------------------------------------------------------------------------

struct many_told_streams : told_streams {
  // one(i): a stream that comes and goes
  template <class One>
  void expect_bounded(int n, One one) {
    n /= tests::sanitized ? 20 : 1;
    std::size_t const before = resident();
    auto const begin = std::chrono::steady_clock::now();
    for (int i = 0; i < n; ++i)
      one(i);
    std::chrono::duration<double, std::micro> const all = std::chrono::steady_clock::now() - begin;
    double const us = all.count() / n,
                 more = static_cast<double>(resident() - std::min(resident(), before)) / (1 << 20);
    std::printf("%.2f us a stream, %.1f MiB more\n", us, more);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    constexpr double most_us = 100, most_mib = 8;  // some 1 to 3 on a machine that does nothing else
    EXPECT_LT(us, most_us);
    EXPECT_LT(more, most_mib);
#endif
  }
};

TEST_F(many_told_streams, that_are_waited_for_cost_no_memory) {
  expect_bounded(1'000'000, [&](int i) {
    auto const s = made(i, i % 2 != 0);
    launch(s, {writes_at(i % 3 ? x : y)}, 11);
    calls.stream_done(0, cuda(s));
    gone(s);
  });
  expect_none();
  auto const last = made(1), next = made(2);
  launch(last, {writes_at(x)}, 12);
  gone(last);
  launch(next, {writes_at(x)}, 13);
  expect({kind::possible_race});
}

// The host waits for nothing: the order between the streams is all that is known.
TEST_F(many_told_streams, that_hand_over_to_another_cost_no_memory) {
  expect_bounded(300'000, [&](int i) {
    auto const s = made(i);
    told_order(a, s);
    launch(s, {writes_at(x)}, 11);
    told_order(s, a);
    gone(s);
    launch(a, {writes_at(x)}, 12);
  });
  expect_none();
}

// A capture keeps the places of streams: a search for those that may go would find none.
TEST_F(many_told_streams, that_end_beside_a_capture_cost_no_search) {
  std::vector<address> all;
  for (int page_of_blocks = 0; page_of_blocks < 40; ++page_of_blocks) {
    address const first = memory();
    for (address at = first; at < first + page; at += 256) {
      begins(a, at, 256, 20);
      all.push_back(at);
    }
  }
  auto const in_capture = stream();
  EXPECT_TRUE(machine->begin_capture(0, in_capture, capture_mode::relaxed).ok());
  for (address const at : all)
    launch(a, {writes_at(at)}, 10);
  idle_ones(1000);
  expect_bounded(5'000, [&](int) { calls.copied(0, cuda(a), y, x, 64, false, at_line(11)); });
  expect_none();
}

TEST_F(many_told_streams, that_join_the_legacy_one_cost_no_memory) {
  expect_bounded(300'000, [&](int i) {
    auto const s = made(i, true);
    launch(s, {writes_at(x)}, 11);
    gone(s);
    launch(stream_handle::legacy, {writes_at(x)}, 12);
  });
  expect_none();
}

}  // namespace
}  // namespace weir::driver::check
