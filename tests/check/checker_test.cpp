// The checker, call by call: order, memory seen through two mappings, block lifetimes, pages, leaks.
// Threads: one, but where a test says so.
#include <sys/mman.h>

#include <functional>

#include "tests/check/bench.h"

namespace weir::driver::check {
namespace {

struct checker : bench {};
using all = std::vector<kind>;

TEST_F(checker, memory_seen_through_two_mappings_is_one_memory) {
  address const a = addresses(), b = addresses();
  auto const h = map(a);
  map(b, h);
  auto const s = stream(), t = stream();
  write(s, a);
  write(t, b + 64);
  EXPECT_EQ(kinds(), all{});
  read(t, b);
  EXPECT_EQ(kinds(), (all{kind::race})) << text();
  EXPECT_NE(text().find("through another mapping"), std::string::npos) << text();
}

TEST_F(checker, other_pages_at_the_same_addresses_are_other_memory) {
  address const at = addresses();
  auto const s = stream(), t = stream();
  auto const first = map(at);
  write(s, at);
  EXPECT_TRUE(machine->synchronize_stream(0, s).ok());
  write(s, at);
  EXPECT_TRUE(machine->synchronize_stream(0, s).ok());
  EXPECT_TRUE(machine->unmap(at, page).ok());
  map(at);
  write(t, at);
  EXPECT_EQ(kinds(), all{}) << text();
  EXPECT_TRUE(machine->release(first).ok());
}

TEST_F(checker, pages_go_only_when_their_last_use_is_seen_complete) {
  address const at = memory();
  auto const s = stream();
  write(s, at);
  EXPECT_TRUE(machine->unmap(at, page).ok());
  EXPECT_EQ(kinds(), (all{kind::unmapped_in_use})) << text();
}

TEST_F(checker, pages_with_complete_uses_are_forgotten) {
  address const at = memory();
  auto const s = stream(), t = stream();
  write(s, at);
  order(s, t);
  EXPECT_TRUE(machine->synchronize_stream(0, t).ok()) << "which completes s as well";
  EXPECT_TRUE(machine->unmap(at, page).ok());
  EXPECT_EQ(kinds(), all{}) << text();
}

TEST_F(checker, use_after_free_names_both_places) {
  address const at = memory();
  auto const s = stream();
  begins(s, at, 256, 10);
  ends({{0, s}}, at, 256, 11);
  write(s, at + 32);
  EXPECT_EQ(kinds(), (all{kind::use_after_free}));
  EXPECT_NE(text().find("fill writes bytes 32-95 of block 1 of gpu:0 (256 B, allocated at program.cpp:10)"),
            std::string::npos)
      << text();
  EXPECT_NE(text().find("freed at program.cpp:11"), std::string::npos) << text();
  begins(s, at, 256, 12);
  write(s, at + 32);
  EXPECT_EQ(kinds().size(), 1u) << "the next block's";
}

TEST_F(checker, freeing_while_a_stream_without_a_mark_uses_the_block) {
  address const at = memory();
  auto const s = stream(), t = stream();
  begins(s, at, 256, 10);
  read(t, at);
  ends({{0, s}}, at, 256, 11);
  EXPECT_EQ(kinds(), (all{kind::freed_in_use})) << text();
  EXPECT_NE(text().find("record_stream"), std::string::npos) << text();
}

TEST_F(checker, a_free_is_right_with_mark_order_or_completion) {
  auto const s = stream(), t = stream();
  address const x = memory(), y = memory(), z = memory();
  for (address const at : {x, y, z})
    begins(s, at, 256, 10);
  read(t, x);
  ends({{0, s}, {0, t}}, x, 256, 11);
  read(t, y);
  order(t, s);
  ends({{0, s}}, y, 256, 12);
  read(t, z);
  EXPECT_TRUE(machine->synchronize_stream(0, t).ok());
  ends({{0, s}}, z, 256, 13);
  EXPECT_EQ(kinds(), all{}) << text();
}

TEST_F(checker, reuse_before_the_marked_stream_is_a_weir_defect) {
  address const at = memory();
  auto const s = stream(), t = stream(), u = stream();
  begins(s, at, 256, 10);
  order(s, t);
  read(t, at);
  write(u, at + 4096);
  ends({{0, s}, {0, t}}, at, 256, 11);
  order(s, u);
  begins(u, at, 128, 12);
  EXPECT_EQ(kinds(), (all{kind::handed_out_early})) << text();
  EXPECT_NE(text().find("allocated at program.cpp:12"), std::string::npos) << text();
}

TEST_F(checker, a_mark_counts_without_a_declared_use) {
  address const at = memory();
  auto const s = stream(), t = stream();
  begins(s, at, 256, 10);
  write(t, memory());
  ends({{0, s}, {0, t}}, at, 256, 11);
  begins(s, at, 256, 12);
  EXPECT_EQ(kinds(), (all{kind::handed_out_early})) << text();
}

// It is no error of the program, whichever streams the free names. weir has to wait for it.
TEST_F(checker, a_mark_that_the_free_does_not_name_counts) {
  auto const s = stream(), t = stream();
  for (bool const waits : {true, false}) {
    address const at = memory();
    begins(s, at, 256, 10);
    witness->marked({0, t}, at + 100);
    order(s, t);
    read(t, at);
    ends({{0, s}}, at, 256, 11);
    if (waits)
      order(t, s);
    begins(s, at, 256, 12);
    EXPECT_EQ(kinds(), waits ? all{} : all{kind::handed_out_early}) << text();
  }
}

TEST_F(checker, reuse_behind_order_or_completion_is_right) {
  address const at = memory();
  auto const s = stream(), t = stream(), u = stream();
  for (int i = 0; i < 5; ++i) {
    begins(s, at, 256, 10);
    write(s, at);
    order(s, t);
    read(t, at);
    ends({{0, s}, {0, t}}, at, 256, 11);
    if (i % 2)
      order(t, s);
    else
      EXPECT_TRUE(machine->synchronize_stream(0, t).ok());
  }
  order(s, u);
  order(t, u);
  begins(u, at, 256, 12);
  EXPECT_EQ(kinds(), all{}) << text();
}

TEST_F(checker, a_block_handed_out_twice_is_reported) {
  address const at = memory();
  auto const s = stream();
  begins(s, at, 256, 10);
  begins(s, at + 128, 256, 11);
  EXPECT_EQ(kinds(), (all{kind::handed_out_early})) << text();
  EXPECT_NE(text().find("still held"), std::string::npos) << text();
}

TEST_F(checker, weirs_own_polls_and_waits_excuse_weir_and_no_program) {
  address const x = memory(), y = memory();
  auto const s = stream(), t = stream();
  begins(s, x, 256, 10);
  write(s, x);
  write(s, y);
  ends({{0, s}}, x, 256, 11);
  {
    base::internal_ordering const own(true);
    EXPECT_TRUE(machine->synchronize_stream(0, s).ok());
  }
  begins(t, x, 256, 12);
  EXPECT_EQ(kinds(), all{}) << text();
  read(t, y);
  EXPECT_EQ(kinds(), (all{kind::race})) << "another run would not have polled";
  witness->relied_on({0, t}, {0, s});
  read(t, y);
  EXPECT_EQ(judge->findings()[0].times, 1u) << "the program asked for that order: it was known already";
}

// Two blocking streams write, and between them weir waits or records on the legacy stream for itself.
struct legacy_checker : checker {
  template <class Own>
  void expect_promised(bool is_promised, Own own, bool is_internal) {
    address const x = memory(), y = memory();
    auto const s = stream(0, stream_kind::blocking), t = stream(0, stream_kind::blocking);
    write(s, x);
    begins(s, y, 256, 10);
    write(s, y);
    ends({{0, s}}, y, 256, 11);
    {
      base::internal_ordering const by_weir(is_internal);
      own();
    }
    begins(t, y, 256, 12);  // weir may rely on its own call
    write(t, x);
    EXPECT_EQ(kinds(), is_promised ? all{} : (all{kind::race})) << text();
  }
};
TEST_F(legacy_checker, waits_of_weir_itself_promise_no_order) {
  auto const e = event();
  EXPECT_TRUE(machine->record(0, stream(), e).ok());
  auto const waits = [&] { EXPECT_TRUE(machine->wait(0, stream_handle::legacy, e).ok()); };
  expect_promised(true, waits, false);
  expect_promised(false, waits, true);
}
TEST_F(legacy_checker, records_of_weir_itself_promise_no_order) {
  auto const records = [&] { EXPECT_TRUE(machine->record(0, stream_handle::legacy, event()).ok()); };
  expect_promised(true, records, false);
  expect_promised(false, records, true);
}
TEST_F(legacy_checker, waits_for_the_device_by_weir_promise_no_order) {
  write(stream_handle::legacy, memory());
  expect_promised(
      false, [&] { EXPECT_TRUE(machine->synchronize_device(0).ok()); }, true);
}

TEST_F(checker, a_claim_to_have_known_is_believed_as_far_as_it_is_so) {
  address const x = memory();
  auto const s = stream(), t = stream();
  write(s, x);
  witness->relied_on({0, t}, {0, s});
  witness->relied_on({}, {0, s});
  read(t, x);
  EXPECT_EQ(kinds(), (all{kind::race}));
}

TEST_F(checker, over_waits_count_what_exceeds_the_memorys_use) {
  address const at = memory(), elsewhere = memory();
  auto const s = stream(), t = stream();
  begins(s, at, 256, 10);
  write(s, at);
  ends({{0, s}}, at, 256, 11);
  for (int i = 0; i < 7; ++i)
    write(s, elsewhere);
  {
    base::internal_ordering const own(true);
    order(s, t);
  }
  witness->wait_inserted({0, t}, {0, s}, at, 256);
  auto const n = judge->counted();
  EXPECT_EQ(n.waits, 1u);
  EXPECT_EQ(n.operations, 7u);
}

TEST_F(checker, a_refused_call_leaves_no_trace) {
  address const at = memory();
  auto const s = stream(), t = stream();
  auto const before = judge->position(0, s).n;
  for (auto const name : {"fill", "copy", "enqueue", "host_function", "record", "wait"}) {
    sim->fail_call(name, 1, code::failed);
  }
  EXPECT_FALSE(machine->fill(0, s, reinterpret_cast<void*>(at), 0, 1, 64).ok());
  EXPECT_FALSE(machine->copy_peer(0, s, reinterpret_cast<void*>(at), 5, reinterpret_cast<void*>(at + 64), 0, 64).ok());
  EXPECT_FALSE(machine->copy(0, s, reinterpret_cast<void*>(at), reinterpret_cast<void*>(at + 64), 64).ok());
  EXPECT_FALSE(machine->enqueue(0, s, {}, {}).ok());
  EXPECT_FALSE(machine->host_function(0, s, {}).ok());
  auto const e = event();
  EXPECT_FALSE(machine->record(0, s, e).ok());
  EXPECT_FALSE(machine->wait(0, s, e).ok());
  EXPECT_EQ(judge->position(0, s).n, before);
  write(t, at);
  EXPECT_EQ(kinds(), all{}) << text();
  sim->fail_call("unmap", 1, code::failed);
  EXPECT_FALSE(machine->unmap(at, page).ok());
  write(s, at);
  EXPECT_EQ(kinds().back(), kind::race) << "the page is still the same: " << text();
}

TEST_F(checker, a_lost_device_leaves_nothing_to_race_with) {
  address const at = memory();
  auto const s = stream(), t = stream(1);
  write(s, at);
  sim->lose_device(0);
  EXPECT_EQ(machine->query_stream(0, s).what, code::lost);
  EXPECT_TRUE(machine->fill(1, t, reinterpret_cast<void*>(at), 1, 1, 64).ok());
  EXPECT_EQ(kinds(), all{}) << text();
}

TEST_F(checker, a_reused_handle_is_a_new_stream_or_event) {
  auto m = sim::make({.devices = 1, .memory = 16_MiB, .schedule = scheduling::seeded, .seed = 5});
  auto w = wrap(std::move(m.machine));
  ASSERT_TRUE(w.machine->open(0).ok());
  auto const s = w.machine->create_stream(0, stream_kind::independent, 0).value;
  auto const first = w.control->position(0, s).stream;
  auto const e = w.machine->create_event(0, event_kind::order_only).value;
  ASSERT_TRUE(w.machine->enqueue(0, s, {}, {}).ok());
  ASSERT_TRUE(w.machine->record(0, s, e).ok());
  ASSERT_TRUE(w.machine->destroy_event(0, e).ok());
  ASSERT_TRUE(w.machine->destroy_stream(0, s).ok());
  auto const again = w.machine->create_stream(0, stream_kind::independent, 0).value;
  auto const other = w.machine->create_stream(0, stream_kind::independent, 0).value;
  ASSERT_EQ(again, s) << "the machine gives handles back at once";
  EXPECT_NE(w.control->position(0, again).stream, first);
  auto const e2 = w.machine->create_event(0, event_kind::order_only).value;
  ASSERT_EQ(e2, e);
  ASSERT_TRUE(w.machine->wait(0, other, e2).ok());
  EXPECT_FALSE(w.control->ordered({first, 1}, 0, other)) << "never recorded: nothing to wait for";
}

struct pinned_page {
  explicit pinned_page(driver& d)
      : machine(d),
        at(static_cast<char*>(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    EXPECT_TRUE(machine.pin(at, 4096).ok());
  }
  ~pinned_page() {
    EXPECT_TRUE(machine.unpin(at).ok());
    ::munmap(at, 4096);
  }
  driver& machine;
  char* at;
};

TEST_F(checker, a_pinned_source_changed_in_flight_is_reported) {
  address const x = memory();
  auto const s = stream();
  pinned_page const p(*machine);
  EXPECT_TRUE(machine->copy(0, s, reinterpret_cast<void*>(x), p.at, 100).ok());
  p.at[99] = 1;
  EXPECT_TRUE(machine->synchronize_stream(0, s).ok());
  EXPECT_EQ(kinds(), (all{kind::source_changed})) << text();
}

// The host may also change bytes beside the copied ones.
TEST_F(checker, a_pinned_source_may_change_after_completion) {
  address const x = memory();
  auto const s = stream();
  auto const e = event();
  pinned_page const p(*machine);
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(machine->copy(0, s, reinterpret_cast<void*>(x), p.at, 100).ok());
    EXPECT_TRUE(machine->record(0, s, e).ok());
    ++p.at[100];
    EXPECT_TRUE(machine->synchronize_event(e).ok());
    ++p.at[99];
  }
  EXPECT_EQ(kinds(), all{}) << text();
}

TEST_F(checker, a_pinned_source_that_a_stream_writes_is_ignored) {
  address const x = memory();
  auto const s = stream(), t = stream();
  pinned_page const p(*machine);
  auto* const device = reinterpret_cast<void*>(x);
  auto const scribble = [&](stream_handle on, int value) {
    struct write {
      char* at;
      int value;
    };
    EXPECT_TRUE(machine
                    ->host_function(0, on,
                                    {[](void* w) {
                                       *static_cast<write*>(w)->at = static_cast<char>(static_cast<write*>(w)->value);
                                     },
                                     [](void* w) { delete static_cast<write*>(w); }, new write{p.at, value}})
                    .ok());
  };
  EXPECT_TRUE(machine->fill(0, s, device, 7, 1, 100).ok());
  EXPECT_TRUE(machine->copy(0, s, p.at, device, 100).ok()) << "still to come";
  EXPECT_TRUE(machine->copy(0, s, device, p.at, 100).ok());
  EXPECT_TRUE(machine->synchronize_stream(0, s).ok());
  scribble(s, 8);
  EXPECT_TRUE(machine->copy(0, s, device, p.at, 100).ok()) << "after a host function that is still to come";
  EXPECT_TRUE(machine->synchronize_stream(0, s).ok());
  EXPECT_TRUE(machine->copy(0, s, device, p.at, 100).ok());
  order(s, t);
  scribble(t, 9);
  EXPECT_TRUE(machine->synchronize_stream(0, t).ok());
  EXPECT_TRUE(machine->copy(0, s, device, p.at, 100).ok());
  EXPECT_TRUE(machine->fill(0, s, device, 3, 1, 100).ok());
  EXPECT_TRUE(machine->copy(0, s, p.at, device, 100).ok());
  EXPECT_TRUE(machine->synchronize_stream(0, s).ok());
  EXPECT_EQ(kinds(), all{}) << text();
}

TEST_F(checker, a_wait_that_cannot_end_reports_its_cycle) {
  auto const s = stream(), t = stream();
  auto const e = event();
  auto const gate = machine->hold(0, t).value;
  EXPECT_TRUE(machine->record(0, t, e).ok());
  EXPECT_TRUE(machine->wait(0, s, e).ok());
  base::call_site const in(true, "synchronize", {"program.cpp", "", 7});
  EXPECT_EQ(machine->synchronize_stream(0, s).what, code::failed);
  EXPECT_EQ(kinds(), (all{kind::stuck}));
  EXPECT_NE(text().find("synchronize at program.cpp:7 waits forever: "), std::string::npos) << text();
  EXPECT_NE(text().find("gate"), std::string::npos) << text();
  EXPECT_TRUE(machine->open_gate(gate).ok());
  EXPECT_TRUE(machine->synchronize_stream(0, s).ok());
  EXPECT_EQ(kinds().size(), 1u);
}

TEST_F(checker, the_census_names_all_that_was_never_given_back) {
  EXPECT_EQ(judge->census(), (std::vector<std::string>{}));
  auto const s = stream();
  auto const e = event();
  address const at = addresses();
  auto const h = map(at);
  auto const segment = machine->create_segment(1, page).value;
  void* const host = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_TRUE(machine->pin(host, 4096).ok());
  auto const left = judge->census();
  EXPECT_EQ(left, (std::vector<std::string>{"a stream of gpu:0", "an event of gpu:0", "a reservation of 65536 bytes",
                                            left[3], left[4], left[5], "a memory handle of 65536 bytes of gpu:0"}));
  EXPECT_TRUE(machine->unpin(host).ok());
  EXPECT_TRUE(machine->release_segment(1, segment).ok());
  EXPECT_TRUE(machine->unmap(at, page).ok());
  EXPECT_TRUE(machine->release(h).ok());
  EXPECT_TRUE(machine->unreserve(at, page).ok());
  EXPECT_TRUE(machine->destroy_event(0, e).ok());
  EXPECT_TRUE(machine->destroy_stream(0, s).ok());
  EXPECT_EQ(judge->census(), (std::vector<std::string>{}));
  ::munmap(host, 4096);
}

}  // namespace
}  // namespace weir::driver::check
