// Memory of two processes: both see the same bytes, in order, and the memory is not reused while it is open.
// Threads: one, and in one case a second that waits; the other process has its own.
#include <atomic>
#include <filesystem>
#include <future>
#include <optional>

#include "tests/peer/other_process.h"
#include "tests/peer/share_fixture.h"
#include "weir/observe.h"

namespace weir {
namespace {

using namespace test::sharing;

// Bytes -----------------------------------------------------------------------------------------------------

// Replies with the bytes that it reads.
WEIR_ROLE(reads_and_writes_back) {
  test::machine m(small());
  auto const b = line.receive();
  ASSERT_EQ(b.size(), some_bytes);
  ASSERT_EQ(read(b.data()), test::pattern(some_bytes, 1));
  write(b.data(), test::pattern(some_bytes, 2));
  line.signal(7, default_stream(0));
  ASSERT_EQ(line.wait(), 8u);
}

TEST(shared_memory, is_the_same_bytes_for_both) {
  test::machine m(small());
  test::other_process other("reads_and_writes_back");
  exportable_buffer const b(some_bytes);
  write(b.data(), test::pattern(some_bytes, 1));
  other.line().send(b, default_stream(0));
  EXPECT_EQ(other.line().wait(), 7u);
  EXPECT_EQ(read(b.data()), test::pattern(some_bytes, 2));
  other.line().signal(8, default_stream(0));
  EXPECT_EQ(other.end(), "exit 0");
}

// A buffer of device 0, sent and opened for device 1, and memory of device 1.
struct opened_for_another_device {
  test::machine m{small()};
  std::pair<share_channel, share_channel> ends = lines();
  exportable_buffer theirs{some_bytes, 0};
  imported_buffer o = open();
  buffer mine{some_bytes, {.on = 1}};

  imported_buffer open() {
    write(theirs.data(), test::pattern(some_bytes, 3));
    ends.first.send(theirs, default_stream(0));
    return ends.second.receive(1);
  }
  void expect_it_arrived() { EXPECT_EQ(test::read_back(mine.data(), some_bytes, 1), test::pattern(some_bytes, 3)); }
};

// Regression: a buffer that ended beside a capture was mapped until the runtime ended, and its owner lost the memory.
TEST(opened_memory, that_ended_beside_a_capture_is_released_later) {
  opened_for_another_device its;
  stream const captured{device(0)};
  auto const handle = streams::clock_of(captured).handle();
  imported_buffer second = its.open();
  for (imported_buffer* const one : {&its.o, &second}) {
    int const before = its.theirs.importers();
    ASSERT_TRUE(its.m.driver().begin_capture(0, handle, driver::capture_mode::global).ok());
    one->reset();
    auto const kept = its.m.driver().end_capture(0, handle);
    EXPECT_TRUE(kept.ok()) << "the capture was spoiled";
    EXPECT_EQ(its.theirs.importers(), before) << "work may still use it";
    imported_buffer().reset();
    if (one == &its.o)
      continue;
    (void)its.open();  // any later one releases what waits
    EXPECT_EQ(its.theirs.importers(), 0);
  }
}

TEST(shared_memory, opened_for_another_device_is_read_by_it) {
  opened_for_another_device its;
  EXPECT_EQ(its.o.device(), device(0));
  copy(default_stream(1), its.mine.data(), its.o.data(), some_bytes);
  its.expect_it_arrived();
}

// The owner's device then has no work of this process, and its streams have nothing to wait for.
TEST(opened_memory, is_copied_to_and_from_another_device) {
  opened_for_another_device its;
  auto& [m, ends, theirs, o, mine] = its;
  stream const s(device(1));
  mine.record_stream(s);
  {
    test::held gate(m, default_stream(0));
    copy(s, mine.data(), o.data(), some_bytes);
    s.synchronize();
    copy(mine.data(), o.data(), some_bytes);
    current_stream(1).synchronize();
  }
  its.expect_it_arrived();
  test::held gate(m, s);
  copy(s, o.data(), mine.data(), some_bytes);
  EXPECT_TRUE(default_stream(0).query());
}

TEST(shared_memory, opened_for_a_device_without_a_link_is_refused) {
  simulated apart = small();
  apart.peers = simulated::links::none;
  test::machine m(apart);
  auto [here, there] = lines();
  exportable_buffer const b(some_bytes, 0);
  here.send(b, default_stream(0));
  EXPECT_THROW((void)there.receive(1), not_supported);
  EXPECT_EQ(b.importers(), 0);
  EXPECT_EQ(m.get().part<peer::imports>().mapped(), 0u);
}

TEST(a_signal, comes_after_the_work_before_it) {
  test::machine m(small());
  auto [here, there] = lines();
  stream const s(device(0));
  std::future<std::uint64_t> heard;
  std::atomic<bool> opened{false};
  {
    test::held gate(m, s);
    auto sends = std::async(std::launch::async, [&] {
      runtime_guard const in(m.own);
      here.signal(5, s);
    });
    heard = std::async(std::launch::async, [&] {
      auto const n = there.wait();
      EXPECT_TRUE(opened);
      return n;
    });
    opened = true;
    gate.open();
    sends.get();
  }
  EXPECT_EQ(heard.get(), 5u);
}

TEST(a_signal, waits_for_no_more_than_its_event) {
  test::machine m(small());
  auto [here, there] = lines();
  stream const s(device(0));
  event e;
  e.record(s);
  test::held gate(m, s);
  here.signal(6, e);
  EXPECT_EQ(there.wait(), 6u);
}

// On a stepped machine nothing runs until a call waits for it.
TEST(a_signal, is_sent_when_its_stream_or_event_is_done) {
  simulated like = small();
  like.schedule = simulated::scheduling::stepped;
  test::machine m(like);
  auto [here, there] = lines();
  stream const s(device(0));
  int done = 0;
  event e;
  launch_host(s, [&] { ++done; });
  e.record(s);
  here.signal(7, e);
  EXPECT_EQ(done, 1);
  launch_host(s, [&] { ++done; });
  here.signal(8, s);
  EXPECT_EQ(done, 2);
  EXPECT_EQ(there.wait(), 7u);
  EXPECT_EQ(there.wait(), 8u);
}

// Imports ---------------------------------------------------------------------------------------------------

TEST(an_import, is_mapped_once_however_often_it_is_opened) {
  test::machine m(small());
  auto [here, there] = lines();
  exportable_buffer const b(some_bytes);
  auto& imports = m.get().part<peer::imports>();
  here.send(b, default_stream(0));
  here.send(b, default_stream(0));
  auto first = there.receive(), second = there.receive();
  EXPECT_EQ(first.data(), second.data());
  EXPECT_EQ(imports.mapped(), 1u);
  EXPECT_EQ(b.importers(), 2);
  void const* const at = first.data();
  first.release(default_stream(0));
  second.release(default_stream(0));
  EXPECT_EQ(b.importers(), 0);
  here.send(b, default_stream(0));
  EXPECT_EQ(there.receive().data(), at) << "it was kept";
  EXPECT_EQ(imports.mapped(), 1u);
}

TEST(an_import, goes_when_its_owner_has_it_no_more) {
  test::machine m(small());
  auto [here, there] = lines();
  auto& imports = m.get().part<peer::imports>();
  {
    exportable_buffer const b(some_bytes);
    here.send(b, default_stream(0));
    (void)there.receive();
  }
  EXPECT_GT(m.get().part<peer::exports>().forget_idle(), 0u);
  exportable_buffer const other(some_bytes);
  here.send(other, default_stream(0));
  auto const o = there.receive();
  EXPECT_EQ(imports.mapped(), 1u);
}

std::ptrdiff_t open_files() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

TEST(a_handle, has_one_descriptor_that_goes_with_it) {
  struct counter final : driver::fault_injector::watcher {
    void comes(driver::call c) noexcept override { exported += c == driver::call::export_handle; }
    int exported = 0;
  } seen;
  test::machine m(small());
  auto [here, there] = lines();
  synchronize(0);
  auto const before = open_files();
  driver::fault_injector_of(m.driver())->watch(&seen);
  {
    exportable_buffer const b(some_bytes);
    share_pool pool;
    exportable_buffer const one = pool.allocate(10), two = pool.allocate(10);
    for (exportable_buffer const* which : {&b, &one, &two, &b, &one, &two}) {
      here.send(*which, default_stream(0));
      (void)there.receive();
    }
    EXPECT_EQ(seen.exported, 2) << "its own, and the pool's";
  }
  driver::fault_injector_of(m.driver())->watch(nullptr);
  EXPECT_GT(m.get().part<peer::exports>().forget_idle(), 0u);
  exportable_buffer const next(some_bytes);
  here.send(next, default_stream(0));
  auto const o = there.receive();  // unmaps the old import and closes its last socket
  EXPECT_EQ(m.get().part<peer::imports>().mapped(), 1u);
  EXPECT_EQ(open_files() - before, 6)
      << "of the last one alone: the machine's file, the descriptor and an end of the loan, on each side";
}

TEST(shared_memory, sent_often_keeps_few_descriptors) {
  test::machine m(small());
  auto [here, there] = lines();
  exportable_buffer const b(some_bytes);
  here.send(b, default_stream(0));
  auto const stays = there.receive();
  std::ptrdiff_t before = 0;
  for (int i = 0; i < 60; ++i) {
    here.send(b, default_stream(0));
    there.receive().release(default_stream(0));
    if (i == 0)
      before = open_files();
  }
  EXPECT_LE(open_files() - before, 10);
  EXPECT_EQ(b.importers(), 1) << "its loan is not over";
}

TEST(shared_memory, is_sent_where_descriptor_0_is_free) {
  int const kept = ::dup(0);
  {
    test::machine m(small());
    auto [here, there] = lines(1s);
    exportable_buffer const b(some_bytes);
    ::close(0);
    EXPECT_NO_THROW(here.send(b, default_stream(0))) << "the loan's end is 0";
    EXPECT_EQ(there.receive().size(), some_bytes);
  }
  ::dup2(kept, 0);
  ::close(kept);
}

// Lifetime --------------------------------------------------------------------------------------------------

WEIR_ROLE(holds_until_told) {
  test::machine m(small());
  auto b = line.receive();
  auto const before = read(b.data());
  line.signal(1, default_stream(0));
  ASSERT_EQ(line.wait(), 2u);
  ASSERT_EQ(read(b.data()), before) << "another process has written it";
  b.release(default_stream(0));
  line.signal(3, default_stream(0));
  (void)line.wait();
}

TEST(shared_memory, serves_no_other_while_an_importer_has_it) {
  test::machine m(small());
  test::other_process other("holds_until_told");
  auto b = std::make_optional<exportable_buffer>(some_bytes);
  void const* const at = b->data();
  write(b->data(), test::pattern(some_bytes, 1));
  other.line().send(*b, default_stream(0));
  EXPECT_EQ(other.line().wait(), 1u);
  EXPECT_EQ(b->importers(), 1);
  b.reset();
  exportable_buffer const next(some_bytes);
  EXPECT_NE(next.data(), at);
  write(next.data(), test::pattern(some_bytes, 9));
  other.line().signal(2, default_stream(0));
  EXPECT_EQ(other.line().wait(), 3u);
  EXPECT_EQ(exportable_buffer(some_bytes).data(), at) << "it was released, and serves again";
  other.line().signal(4, default_stream(0));
  EXPECT_EQ(other.end(), "exit 0");
}

TEST(shared_memory, comes_back_when_its_importer_was_killed) {
  test::machine m(small());
  synchronize(0);
  auto const before = m.driver().memory(0).value.free;
  test::other_process other("holds_until_told");
  auto b = std::make_optional<exportable_buffer>(some_bytes);
  other.line().send(*b, default_stream(0));
  EXPECT_EQ(other.line().wait(), 1u);
  other.kill();
  EXPECT_EQ(b->importers(), 0);
  EXPECT_THROW((void)other.line().wait(), peer_disconnected);
  EXPECT_THROW(other.line().send(*b, default_stream(0)), peer_disconnected);
  b.reset();
  { exportable_buffer const next(some_bytes); }
  m.get().part<peer::exports>().forget_idle();
  EXPECT_EQ(m.driver().memory(0).value.free, before);
}

TEST(shared_memory, that_waits_to_be_opened_serves_no_other) {
  test::machine m(small());
  auto [here, there] = lines();
  void const* at = nullptr;
  {
    exportable_buffer const b(some_bytes);
    at = b.data();
    write(b.data(), test::pattern(some_bytes, 4));
    here.send(b, default_stream(0));
    EXPECT_EQ(b.importers(), 1);
  }
  exportable_buffer const next(some_bytes);
  EXPECT_NE(next.data(), at);
  write(next.data(), test::pattern(some_bytes, 5));
  EXPECT_EQ(read(there.receive().data()), test::pattern(some_bytes, 4));
}

TEST(shared_memory, that_was_never_opened_serves_after_the_line) {
  test::machine m(small());
  void const* at = nullptr;
  {
    auto [here, there] = lines();
    exportable_buffer const b(some_bytes);
    at = b.data();
    here.send(b, default_stream(0));
  }
  EXPECT_EQ(exportable_buffer(some_bytes).data(), at);
}

TEST(shared_memory, serves_the_next_when_its_streams_are_done) {
  test::machine m(small());
  stream const s(device(0));
  for (bool const named : {false, true}) {  // named: as its home, at its beginning
    test::held gate(m, s);
    exportable_buffer b = named ? exportable_buffer(s, some_bytes) : exportable_buffer(some_bytes);
    void* const at = b.data();
    if (!named)
      b.record_stream(s);
    b.reset();
    EXPECT_NE(exportable_buffer(some_bytes).data(), at) << named;
    gate.open();
    s.synchronize();
    EXPECT_EQ(exportable_buffer(some_bytes).data(), at) << named;
  }
}

TEST(shared_memory, takes_the_allocators_cached_memory) {
  test::machine m({.devices = 1, .memory = 16_MiB});
  { buffer const b(14_MiB); }
  synchronize(0);
  EXPECT_EQ(exportable_buffer(9_MiB).size(), 9_MiB);
}

TEST(the_checker, names_an_unrecorded_user_of_shared_memory) {
  test::machine m(simulated{.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::stepped},
                  {.check_races = true});
  stream const s(device(0));
  {
    exportable_buffer const b(some_bytes);
    stream_guard const on(s);
    fill(b.data(), std::byte{1}, some_bytes);
  }
  auto const found = race_reports();
  ASSERT_FALSE(found.empty());
  EXPECT_NE(found[0].text.find("was freed at"), std::string::npos) << found[0].text;
}

TEST(the_checker, has_nothing_against_streams_that_were_recorded) {
  test::machine m(simulated{.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::seeded},
                  {.check_races = true});
  for (int i = 0; i < 20; ++i) {
    stream const s(device(0));
    exportable_buffer const b(some_bytes);
    s.wait(default_stream(0));
    stream_guard const on(s);
    b.record_stream(s);
    fill(b.data(), std::byte{1}, some_bytes);
  }
  synchronize(0);
  for (auto const& f : race_reports())
    ADD_FAILURE() << f.text;
}

WEIR_ROLE(sends_and_is_killed) {
  test::machine m(small());
  exportable_buffer const b(some_bytes);
  write(b.data(), test::pattern(some_bytes, 6));
  line.send(b, default_stream(0));
  (void)line.wait();
  ::kill(::getpid(), SIGKILL);
}

TEST(opened_memory, keeps_its_bytes_when_its_owner_is_killed) {
  test::machine m(small());
  test::other_process other("sends_and_is_killed");
  auto b = other.line().receive();
  other.line().signal(1, default_stream(0));
  EXPECT_EQ(other.end(), "signal 9");
  EXPECT_THROW((void)other.line().wait(), peer_disconnected);
  EXPECT_EQ(read(b.data()), test::pattern(some_bytes, 6));
  b.reset();
}

TEST(memory_on_its_way, cannot_be_opened_once_its_owner_was_killed) {
  test::machine m(small());
  test::other_process other("sends_and_is_killed");
  other.line().signal(1, default_stream(0));
  EXPECT_EQ(other.end(), "signal 9");
  EXPECT_THROW((void)other.line().receive(), peer_disconnected);
}

}  // namespace
}  // namespace weir
