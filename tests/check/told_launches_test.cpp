// Launches past weir against each other, against exact uses, and against the end of their blocks.
// Threads: one.
#include <set>
#include <thread>

#include "tests/check/told.h"

namespace weir::driver::check {
namespace {

struct told_launches : told {
  stream_handle const a = stream(), b = stream();
  address const x = block(a);
};

// Two launches -----------------------------------------------------------------------------------------------

TEST_F(told_launches, on_two_streams_are_a_possible_race) {
  launch(a, {writes_at(x)}, 11, "_Z5scalePfi");
  launch(b, {reads_at(x)}, 12, "_Z3sumPKf");
  expect({kind::possible_race});
  expect_words({"possible race: bytes 0-4095 of block 1 of gpu:0 (4096 B, allocated at program.cpp:1)",
                "launch of scale at program.cu:11 may write them on stream 1 of gpu:0",
                "launch of sum at program.cu:12 may read them on stream 2 of gpu:0", "No wait orders the two",
                "It is only possible: which bytes the two use behind their pointers is not known",
                "let stream 2 of gpu:0 wait for stream 1 of gpu:0", "WEIR_CHECK_SUPPRESS"});
  auto const all = judge->findings();
  EXPECT_EQ(std::pair(all[0].first.line(), all[0].second.line()), std::pair(11u, 12u));
}

TEST_F(told_launches, that_read_alone_are_none) {
  launch(a, {reads_at(x)}, 11);
  launch(b, {reads_at(x)}, 12);
  expect_none();
}

TEST_F(told_launches, of_one_stream_are_ordered) {
  launch(a, {writes_at(x)}, 11);
  launch(a, {writes_at(x)}, 12);
  expect_none();
}

TEST_F(told_launches, behind_an_event_of_the_program_are_ordered) {
  launch(a, {writes_at(x)}, 11);
  told_order(a, b);
  launch(b, {writes_at(x)}, 12);
  expect_none();
}

TEST_F(told_launches, behind_a_wait_of_weir_are_ordered) {
  launch(a, {writes_at(x)}, 11);
  order(a, b);
  launch(b, {writes_at(x)}, 12);
  expect_none();
}

TEST_F(told_launches, before_the_record_are_ordered_alone) {
  calls.recorded(0, cuda(a), 0x1000);
  launch(a, {writes_at(x)}, 11);
  calls.waited(0, cuda(b), 0x1000);
  launch(b, {writes_at(x)}, 12);
  expect({kind::possible_race});
}

TEST_F(told_launches, behind_a_wait_before_the_record_are_unordered) {
  launch(a, {writes_at(x)}, 11);
  calls.waited(0, cuda(b), 0x1000);
  calls.recorded(0, cuda(a), 0x1000);
  launch(b, {writes_at(x)}, 12);
  expect({kind::possible_race});
}

// The wait stands for the record that was the last then.
TEST_F(told_launches, behind_an_event_count_its_last_record) {
  auto const c = stream();
  calls.recorded(0, cuda(a), 0x1000);
  launch(a, {writes_at(x)}, 11);
  calls.recorded(0, cuda(a), 0x1000);
  calls.waited(0, cuda(b), 0x1000);
  launch(b, {writes_at(x)}, 12);
  expect_none();
  calls.recorded(0, cuda(c), 0x1000);  // the event no longer speaks of a
  calls.waited(0, cuda(c), 0x1000);
  launch(c, {writes_at(x)}, 13);
  expect({kind::possible_race});  // with the last of the two that are ordered
}

TEST_F(told_launches, behind_an_event_that_is_gone_are_not_ordered) {
  launch(a, {writes_at(x)}, 11);
  calls.recorded(0, cuda(a), 0x1000);
  calls.event_gone(0x1000);
  calls.waited(0, cuda(b), 0x1000);
  launch(b, {writes_at(x)}, 12);
  expect({kind::possible_race});
}

TEST_F(told_launches, that_the_host_saw_complete_are_ordered) {
  enum { by_stream, by_event, by_device, by_weir };
  for (int const how : {by_stream, by_event, by_device, by_weir}) {
    launch(a, {writes_at(x)}, 11);
    if (how == by_stream) {
      calls.stream_done(0, cuda(a));
    } else if (how == by_event) {
      calls.recorded(0, cuda(a), 0x1000);
      calls.event_done(0x1000);
    } else if (how == by_device) {
      calls.device_done(0);
    } else {
      EXPECT_TRUE(machine->synchronize_stream(0, a).ok());
    }
    launch(b, {writes_at(x)}, 12);
    calls.device_done(0);
    expect_none();
  }
}

TEST_F(told_launches, of_equal_places_are_one_report_with_a_count) {
  for (int i = 0; i < 10; ++i) {
    launch(a, {writes_at(x)}, 11);
    launch(b, {writes_at(x)}, 12);
  }
  expect({kind::possible_race, kind::possible_race});  // 11 before 12, and 12 before 11
  auto const all = judge->findings();
  EXPECT_EQ(all[0].times, 10u);
  EXPECT_EQ(all[1].times, 9u);
}

// A library launches other kernels in each call. What a person mends is the order of the two calls.
TEST_F(told_launches, of_two_calls_of_a_library_are_one_report) {
  auto const in_library = [&](stream_handle s, std::string const& call, int i) {
    static std::set<std::string> kept;
    char const* const place = kept.insert("libnet.so(" + call + "+0x" + std::to_string(i) + ")").first->c_str();
    char const* const kernel = kept.insert(call + "_kernel_" + std::to_string(i)).first->c_str();
    calls.launched(0, cuda(s), kernel, pointers{writes_at(x)}, {nullptr, {place, "", 0}});
  };
  for (int i = 0; i < 200; ++i) {
    in_library(a, "forward", i);
    in_library(b, "backward", i);
    calls.device_done(0);
  }
  expect({kind::possible_race});
  expect_words({"launch of forward_kernel_0 at libnet.so(forward+0x0) may write them on stream 1",
                "launch of backward_kernel_0 at libnet.so(backward+0x0) may write them on stream 2",
                "So may 199 other pairs of calls at these places, as launch of forward_kernel_1 and launch of "
                "backward_kernel_1; launch of forward_kernel_2 and launch of backward_kernel_2."});
  EXPECT_EQ(judge->findings()[0].times, 200u);
  in_library(b, "backward", 0);  // the other way round another wait is missing
  in_library(a, "forward", 0);
  expect({kind::possible_race, kind::possible_race});
}

// A line of the program says more than the place in the library: two lines are two reports.
TEST_F(told_launches, behind_a_line_are_one_report_a_line) {
  auto const behind_line = [&](stream_handle s, char const* place, char const* kernel) {
    calls.launched(0, cuda(s), kernel, pointers{writes_at(x)}, {nullptr, {place, "", 0}});
  };
  for (char const* const second : {"libnet.so(step+0x9) after train.py:12", "libnet.so(run+0x7) after train.py:12",
                                   "libnet.so(run+0x7) after train.py:13"}) {
    behind_line(a, "train(step+0x45)", "first");
    behind_line(b, second, "second");
    calls.device_done(0);
  }
  expect({kind::possible_race, kind::possible_race});
  behind_line(a, "train(step+0x60)", "first");  // in the program itself each call is a place
  behind_line(b, "libnet.so(run+0x7) after train.py:13", "second");
  EXPECT_EQ(kinds().size(), 3u) << text();
}

// Legacy and per-thread streams ------------------------------------------------------------------------------

TEST_F(told_launches, on_the_legacy_stream_join_blocking_ones_alone) {
  for (std::uintptr_t const legacy : {std::uintptr_t{0}, std::uintptr_t{1}}) {
    auto const blocking = stream(0, stream_kind::blocking);
    launch(blocking, {writes_at(x)}, 11);
    calls.launched(0, legacy, "scale", pointers{writes_at(x)}, at_line(12));
    launch(blocking, {writes_at(x)}, 13);
    expect_none();
    calls.device_done(0);
  }
  launch(a, {writes_at(x)}, 14);
  calls.launched(0, 0, "scale", pointers{writes_at(x)}, at_line(15));
  expect({kind::possible_race});
}

// A record, too, comes after the blocking streams, and they come after it.
TEST_F(told_launches, on_blocking_streams_are_ordered_by_legacy) {
  enum { record, wait, wait_of_weir };
  for (int const how : {record, wait, wait_of_weir}) {
    auto const c = stream(0, stream_kind::blocking), d = stream(0, stream_kind::blocking);
    launch(c, {writes_at(x)}, 11);
    if (how == record) {
      calls.recorded(0, 0, 0x1000);
    } else if (how == wait) {
      calls.recorded(0, cuda(a), 0x1000);
      calls.waited(0, 0, 0x1000);
    } else {
      order(a, stream_handle::legacy);
    }
    launch(d, {writes_at(x)}, 12);
    expect_none();
    calls.device_done(0);
  }
}

// A legacy stream that did nothing orders nothing, though the checker asked what it comes after.
TEST_F(told_launches, on_blocking_streams_do_not_join_idle_legacy) {
  auto const c = stream(0, stream_kind::blocking), d = stream(0, stream_kind::blocking);
  launch(c, {writes_at(x)}, 11);
  (void)judge->position(0, stream_handle::legacy);
  launch(d, {writes_at(x)}, 12);
  expect({kind::possible_race});
}

TEST_F(told_launches, before_a_blocking_wait_are_done_with_it) {
  auto const c = stream(0, stream_kind::blocking);
  calls.launched(0, 0, "scale", pointers{writes_at(x)}, at_line(11));
  order(a, c);
  EXPECT_TRUE(machine->synchronize_stream(0, c).ok());
  launch(b, {writes_at(x)}, 12);
  expect_none();
}

TEST_F(told_launches, on_the_programs_streams_are_ordered_by_kind) {
  calls.stream_made(0, 0x5000, true);
  calls.stream_made(0, 0x6000, false);
  launch(stream_handle{0x5000}, {writes_at(x)}, 11);
  launch(stream_handle::legacy, {writes_at(x)}, 12);
  expect_none();
  launch(stream_handle{0x6000}, {writes_at(x)}, 13);
  expect({kind::possible_race});
  calls.device_done(0);
  calls.stream_gone(0, 0x6000);
  calls.stream_made(0, 0x6000, true);  // the handle comes back
  launch(stream_handle{0x6000}, {writes_at(x)}, 14);
  launch(stream_handle::legacy, {writes_at(x)}, 15);
  expect({kind::possible_race});
}

TEST_F(told_launches, on_a_stream_from_before_ask_for_its_kind) {
  for (auto const k : {stream_kind::blocking, stream_kind::independent}) {
    auto const s = machine->behind()->create_stream(0, k, 0).value;
    auto const before = judge->findings().size();
    launch(s, {writes_at(x)}, 11);
    launch(stream_handle::legacy, {writes_at(x)}, 12);
    EXPECT_EQ(judge->findings().size() - before, k == stream_kind::blocking ? 0u : 1u) << text();
    calls.device_done(0);
  }
}

TEST_F(told_launches, on_the_per_thread_stream_join_the_legacy_one) {
  launch(stream_handle::per_thread, {writes_at(x)}, 11);
  launch(stream_handle::legacy, {writes_at(x)}, 12);
  expect_none();
  launch(b, {writes_at(x)}, 13);
  expect({kind::possible_race});
}

// Each thread has its own.
TEST_F(told_launches, on_two_per_thread_streams_are_a_possible_race) {
  launch(stream_handle::per_thread, {writes_at(x)}, 11);
  std::thread([this] { launch(stream_handle::per_thread, {writes_at(x)}, 12); }).join();
  expect({kind::possible_race});
}

// Ranges -----------------------------------------------------------------------------------------------------

TEST_F(told_launches, reach_to_the_next_pointer_of_the_same_launch) {
  launch(a, {writes_at(x), reads_at(x + 1024)}, 11);
  launch(b, {reads_at(x + 1024)}, 12);  // a reads there, too
  expect_none();
  launch(b, {reads_at(x + 512)}, 13);
  expect({kind::possible_race});
  expect_words({"bytes 512-1023 of block 1"});
}

// Two halves by two launches: nothing says where the first ends.
TEST_F(told_launches, on_neighbours_in_one_block_are_possible_races) {
  launch(a, {writes_at(x)}, 11);
  launch(b, {writes_at(x + 2048)}, 12);
  expect({kind::possible_race});
  expect_words({"bytes 2048-4095 of block 1"});
}

// The other way round: what lies below a pointer is not its launch's.
TEST_F(told_launches, reach_no_byte_below_their_pointers) {
  launch(a, {writes_at(x + 2048)}, 11);
  write(b, x, 2048);
  expect_none();
}

TEST_F(told_launches, by_a_pointer_into_no_block_are_counted_alone) {
  launch(a, {writes_at(0x10), writes_at(x + 4096)}, 11);
  launch(b, {writes_at(0x10), writes_at(x + 4096)}, 12);
  expect_none();
  EXPECT_EQ(judge->unseen().unknown_pointers, 4u);
}

TEST_F(told_launches, of_a_const_and_a_plain_pointer_write) {
  launch(a, {reads_at(x), writes_at(x)}, 11);
  launch(b, {reads_at(x)}, 12);
  expect({kind::possible_race});
}

// Structures -------------------------------------------------------------------------------------------------

TEST_F(told_launches, by_a_pointer_in_a_structure_make_no_race) {
  launch(a, {inside_at(x)}, 11);
  write(b, x, 64);
  expect({kind::possible_race});
  expect_words({"It is only possible: the pointer of launch of scale at program.cu:11 was found in a structure"});
}

TEST_F(told_launches, by_a_stale_pointer_of_a_structure_are_none) {
  ends({{0, a}}, x, 4096, 50);
  launch(b, {inside_at(x)}, 11);
  expect_none();
}

// A stale pointer between two direct ones hides no byte of the first.
TEST_F(told_launches, keep_their_range_beside_one_in_a_structure) {
  launch(a, {writes_at(x), {x + 64, false, true}}, 11);
  launch(b, {reads_at(x + 1024)}, 12);
  expect({kind::possible_race});
}

TEST_F(told_launches, by_a_structure_are_possible_at_the_free) {
  launch(b, {inside_at(x)}, 11);
  ends({{0, a}}, x, 4096, 50);
  expect({kind::possible_race});
  expect_words({"was freed at program.cpp:50 while launch of scale at program.cu:11 may write it on stream 2"});
}

// Against exact uses -----------------------------------------------------------------------------------------

TEST_F(told_launches, beside_a_declared_use_are_a_race) {
  launch(a, {writes_at(x)}, 11);
  read(b, x, 4096);
  expect({kind::race});
  expect_words({"race: bytes 0-4095 of block 1 of gpu:0", "launch of scale at program.cu:11 may write them on stream 1",
                "enqueue reads them on stream 2", "they may end before its block"});
}

// The launch may use the other bytes: kernel(all, offset).
TEST_F(told_launches, beside_a_use_of_a_part_are_a_possible_race) {
  launch(a, {writes_at(x)}, 11);
  read(b, x, 64);
  expect({kind::possible_race});
  expect_words({"which bytes launch of scale at program.cu:11 uses behind its pointer is not known"});
}

TEST_F(told_launches, without_a_signature_may_read_alone) {
  auto const c = stream();
  launch(a, {{.at = x, .is_typed = false}}, 11);
  read(b, x, 4096);
  expect({kind::possible_race});
  expect_words({"It is only possible: no signature tells whether launch of scale at program.cu:11 writes"});
  told_order(b, c);
  write(c, x, 4096);
  EXPECT_EQ(kinds().size(), 2u) << text();
  EXPECT_EQ(kinds().back(), kind::race) << text();
}

TEST_F(told_launches, behind_a_declared_use_are_a_race) {
  write(a, x, 4096);
  launch(b, {reads_at(x)}, 11);
  expect({kind::race});
}

// How far the launch reaches is not known.
TEST_F(told_launches, beside_a_use_behind_their_pointer_are_possible) {
  launch(a, {writes_at(x)}, 11);
  write(b, x + 2048, 64);
  expect({kind::possible_race});
}

TEST_F(told_launches, take_no_exact_use_from_another) {
  write(a, x, 64);
  launch(a, {inside_at(x)}, 11);
  write(b, x, 64);
  expect({kind::possible_race, kind::race});
}

TEST_F(told_launches, that_read_beside_a_declared_read_are_none) {
  launch(a, {reads_at(x)}, 11);
  read(b, x, 4096);
  expect_none();
  write(b, x, 4096);
  expect({kind::race});
}

// A launch inside weir::launch is declared by it.
TEST_F(told_launches, inside_a_call_of_weir_are_its_own) {
  launch(a, {writes_at(x)}, 11);
  {
    base::unwatched const declared;
    launch(b, {writes_at(x)}, 13);
  }
  expect_none();
}

TEST_F(told_launches, of_the_program_in_a_call_of_weir_are_judged) {
  launch(a, {writes_at(x)}, 11);
  base::call_site const in(true, "capture", {"program.cpp", "", 70});
  launch(b, {writes_at(x)}, 12);
  expect({kind::possible_race});
}

// Blocks -----------------------------------------------------------------------------------------------------

TEST_F(told_launches, on_another_stream_are_seen_by_the_free) {
  launch(b, {writes_at(x)}, 11);
  ends({{0, a}}, x, 4096, 50);
  expect({kind::freed_in_use});
  expect_words(
      {"block 1 of gpu:0 (4096 B, allocated at program.cpp:1) was freed at program.cpp:50 while launch of "
       "scale at program.cu:11 may write it on stream 2 of gpu:0",
       "record_stream"});
}

TEST_F(told_launches, that_read_are_seen_by_the_free) {
  launch(b, {reads_at(x)}, 11);
  ends({{0, a}}, x, 4096, 50);
  expect({kind::freed_in_use});
}

TEST_F(told_launches, before_the_free_are_right) {
  launch(a, {writes_at(x)}, 11);  // the block's own stream
  ends({{0, a}}, x, 4096, 50);
  expect_none();
}

TEST_F(told_launches, that_are_marked_or_ordered_are_right) {
  auto const c = stream();
  address const y = block(a);
  launch(b, {writes_at(x)}, 11);
  witness->marked({0, b}, x);
  ends({{0, a}}, x, 4096, 50);
  launch(c, {writes_at(y)}, 12);
  told_order(c, a);
  ends({{0, a}}, y, 4096, 51);
  expect_none();
}

TEST_F(told_launches, of_a_freed_block_are_a_use_after_free) {
  ends({{0, a}}, x, 4096, 50);
  launch(a, {writes_at(x + 64)}, 11);
  expect({kind::use_after_free});
  expect_words({"launch of scale at program.cu:11 may write bytes 64-4095 of block 1", "freed at program.cpp:50"});
}

// The pointer behind the last element: the block there is not the launch's.
TEST_F(told_launches, with_an_end_pointer_do_not_use_the_next_block) {
  begins(a, x + 4096, 4096, 60);
  launch(a, {reads_at(x), reads_at(x + 4096)}, 11);
  ends({{0, a}}, x + 4096, 4096, 50);
  launch(a, {reads_at(x), reads_at(x + 4096)}, 12);
  expect_none();
}

// kernel(in, out), and kernel(out, in): neither is an end.
TEST_F(told_launches, of_neighbours_with_other_signatures_use_both) {
  begins(a, x + 4096, 4096, 60);
  launch(a, {reads_at(x), writes_at(x + 4096)}, 11);
  read(b, x + 4096, 4096);
  expect({kind::race});
  launch(a, {reads_at(x + 4096), reads_at(x)}, 12);
  write(b, x + 4096, 4096);
  EXPECT_EQ(kinds().size(), 2u) << text();
  EXPECT_EQ(kinds().back(), kind::race);
}

TEST_F(told_launches, of_an_earlier_block_meet_no_new_one_there) {
  launch(b, {writes_at(x)}, 11);
  witness->marked({0, b}, x);
  ends({{0, a}}, x, 4096, 50);
  calls.device_done(0);
  begins(a, x, 2048, 51);
  launch(a, {writes_at(x)}, 12);
  expect_none();
}

// As for declared uses: earlier work may still use the memory.
TEST_F(told_launches, without_a_wait_for_the_allocation_race) {
  write(a, block(a), 64);
  address const y = block(a);
  launch(b, {writes_at(y)}, 11);
  expect({kind::race});
  expect_words({"No wait orders that after the allocation on stream 1"});
}

TEST_F(told_launches, are_seen_by_a_handover) {
  launch(b, {writes_at(x)}, 11);
  witness->handed_over({0, a}, x, 4096, {"program.cpp", "", 50});
  expect({kind::race});
}

TEST_F(told_launches, are_seen_by_an_unmap) {
  for (bool const waits : {true, false}) {
    address const y = addresses();
    EXPECT_TRUE(machine->release(map(y)).ok());
    begins(a, y, 4096, 60);
    launch(b, {writes_at(y)}, 11);
    if (waits) {
      EXPECT_TRUE(machine->synchronize_device(0).ok());
    }
    EXPECT_TRUE(machine->unmap(y, page).ok());
    EXPECT_EQ(kinds().size(), waits ? 0u : 1u) << text();
  }
  expect({kind::unmapped_in_use});
  expect_words({"while launch of scale at program.cu:11 may write 4096 bytes there on stream 2"});
}

// Beside a million unfinished uses a block keeps some; what it forgets is said.
TEST_F(told_launches, of_too_many_ranges_are_forgotten_and_said) {
  for (int i = 0; i < 1000; ++i)
    launch(a, {writes_at(x + static_cast<address>(i))}, 11);
  EXPECT_GT(judge->unseen().forgotten_uses, 0u);
  EXPECT_NE(judge->unseen().text().find("uses of blocks with too many unfinished ones"), std::string::npos);
  launch(b, {writes_at(x)}, 12);
  expect({kind::possible_race});
}

}  // namespace
}  // namespace weir::driver::check
