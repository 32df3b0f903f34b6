// Memory that is open to peers as a whole, from its first handle on, whatever is allocated, freed, moved or
// refused.
// Threads: one.
#include <random>

#include "peer/link/links.h"
#include "tests/memory/counted_calls.h"
#include "tests/peer/visible.h"
#include "tests/support/sanitized.h"
#include "weir/observe.h"

namespace weir {
namespace {

using driver::call;
using namespace test::visible;

// One call each handle.
TEST(visible, a_streams_memory_is_open_from_the_first_handle) {
  test::machine m(three());
  stream const s{device(0)};
  enable_peer_access(s, {device(1), device(2)});
  EXPECT_EQ(memory_readers(s), (std::vector<device>{device(1), device(2)}));
  EXPECT_EQ(memory_readers(default_stream(device(0))), std::vector<device>{});
  tests::counted_calls calls(m.control());
  stream_guard const on(s);
  buffer const large(6_MiB, {.on = device(0)}), small(48, {.on = device(0)});
  EXPECT_EQ(calls.of({call::grant}), calls.of({call::map})) << "owner and readers at once";
  EXPECT_EQ(calls.of({call::copy_peer, call::synchronize_stream}), 0u)
      << "nothing was tried, nothing had to be worth it";
  EXPECT_EQ(explain_copy(large.data(), buffer(4_KiB, {.on = device(1)}).data(), 4_KiB).by, copy_route::peer);
  expect_open(m, large.data(), large.size(), {1, 2});
  expect_open(m, small.data(), small.size(), {1, 2});
  EXPECT_EQ(memory_stats(device(0)).peer_access_bytes,
            static_cast<std::uint64_t>(memory_stats(device(0)).reserved_bytes.all.current));
  for (auto const& segment : memory_snapshot(device(0)))
    EXPECT_EQ(segment.readers, 0b110u);
  expect_whole(m);
}

// Used and free memory alike.
TEST(visible, memory_held_by_then_is_opened) {
  test::machine m(three());
  buffer const kept(3_MiB, {.on = device(0)});
  buffer(5_MiB, {.on = device(0)});
  EXPECT_EQ(memory_stats(device(0)).peer_access_bytes, 0u);
  enable_peer_access(default_stream(device(0)), {device(2), device(0)});
  expect_open(m, kept.data(), kept.size(), {2});
  tests::counted_calls calls(m.control());
  buffer const again(5_MiB, {.on = device(0)});
  EXPECT_EQ(calls.of({call::create, call::map, call::grant}), 0u) << "what was free";
  expect_open(m, again.data(), again.size(), {2});
  EXPECT_FALSE(m.memory(0).granted(kept.data(), 1)) << "no call opened that block";
  expect_whole(m);
}

TEST(visible, a_device_means_all_its_streams_and_later_ones) {
  test::machine m(three());
  stream const before{device(1)};
  buffer first;
  {
    stream_guard const on(before);
    first = buffer(1_MiB, {.on = device(1)});
  }
  enable_peer_access(device(1), {device(0)});
  stream const after{device(1)};
  stream_guard const on(after);
  buffer const second(1_MiB, {.on = device(1)});
  expect_open(m, first.data(), first.size(), {0});
  expect_open(m, second.data(), second.size(), {0});
  buffer const other(1_MiB, {.on = device(0)});
  EXPECT_FALSE(m.memory(0).granted(other.data(), 1)) << "it has a direction";
  expect_whole(m);
}

TEST(visible, its_handles_are_few_and_stay_where_they_are) {
  test::machine m({.devices = 2, .memory = 4_GiB});
  size_t const page = m.driver().info(0).value.granularity;
  enable_peer_access(device(0), {device(1)});
  buffer const odd(5 * page, {.on = device(0)});
  EXPECT_EQ(memory_stats(device(0)).segment.all.current, 1) << "one for all five pages, and none that the trial left";
  tests::counted_calls calls(m.control());
  buffer const large(300 * page, {.on = device(0)});
  EXPECT_EQ(calls.of({call::create}), 3u) << "128, 128 and the rest";
  std::vector<buffer> all;
  for (int i = 0; i < 8; ++i)
    all.emplace_back(4 * page, buffer_options{.on = device(0)});
  for (size_t i = 0; i < all.size(); i += 2)
    all[i].reset();
  calls.forget();
  buffer const wide(12 * page, {.on = device(0)});
  EXPECT_EQ(calls.of({call::unmap, call::release}), 0u) << "free handles are not moved there";
  expect_open(m, wide.data(), wide.size(), {1});
  expect_whole(m);
}

TEST(visible, an_open_stream_takes_over_no_closed_memory) {
  test::machine m(three());
  stream const open{device(0)}, closed{device(0)};
  enable_peer_access(open, {device(1)});
  auto const take = [](stream_ref s, size_t n) {
    stream_guard const on(s);
    return buffer(n, {.on = device(0)});
  };
  take(closed, 8_MiB).reset();
  synchronize(device(0));
  buffer const mine = take(open, 8_MiB);
  expect_open(m, mine.data(), mine.size(), {1});
  take(open, 4_MiB).reset();
  synchronize(device(0));
  buffer const theirs = take(closed, 4_MiB);  // the opposite reuse is allowed
  expect_whole(m);
}

TEST(visible, a_reused_stream_begins_with_the_devices_readers) {
  test::machine m(three());
  enable_peer_access(device(0), {device(2)});
  auto const take = [](stream_ref s, size_t n) {
    stream_guard const on(s);
    return buffer(n, {.on = device(0)});
  };
  buffer kept, left;
  std::uint64_t before = 0;
  {
    stream const s{device(0)};
    before = s.id();
    enable_peer_access(s, {device(1)});
    EXPECT_EQ(memory_readers(s), (std::vector<device>{device(1), device(2)}));
    kept = take(s, 3_MiB);
    left = take(s, 3_MiB);
  }
  expect_open(m, kept.data(), kept.size(), {1, 2});  // the block outlives its stream
  left.reset();
  stream const again{device(0)};
  ASSERT_EQ(again.id(), before) << "this test is about the same stream";
  EXPECT_EQ(memory_readers(again), std::vector<device>{device(2)});
  buffer const reused = take(again, 3_MiB), fresh = take(again, 9_MiB);
  EXPECT_FALSE(m.memory(0).granted(fresh.data(), 1)) << "no call has opened that block since";
  expect_open(m, fresh.data(), fresh.size(), {2});
  expect_open(m, reused.data(), reused.size(), {2});
  enable_peer_access(again, {device(1)});
  expect_open(m, fresh.data(), fresh.size(), {1, 2});
  expect_whole(m);
}

TEST(visible, short_memory_comes_from_closed_streams_and_opens) {
  test::machine m({.devices = 2, .memory = 64_MiB, .schedule = simulated::scheduling::seeded, .seed = 3},
                  {.device_limit = 24_MiB});
  stream const open{device(0)}, closed{device(0)};
  enable_peer_access(open, {device(1)});
  {
    stream_guard const on(closed);
    buffer(20_MiB, {.on = device(0)}).reset();
  }
  synchronize(device(0));
  stream_guard const on(open);
  for (int i = 0; i < 3; ++i) {
    buffer const b(19_MiB + static_cast<size_t>(i) * 1_MiB, {.on = device(0)});
    expect_open(m, b.data(), b.size(), {1});
  }
  EXPECT_THROW(buffer(25_MiB, {.on = device(0)}), out_of_memory);
  empty_cache(device(0));
  EXPECT_EQ(memory_stats(device(0)).peer_access_bytes,
            static_cast<std::uint64_t>(memory_stats(device(0)).reserved_bytes.all.current));
  expect_whole(m);
}

TEST(visible, pairs_that_cannot_are_named_and_nothing_is_open_then) {
  test::machine m({.devices = 4, .memory = 64_MiB, .peers = simulated::links::pairs});
  EXPECT_EQ(what_is_refused([] {
              enable_peer_access(device(0), {device(1), device(2)});
            }),
            "not_supported: gpu:2 -> gpu:0");
  EXPECT_EQ(memory_readers(default_stream(device(0))), std::vector<device>{}) << "not for gpu:1 either";
  EXPECT_EQ(what_is_refused([] { enable_peer_access(device(0), {cpu}); }), "invalid_use: cpu");
  EXPECT_NE(what_is_refused([] { enable_peer_access(device(0), {device(4)}); }), "");
  EXPECT_NE(what_is_refused([] { enable_peer_access(cpu, {device(1)}); }), "");
  stream gone{device(0)};
  stream const taken(std::move(gone));
  EXPECT_NE(what_is_refused([&] { enable_peer_access(gone, {device(1)}); }), "");  // NOLINT(bugprone-use-after-move)
  EXPECT_NO_THROW(enable_peer_access(device(0), {}));
  m.control().corrupt(3, 2);
  EXPECT_EQ(what_is_refused([] { enable_peer_access(device(2), {device(3)}); }), "not_supported: gpu:3 -> gpu:2");
  buffer const b(1_MiB, {.on = device(2)});
  EXPECT_EQ(memory_readers(default_stream(device(2))), std::vector<device>{});
  EXPECT_EQ(explain_copy(b.data(), buffer(4_KiB, {.on = device(3)}).data(), 4_KiB).by, copy_route::staged);
}

TEST(visible, it_is_open_to_eight_peers_and_the_ninth_is_named) {
  test::machine m({.devices = 10, .memory = 64_MiB});
  std::vector<device> eight;
  for (int d = 1; d <= 8; ++d)
    eight.emplace_back(d);
  enable_peer_access(device(0), eight);
  EXPECT_EQ(what_is_refused([] { enable_peer_access(device(0), {device(9)}); }), "not_supported: gpu:9 -> gpu:0");
  buffer const b(1_MiB, {.on = device(0)});
  expect_open(m, b.data(), b.size(), {1, 2, 3, 4, 5, 6, 7, 8});
  expect_whole(m);
}

TEST(visible, memory_in_segments_cannot_be_opened) {
  test::machine m({.devices = 2, .memory = 64_MiB, .virtual_memory = false});
  EXPECT_NE(what_is_refused([] { enable_peer_access(device(0), {device(1)}); }), "");
  buffer const b(1_MiB, {.on = device(0)});
  EXPECT_EQ(memory_readers(default_stream(device(0))), std::vector<device>{});
}

TEST(visible, a_lost_reader_is_left_out) {
  test::machine m({.devices = 3, .memory = 64_MiB});
  enable_peer_access(device(0), {device(1), device(2)});
  m.control().lose_device(1);
  try {
    synchronize(device(1));
  } catch (device_lost const&) {}
  buffer const b(8_MiB, {.on = device(0)});
  expect_open(m, b.data(), b.size(), {2});
  EXPECT_FALSE(m.memory(0).granted(b.data(), 1));
  EXPECT_NE(what_is_refused([] { enable_peer_access(device(2), {device(1)}); }), "");
  EXPECT_EQ(m.memory(0).validate(), std::vector<std::string>{});
}

TEST(visible, a_reader_whose_link_vanishes_is_left_out) {
  test::machine m({.devices = 3, .memory = 64_MiB});
  enable_peer_access(device(0), {device(1), device(2)});
  buffer const before(1_MiB, {.on = device(0)});
  m.control().disconnect(1, 0);
  for (size_t const n : {3_MiB, 5_MiB}) {
    buffer const b(n, {.on = device(0)});
    expect_open(m, b.data(), b.size(), {2});
    EXPECT_FALSE(m.memory(0).granted(b.data(), 1));
    auto const bytes = test::pattern(n, 4);
    buffer const there(n, {.on = device(1)});
    copy(b.data(), bytes.data(), n);
    copy(there.data(), b.data(), n);
    EXPECT_TRUE(test::read_back(there.data(), n, 1) == bytes) << "by the driver's way";
  }
  EXPECT_EQ(memory_readers(default_stream(device(0))), std::vector<device>{device(2)});
  EXPECT_NE(what_is_refused([] { enable_peer_access(device(0), {device(1)}); }), "");
  expect_whole(m);
}

TEST(visible, with_the_option_devices_see_each_others_memory) {
  test::machine m(three(), {.peer_access = true});
  buffer const a(4_MiB, {.on = device(0)}), b(4_MiB, {.on = device(1)}), c(4_MiB, {.on = device(2)});
  EXPECT_FALSE(m.memory(0).granted(a.data(), 1)) << "they have nothing to do with each other yet";
  copy(b.data(), a.data(), 64);
  EXPECT_NE(std::string(explain_copy(b.data(), a.data(), 64).reason).find("has access"), std::string::npos);
  expect_open(m, a.data(), a.size(), {1});
  expect_open(m, b.data(), b.size(), {0});
  EXPECT_FALSE(m.memory(0).granted(a.data(), 2));
  stream const s{device(1)};
  stream_guard const on(s);
  buffer const later(9_MiB, {.on = device(1)});
  expect_open(m, later.data(), later.size(), {0});
  EXPECT_EQ(enable_peer_access(c.data<char>(), device(0)), c.data<char>());
  expect_open(m, a.data(), a.size(), {1, 2});
  EXPECT_FALSE(m.memory(2).granted(c.data(), 1));
  expect_whole(m);
}

TEST(visible, with_the_option_copies_go_on_where_opening_fails) {
  for (int how = 0; how < 3; ++how) {
    test::machine m({.devices = 2,
                     .memory = 64_MiB,
                     .peers = how == 0 ? simulated::links::none : simulated::links::all,
                     .virtual_memory = how != 1},
                    {.peer_access = true});
    if (how == 2)
      m.control().corrupt(0, 1);
    buffer const a(1_MiB, {.on = device(0)}), b(1_MiB, {.on = device(1)});
    auto const bytes = test::pattern(1_MiB, 6);
    copy(a.data(), bytes.data(), bytes.size());
    for (int i = 0; i < 3; ++i) {
      fill(b.data(), std::byte{0}, bytes.size());
      copy(b.data(), a.data(), bytes.size());
      EXPECT_TRUE(test::read_back(b.data(), bytes.size(), 1) == bytes) << how;
    }
    EXPECT_EQ(explain_copy(b.data(), a.data(), 1_MiB).by, how == 1 ? copy_route::peer : copy_route::staged);
  }
}

// Each call of growth and of opening is refused in turn: what is not refused is open to all readers, and
// nothing is lost.
TEST(visible, any_call_that_fails_leaves_blocks_open) {
  for (auto const& [name, code] : {std::pair{"grant", driver::code::failed},
                                   {"grant", driver::code::out_of_memory},
                                   {"map", driver::code::failed},
                                   {"create", driver::code::out_of_memory},
                                   {"unmap", driver::code::failed}}) {
    for (std::uint64_t k = 1; k <= 12; ++k) {
      test::machine m(three(k));
      stream const s{device(0)};
      stream_guard const on(s);
      std::vector<buffer> all;
      bool open = false;
      m.control().fail_call(name, k, code);
      for (int i = 0; i < 12; ++i) {
        try {
          if (i == 3 || (i > 3 && !open))
            enable_peer_access(s, {device(1), device(2)}), open = true;
          all.emplace_back(static_cast<size_t>(1 + i % 5) * 700'000, buffer_options{.on = device(0)});
        } catch (driver_error const&) {
        } catch (out_of_memory const&) {}
        if (i == 7)
          all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2)), synchronize(device(0)),
              empty_cache(device(0));
        for (buffer const& b : all) {
          if (open)
            expect_open(m, b.data(), b.size(), {1, 2});
        }
      }
      EXPECT_TRUE(open) << name << " " << k;
      m.control().clear_failures();
      SCOPED_TRACE(std::string(name) + " " + std::to_string(k));
      expect_whole(m);
      if (HasFailure())
        return;
    }
  }
}

bool opens(auto act) {
  try {
    act();
    return true;
  } catch (out_of_memory const&) {  // the link could not be tried
    return false;
  }
}

// Streams of three devices whose memory is opened now and then, beside others whose memory is not. After each
// step every allowed device reads every block of an open stream.
TEST(visible, random_programs_keep_an_open_streams_blocks_open) {
  for (auto const seed : tests::seeds("visible", tests::sanitized ? 40 : 150)) {
    std::mt19937_64 random(seed);
    auto const below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    bool const is_short = below(3) == 0;
    test::machine m(
        three(seed),
        {.device_limit = is_short ? 6_MiB : size_t{0}, .deterministic = below(4) == 0, .peer_access = below(6) == 0});
    struct member {
      stream s;
      std::vector<int> readers{};
    };
    struct block {
      buffer b;
      size_t of;
      std::vector<int> readers;  // at its allocation, or opened later
    };
    std::vector<member> members;
    std::vector<std::vector<int>> of_devices(3);
    for (int i = 0; i < 5; ++i)
      members.push_back({stream(device(i % 3))});
    std::vector<block> blocks;
    for (int i = 0; i < 40 && !::testing::Test::HasFailure(); ++i) {
      auto const at = static_cast<size_t>(below(5));
      member& its = members[at];
      stream_guard const on(its.s);
      int const kind = below(12);
      if (kind == 0) {
        int const reader = (its.s.device().index() + 1 + below(2)) % 3;
        if (!opens([&] { enable_peer_access(its.s, {device(reader)}); }))
          continue;
        its.readers.push_back(reader);
      } else if (kind == 1 && below(3) == 0) {
        int const reader = (its.s.device().index() + 1) % 3;
        if (!opens([&] { enable_peer_access(its.s.device(), {device(reader)}); }))
          continue;
        of_devices[static_cast<size_t>(its.s.device().index())].push_back(reader);
        for (member& one : members) {
          if (one.s.device() == its.s.device())
            one.readers.push_back(reader);
        }
        for (block& one : blocks) {
          if (members[one.of].s.device() == its.s.device())
            one.readers.push_back(reader);
        }
      } else if (kind == 2) {
        empty_cache(its.s.device());
      } else if (kind == 3 && below(3) == 0) {  // another stream is leased, or one that ended before
        its.s = stream(its.s.device());
        its.readers = of_devices[static_cast<size_t>(its.s.device().index())];
        set_stream(its.s);
      } else if (kind < 6 && !blocks.empty()) {
        blocks.erase(blocks.begin() + below(static_cast<int>(blocks.size())));
      } else {
        try {
          blocks.push_back(
              {buffer(below(3) ? static_cast<size_t>(below(2'000'000)) : static_cast<size_t>(below(3000)) + 1,
                      {.on = its.s.device()}),
               at, its.readers});
        } catch (out_of_memory const&) {}
      }
      for (block const& one : blocks) {
        if (one.b.size() == 0)
          continue;
        stream_guard const home(members[one.of].s);
        expect_open(m, one.b.data(), one.b.size(), one.readers);
      }
      for (int d = 0; d < 3; ++d)
        EXPECT_EQ(m.memory(d).validate(), std::vector<std::string>{});
    }
    blocks.clear();
    expect_whole(m);
    ASSERT_FALSE(::testing::Test::HasFailure()) << "WEIR_TEST_SEED=" << seed;
  }
}

}  // namespace
}  // namespace weir
