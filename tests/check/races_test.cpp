// Races, each beside a correct twin. The report does not depend on the machine's order.
// Threads: one, but where a test makes more.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <set>
#include <thread>

#include "runtime/base/sync.h"
#include "tests/check/programs.h"

namespace weir::check_tests {
namespace {

constexpr size_t size = 4096;

// The checker looks page by page. The report names all bytes that both uses share.
TEST(races, of_many_pages_name_all_bytes_of_both_uses) {
  auto const all = found([&] {
    stream a, b;
    buffer x(6_MiB);
    a.ref().wait(current_stream()), b.ref().wait(current_stream());
    write(a, x.data(), 4_MiB);
    read(b, x.data<std::byte>() + 1_MiB, 5_MiB);
    synchronize();
  });
  ASSERT_EQ(all.size(), 1u);
  EXPECT_NE(all[0].text.find("bytes 1048576-4194303 of block 1"), std::string::npos) << all[0].text;
}

TEST(races, a_write_and_a_read_on_two_streams_that_nothing_orders) {
  int made = 0, wrote = 0, read_at = 0, streams = 0;
  auto const run = [&](bool right) {
    stream a, b;
    streams = __LINE__ - 1;
    buffer x(size);
    made = __LINE__ - 1;
    a.ref().wait(current_stream());
    write(a, x.data(), size), wrote = __LINE__;
    if (right)
      b.ref().wait(a);
    else
      b.ref().wait(current_stream());
    read(b, x.data(), size), read_at = __LINE__;
    synchronize();
  };
  auto const all = found([&] { run(false); });
  expect_one(
      all, "race",
      {"bytes 0-4095 of block 1 of gpu:0 (4096 B, allocated at " + line(made) + ")",
       "launch at " + line(wrote) + " writes them on stream 1",
       "launch at " + line(read_at) + " reads them on stream 2", "let stream 2 of gpu:0 wait for stream 1 of gpu:0",
       "No wait orders the two.", "Streams 1 and 2 were made at " + line(streams) + "."});
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].first.line(), static_cast<unsigned>(wrote));
  EXPECT_EQ(all[0].second.line(), static_cast<unsigned>(read_at));
  expect_none(found([&] { run(true); }));
}

TEST(races, a_wait_in_the_other_direction_is_named) {
  auto const run = [](bool right) {
    stream a, b;
    stream_guard const home{a.ref()};
    buffer x(size);
    for (int round = 0; round < 2; ++round) {  // b reads what a writes, and a does not wait for that
      if (right && round)
        a.ref().wait(b);
      write(a, x.data(), size);
      b.ref().wait(a);
      read(b, x.data(), size);
    }
    synchronize();
  };
  expect_one(
      found([&] { run(false); }), "race",
      {"stream 2 of gpu:0 comes after stream 1 of gpu:0, but not the reverse. Remedy: let stream 1 of gpu:0 wait "
       "for stream 2 of gpu:0"});
  expect_none(found([&] { run(true); }));
}

TEST(races, earlier_waits_in_both_directions_name_neither) {
  auto const all = found([] {
    stream a, b;
    stream_guard const home{a.ref()};
    buffer x(size);
    a.ref().wait(b);
    write(a, x.data(), size);
    b.ref().wait(a);
    read(b, x.data(), size);
    a.ref().wait(b);
    read(b, x.data(), size);
    write(a, x.data(), size);
    synchronize();
  });
  expect_one(all, "race", {"No wait orders the two. Remedy: let stream 1 of gpu:0 wait for stream 2 of gpu:0"});
}

TEST(races, reads_do_not_race_and_ranges_that_do_not_meet_neither) {
  expect_none(found([] {
    stream a, b;
    buffer x(size);
    write(a, x.data(), 100);
    read(a, x.data<char>() + 200, 100);
    read(b, x.data<char>() + 200, 100);
    write(b, x.data<char>() + 100, 100);
    synchronize();
  }));
}

TEST(races, one_byte_is_enough) {
  expect_one(found([] {
               stream a, b;
               buffer x(size);
               write(a, x.data(), 101);
               write(b, x.data<char>() + 100, 100);
               synchronize();
             }),
             "race", {"bytes 100-100 of block 1"});
}

TEST(races, order_is_transitive_through_streams_events_and_devices) {
  expect_none(found([] {
    stream a, b, c;
    stream_guard const home{a.ref()};
    buffer x(size);
    write(a, x.data(), size);
    event e;
    e.record(a);
    b.ref().wait(e);
    c.ref().wait(b);
    read(c, x.data(), size);
    write(c, x.data(), size);
    synchronize();
  }));
}

TEST(races, an_event_stands_for_its_last_record_at_the_wait) {
  auto const run = [](bool again) {
    stream a, b;
    stream_guard const home{a.ref()};
    buffer x(size), y(size);
    event e;
    e.record(a);
    write(a, x.data(), size);
    if (again)
      e.record(a);
    b.ref().wait(e);
    read(b, x.data(), size);
    synchronize();
  };
  EXPECT_EQ(found([&] { run(false); }).size(), 1u);
  expect_none(found([&] { run(true); }));
}

TEST(races, only_completion_that_the_host_asked_for_orders) {
  auto const run = [](int how) {
    stream a, b;
    stream_guard const home{a.ref()};
    buffer x(size);
    write(a, x.data(), size);
    if (how == 1)
      a.ref().synchronize();
    if (how == 2)
      synchronize();
    if (how == 3)
      a.ref().stamp().synchronize();
    if (how == 4) {
      while (!a.ref().query()) {
        if (by_hand)
          simulation::of(runtime::current()).step(a);
      }
    }
    read(b, x.data(), size);
    synchronize();
  };
  EXPECT_EQ(found([&] { run(0); }).size(), 1u);
  for (int how = 1; how <= 4; ++how)
    expect_none(found([&] { run(how); }));
}

// A poll's yes orders, even if the program ignores it. Only runs with the answer no are reported.
TEST(races, an_ignored_poll_excuses_the_runs_where_it_was_yes) {
  std::string first;
  int excused = 0;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    bool was_done = false;
    auto const reports =
        found_in({.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::seeded, .seed = seed}, [&] {
          stream a, b;
          stream_guard const home{a.ref()};
          buffer x(size);
          write(a, x.data(), size);
          was_done = a.ref().query();
          read(b, x.data(), size);
          synchronize();
        });
    ASSERT_EQ(reports.size(), was_done ? 0u : 1u) << "seed " << seed << "\n" << texts(reports);
    excused += was_done;
    if (first.empty())
      first = texts(reports);
    EXPECT_EQ(texts(reports), was_done ? std::string() : first) << "seed " << seed;
  }
  EXPECT_GT(excused, 0);
  EXPECT_LT(excused, 50);
}

// If one host thread sees work complete, later work of all threads is ordered,
// because one may have informed another. A race needs both enqueues before either
// completion is seen. The report names the earlier work first.
TEST(races, unordered_host_threads_are_reported_in_some_runs) {
  int excused = 0, reported = 0;
  unsigned lines[2] = {};
  std::set<std::string> said;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    bool given[2] = {}, waits[2] = {}, seen[2] = {}, after_the_other = false, neither_waited = false;
    auto const reports =
        found_in({.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::seeded, .seed = seed}, [&] {
          stream on[2];
          buffer const x(size);
          for (auto& s : on)
            s.wait(current_stream());
          auto machine = simulation::of(runtime::current());
          for (int k : {0, 1}) {
            machine.spawn(std::string(1, static_cast<char>('a' + k)), [&, k] {
              after_the_other |= seen[1 - k];
              if (k == 0)
                write(on[0], x.data(), size), lines[0] = __LINE__;
              else
                write(on[1], x.data(), size), lines[1] = __LINE__;
              given[k] = true;
              if (seed % 2)
                base::yield_thread();
              neither_waited |= given[1 - k] && !waits[0] && !waits[1];
              waits[k] = true;
              on[k].synchronize();
              seen[k] = true;
            });
          }
          machine.join();
          synchronize();
        });
    if (after_the_other)
      expect_none(reports);
    if (neither_waited) {
      EXPECT_EQ(reports.size(), 1u) << "seed " << seed << "\n" << texts(reports);
    }
    excused += after_the_other, reported += neither_waited;
    for (auto const& r : reports) {
      EXPECT_EQ(r.kind, "race");
      EXPECT_EQ(r.first.line() + r.second.line(), lines[0] + lines[1]) << r.text;
      EXPECT_LT(r.text.find(line(static_cast<int>(r.first.line()))),
                r.text.find(line(static_cast<int>(r.second.line()))));
      said.insert(r.text);
    }
  }
  EXPECT_GT(excused, 0);
  EXPECT_GT(reported, 0);
  EXPECT_EQ(said.size(), 2u) << "one of each order, and no other words";
}

// The checker compares a source when the copy is seen complete, and so reports only changes before that.
TEST(races, a_source_changed_by_an_unordered_function_is_seen) {
  auto const run = [](std::uint64_t seed, bool right, bool& in_between) {
    return found_in({.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::seeded, .seed = seed}, [&] {
      stream a, b;
      stream_guard const home{a.ref()};
      buffer const x(size), from = pinned(size);
      auto* const bytes = from.data<char>();
      std::memset(bytes, 1, size);
      copy(a, x.data(), bytes, size, non_blocking);
      if (right)
        b.ref().wait(a);
      launch_host(b, [bytes] { std::memset(bytes, 2, size); });
      a.ref().synchronize();
      in_between = bytes[0] == 2;
      synchronize();
    });
  };
  int came_before = 0;
  std::string first;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    bool in_between = false;
    expect_none(run(seed, true, in_between));
    auto const reports = run(seed, false, in_between);
    came_before += in_between;
    if (!in_between) {
      expect_none(reports);
      continue;
    }
    expect_one(reports, "source changed",
               {"were the source of copy at", "changed before the host had waited for that copy"});
    if (first.empty())
      first = texts(reports);
    EXPECT_EQ(texts(reports), first) << "seed " << seed;
  }
  EXPECT_GT(came_before, 0);
  EXPECT_LT(came_before, 50);
}

TEST(races, copies_and_fills_are_uses_and_the_public_line_is_named) {
  int filled = 0, copied = 0;
  auto const run = [&](bool right) {
    stream a, b;
    stream_guard const home{a.ref()};
    buffer x(size), to = pinned(size);
    fill(x.data(), std::byte{7}, size), filled = __LINE__;
    if (right)
      b.ref().wait(a);
    copy(b, to.data(), x.data(), size, non_blocking), copied = __LINE__;
    synchronize();
  };
  auto const all = found([&] { run(false); });
  expect_one(all, "race", {"fill at " + line(filled) + " writes", "copy at " + line(copied) + " reads"});
  expect_none(found([&] { run(true); }));
}

TEST(races, a_block_begins_on_its_stream) {
  auto const run = [](bool right) {
    stream a, b;
    buffer scratch = [&] {
      stream_guard const home{a.ref()};
      return buffer(size);
    }();
    write(a, scratch.data(), size);
    stream_guard const home{a.ref()};
    buffer x(size);
    if (right)
      b.ref().wait(a);
    write(b, x.data(), size);
    synchronize();
  };
  expect_one(found([&] { run(false); }), "race",
             {"No wait orders that after the allocation on stream 1", "allocate it on stream 2"});
  expect_none(found([&] { run(true); }));
}

TEST(lifetime, a_block_marked_by_its_use_may_be_freed_at_once) {
  expect_none(found([] {
    stream a, b;
    stream_guard const home{a.ref()};
    for (int i = 0; i < 20; ++i) {
      buffer x(size);
      write(a, x.data(), size);
      b.ref().wait(a);
      read(b, x.data(), size);
    }
    synchronize();
  }));
}

TEST(lifetime, weirs_own_copies_between_all_places_are_right) {
  expect_none(found([] {
    std::vector<char> pageable(3 * size);
    buffer near(pageable.size()), far(pageable.size(), {.on = gpu}), host = pinned(pageable.size());
    buffer other(pageable.size(), {.on = device(1)});
    for (int i = 0; i < 3; ++i) {
      copy(near.data(), pageable.data(), pageable.size(), non_blocking);
      copy(far.data(), near.data(), pageable.size(), non_blocking);
      copy(other.data(), far.data(), pageable.size(), non_blocking);
      copy(host.data(), other.data(), pageable.size(), blocking::yes);
      copy(pageable.data(), other.data(), pageable.size(), blocking::yes);
    }
    synchronize();
    synchronize(device(1));
  }));
}

TEST(lifetime, a_transferred_block_may_be_used_by_both_in_order) {
  auto const run = [](bool right) {
    stream a, c;
    stream_guard const home{a.ref()};
    buffer x(size);
    write(a, x.data(), size);
    x.set_stream(c);
    read(c, x.data(), size);
    if (right)
      a.ref().wait(c);
    write(a, x.data(), size);
    c.ref().wait(a);
    read(c, x.data(), size);
    synchronize();
  };
  expect_none(found([&] { run(true); }));
  expect_one(found([&] { run(false); }), "race",
             {"reads them on stream 2 of gpu:0, launch", "let stream 1 of gpu:0 wait for stream 2"});
}

TEST(lifetime, a_transferred_block_is_known_to_its_old_stream) {
  expect_none(found([] {
    stream a, c;
    stream_guard const home{a.ref()};
    buffer x(size);
    x.set_stream(c);
    write(a, x.data(), size);
    c.ref().wait(a);
    write(c, x.data(), size);
    synchronize();
  }));
}

// What the callback refers to may end as soon as it is removed.
TEST(reports, a_callback_has_ended_when_it_is_removed) {
  runtime rt{simulated{.devices = 1}, {.check_races = true}};
  runtime_guard const in{rt};
  std::atomic<bool> runs{false}, removed{false}, outlived{false};
  on_race([&](race_report const&) {
    runs = true;
    auto const end = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
    while (!removed && std::chrono::steady_clock::now() < end)
      std::this_thread::yield();
    outlived = removed.load();
  });
  std::thread other([&] {
    runtime_guard const here{rt};
    stream a, b;
    buffer x(size);
    a.ref().wait(current_stream()), b.ref().wait(current_stream());
    write(a, x.data(), size);
    write(b, x.data(), size);
    synchronize();
  });
  while (!runs)
    std::this_thread::yield();
  on_race(nullptr);
  removed = true;
  other.join();
  EXPECT_FALSE(outlived);
  EXPECT_EQ(race_reports().size(), 1u);
}

TEST(reports, they_can_be_thrown_listened_to_and_counted) {
  runtime rt{simulated{.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::seeded, .seed = 3},
             {.check_races = true}};
  runtime_guard const in{rt};
  require_no_races();
  int heard = 0;
  on_race([&](race_report const& r) { heard += r.kind == "race"; });
  stream a, b;
  buffer x(size);
  for (int i = 0; i < 5; ++i) {
    write(a, x.data(), size);
    write(b, x.data(), size);
  }
  EXPECT_EQ(heard, 2) << "a before b, and b before a: each once";
  auto const all = race_reports();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].times, 5u);
  EXPECT_EQ(all[1].times, 4u);
  on_race(nullptr);
  try {
    require_no_races();
    FAIL();
  } catch (race_found const& e) {
    EXPECT_EQ(std::string(e.operation()), "check_races");
    EXPECT_FALSE(e.remedy().empty());
    EXPECT_LT(e.first().line(), e.second().line());
  }
  synchronize();
}

TEST(reports, without_the_option_nothing_is_looked_at) {
  char const* const was = std::getenv("WEIR_CHECK_RACES");
  std::string const kept = was ? was : "";
  ::unsetenv("WEIR_CHECK_RACES");
  runtime rt{simulated{.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::seeded, .seed = 3}};
  if (was)
    ::setenv("WEIR_CHECK_RACES", kept.c_str(), 1);
  runtime_guard const in{rt};
  stream a, b;
  buffer x(size);
  write(a, x.data(), size);
  write(b, x.data(), size);
  synchronize();
  expect_none(race_reports());
  require_no_races();
}

// A large copy goes in parts, some over the links of other devices, on streams that the program does not know.
TEST(races, a_part_of_a_striped_copy_names_the_call) {
  constexpr size_t bytes = 24_MiB, chunk = 1_MiB;
  int named = 0;
  for (size_t at = 0; at < bytes; at += chunk) {
    auto const all = found_in({.devices = 3, .memory = 256_MiB, .schedule = simulated::scheduling::stepped}, [at] {
      stream copies(device(0)), other(device(0));
      buffer on_gpu(bytes), there = pinned(bytes);
      device const others[] = {1, 2};
      link_sharing_guard const lent(others);
      other.ref().wait(current_stream()), copies.ref().wait(current_stream());
      copy(copies, on_gpu.data(), there.data(), bytes, non_blocking);
      write(other, on_gpu.data<std::byte>() + at, chunk);
      for (stream_ref s : {copies.ref(), other.ref()})
        s.synchronize();
    });
    ASSERT_EQ(all.size(), 1u) << texts(all);
    EXPECT_NE(all[0].text.find("copy at races_test.cpp"), std::string::npos) << all[0].text;
    EXPECT_EQ(all[0].text.find("wait for weir's own"), std::string::npos) << all[0].text;
    named += all[0].text.find("wait for the stream of copy at races_test.cpp") != std::string::npos;
  }
  EXPECT_GT(named, 0) << "no part went over a lent link";
}

}  // namespace
}  // namespace weir::check_tests
