// Staging: bounded memory, slots that shrink, and refusals that say so.
#include "streams/copy/staging.h"

#include "tests/memory/counted_calls.h"
#include "tests/peer/machine_fixture.h"
#include "tests/support/sanitized.h"
#include "weir/graph.h"

namespace weir {
namespace {

using test::held;
using test::pattern;

TEST(staging, holds_no_more_pinned_memory_than_its_room) {
  test::machine m;
  auto& staging = m.get().part<streams::staging>();
  std::size_t const n = 40_MiB;
  buffer a(n, {.on = device(0)}), b(n, {.on = device(1)});
  auto const source = pattern(n, 1);
  stream s{device(0)}, t{device(1)};
  {
    held gate(m, s), gate_too(m, t);
    copy(s, a.data(), source.data(), n, non_blocking);
    copy(t, b.data(), source.data(), n, non_blocking);  // another device has its own room
    EXPECT_GE(staging.in_use(0), n);
    EXPECT_LE(staging.in_use(0), streams::staging::budget);
  }
  synchronize(device(0));
  synchronize(device(1));
  stream_ref(s).synchronize();
  stream_ref(t).synchronize();
  EXPECT_EQ(staging.in_use(0), 0u);
  EXPECT_EQ(m.pinned().statistics().allocated_bytes.all.current, 0);
  EXPECT_EQ(test::read_back(b.data(), n, 1), source);
}

// A graph would copy again from what is in the staging buffer by then.
TEST(staging, a_pageable_copy_in_a_capture_is_refused_both_ways) {
  test::machine m({.devices = 1, .memory = 64_MiB});
  stream const s;
  for (std::size_t const n : {4_KiB, 3_MiB}) {
    buffer const on_gpu(s, n);
    std::vector<std::byte> host(n);
    for (auto const b : {blocking::yes, non_blocking}) {
      for (bool const up : {true, false}) {
        std::string said;
        try {
          (void)graph::capture(
              s, [&] { up ? copy(s, on_gpu.data(), host.data(), n, b) : copy(s, host.data(), on_gpu.data(), n, b); });
        } catch (invalid_use const& e) {
          said = e.what();
        }
        EXPECT_NE(said.find("a staging buffer cannot serve each replay"), std::string::npos) << n << " " << up << said;
      }
    }
  }
}

TEST(staging, every_manner_brings_every_byte_both_ways) {
  test::machine m({.devices = 1, .memory = 64_MiB});
  std::size_t const n = 5_MiB + 13;  // thousands of the smallest slots, two and more of the largest
  buffer const on_gpu(n);
  auto& staging = m.get().part<streams::staging>();
  using streams::stores;
  streams::staging::tuning const ways[] = {
      {},
      {.chunk = 1_KiB},
      {.chunk = 2_MiB, .first = 2_MiB, .grain = streams::staging::largest_slot, .by = stores::past_caches},
      {.chunk = 64_KiB, .by = stores::plain},
      {.chunk = 512_KiB, .first = 64_KiB, .grain = 64_KiB},
      {.chunk = 2_MiB, .first = 256_KiB, .grain = 128_KiB, .by = stores::to_shared_cache, .budget = 4_MiB},
      {.chunk = 1_GiB, .first = 1, .grain = 1, .budget = 0},
  };
  std::uint64_t salt = 1;
  for (auto const& how : ways) {
    for (bool const helps : {false, true}) {
      staging.fill_by(how);
      staging.fetch_by(how);
      staging.work_by({.threads = helps ? 3 : 0, .helps = helps, .spin_ns = helps ? 20'000 : 0});
      EXPECT_TRUE(!helps || staging.threads() == 3) << staging.threads();
      auto const host = test::pattern(n, ++salt);
      auto back = test::pattern(n, 0);
      copy(on_gpu.data(), host.data(), n);
      EXPECT_EQ(test::read_back(on_gpu.data(), n, 0), host) << "slots of " << how.chunk;
      copy(back.data(), on_gpu.data(), n);
      EXPECT_EQ(back, host) << "slots of " << how.chunk;
      EXPECT_LE(staging.in_use(0), streams::staging::budget);
    }
  }
  EXPECT_LE(m.pinned().statistics().allocated_bytes.all.peak, std::int64_t(streams::staging::budget));
}

TEST(staging, with_little_pinned_memory_slots_shrink) {
  test::machine m({.devices = 2, .memory = 256_MiB, .peers = simulated::links::none}, {.pinned_limit = 192_KiB});
  std::size_t const n = 6_MiB + 11;
  buffer a(n, {.on = device(0)}), b(n, {.on = device(1)});
  auto const source = pattern(n, 2);
  test::bytes_of_host out(n);
  stream s{device(0)}, t{device(1)};
  copy(s, a.data(), source.data(), n);
  stream_guard by_target(t);
  copy(s, b.data(), a.data(), n);
  copy(t, out.data(), b.data(), n);
  EXPECT_EQ(out, source);
  EXPECT_LE(m.pinned().statistics().reserved_bytes.all.peak, std::int64_t(192_KiB));
}

TEST(staging, without_pinned_memory_it_says_so_and_loses_nothing) {
  test::machine m({.devices = 1, .memory = 64_MiB}, {.pinned_limit = 4096});
  std::size_t const n = 1_MiB;
  buffer a(n, {.on = device(0)});
  auto source = pattern(n, 3);
  stream s{device(0)};
  try {
    copy(s, a.data(), source.data(), n);
    FAIL() << "no out_of_memory";
  } catch (out_of_memory const& e) {
    EXPECT_TRUE(e.report().on.is_cpu());
    EXPECT_EQ(e.report().limit, 4096u);
  }
  EXPECT_THROW(copy(s, source.data(), a.data(), n), out_of_memory);
  EXPECT_EQ(m.pinned().validate(), std::vector<std::string>{});
  copy(s, a.data(), source.data(), 4000);  // a slot of this size there is
}

TEST(staging, a_machine_without_engines_stages_in_the_caller) {
  test::machine m({.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::stepped});
  auto& staging = m.get().part<streams::staging>();
  EXPECT_EQ(staging.threads(), 0);
  std::size_t const n = 3_MiB;
  buffer a(n, {.on = device(0)});
  auto const source = pattern(n, 4);
  test::bytes_of_host out(n);
  stream s{device(0)};
  auto scratch = source;
  copy(s, a.data(), scratch.data(), n, non_blocking);
  std::fill(scratch.begin(), scratch.end(), std::byte{0});
  stamp const done = copy(s, out.data(), a.data(), n, non_blocking);
  EXPECT_EQ(out, test::bytes_of_host(n));  // nothing has moved
  EXPECT_TRUE(m.control().run());
  EXPECT_EQ(out, source);
  done.synchronize();
}

TEST(staging, a_slot_is_emptied_before_the_engine_fills_it_again) {
  // Without threads of its own the copy workers copy nothing until a thread must have it:
  // the last moment, every time.
  test::machine m({.devices = 1, .memory = 32_MiB, .schedule = simulated::scheduling::stepped});
  m.get().part<streams::staging>().fetch_by({.chunk = 1_MiB, .budget = 3_MiB});
  std::size_t const n = 9_MiB + 3;  // more chunks than slots
  buffer a(n, {.on = device(0)});
  auto const source = pattern(n, 6);
  stream s{device(0)};
  copy(s, a.data(), source.data(), n);
  for (blocking const waits : {blocking::yes, non_blocking}) {
    test::bytes_of_host out(n);
    copy(s, out.data(), a.data(), n, waits);
    EXPECT_TRUE(m.control().run());
    EXPECT_EQ(out, source);
  }
}

TEST(staging, between_devices_holds_no_more_than_its_room) {
  test::machine m(
      {.devices = 2, .memory = 64_MiB, .schedule = simulated::scheduling::stepped, .peers = simulated::links::none});
  auto& staging = m.get().part<streams::staging>();
  std::size_t const n = 8_MiB;
  buffer a(n, {.on = device(0)}), b(n, {.on = device(1)});
  stream s{device(0)};
  for (int i = 0; i < 40; ++i) {
    copy(s, b.data(), a.data(), n, non_blocking);
    ASSERT_LE(staging.in_use(1), streams::staging::budget) << "copy " << i;
    if (i == 7) {
      EXPECT_EQ(staging.in_use(1), streams::staging::budget) << "all of it, before any copy waits";
    }
  }
  EXPECT_TRUE(m.control().run());
}

// The calling thread is the only one.
// Eight where threads share each chunk.
TEST(staging, a_copy_has_two_chunks_a_thread_or_eight) {
  test::machine m({.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::stepped});
  buffer a(4_MiB, {.on = device(0)});
  auto const source = pattern(4_MiB, 5);
  for (auto const& [grain, copies] : {std::pair{2_MiB, 2u}, {1_MiB, 8u}}) {
    m.get().part<streams::staging>().fill_by({.chunk = 2_MiB, .first = 2_MiB, .grain = grain});
    tests::counted_calls const calls(m.control());
    copy(a.data(), source.data(), 4_MiB);
    EXPECT_EQ(calls.of({driver::call::copy}), copies);
  }
}

TEST(staging, a_caller_that_waits_for_one_slot_waits_once) {
  test::machine m;
  stream const s(device(0));
  buffer const a(s, 64_KiB);
  auto const source = pattern(64_KiB, 1);
  test::bytes_of_host out(64_KiB);
  copy(s, a.data(), source.data(), 64_KiB);
  copy(s, out.data(), a.data(), 64_KiB);
  tests::counted_calls const calls(m.control());
  stamp const done = copy(s, out.data(), a.data(), 64_KiB);
  EXPECT_EQ(calls.of({driver::call::record}), 1u);
  EXPECT_EQ(calls.host_waits(), 1u);
  EXPECT_TRUE(done.query());
  EXPECT_EQ(calls.events(), 2u) << "the stamp is known to be complete";
  EXPECT_EQ(out, source);
}

// The machine tells of an upload that would wait. Its room has 16 KiB, and counts more than 4 KiB as half of it.
TEST(staging, uploads_keep_their_room_and_others_take_slots) {
  test::machine m({.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::stepped});
  stream const s(device(0));
  buffer const a(s, 64_KiB);
  auto const source = pattern(64_KiB, 1);
  {
    test::held gate(m, s);
    tests::counted_calls const calls(m.control());
    for (int k = 0; k < 6; ++k)
      copy(s, a.data<std::byte>() + k * 8_KiB, source.data() + k * 8_KiB, 8_KiB, non_blocking);
    EXPECT_EQ(calls.of({driver::call::upload}), 2u);
    EXPECT_EQ(calls.of({driver::call::copy}), 4u);
  }
  s.ref().synchronize();
  tests::counted_calls const calls(m.control());
  copy(s, a.data<std::byte>() + 48_KiB, source.data() + 48_KiB, 16_KiB, non_blocking);
  EXPECT_EQ(calls.of({driver::call::upload}), 1u) << "there is room again";
  copy(s, a.data<std::byte>() + 32_KiB, source.data() + 32_KiB, 32_KiB, non_blocking);
  EXPECT_EQ(calls.of({driver::call::upload}), 1u) << "it would wait for the one before";
  s.ref().synchronize();
  copy(s, a.data<std::byte>() + 32_KiB, source.data() + 32_KiB, 32_KiB, non_blocking);
  EXPECT_EQ(calls.of({driver::call::upload}), 2u) << "it has nothing to wait for";
  EXPECT_EQ(test::read_back(a.data(), 64_KiB, 0), source);
  EXPECT_EQ(m.control().findings(), std::vector<std::string>{});
}

// Work of the legacy stream may stand before that of a blocking one, also if both seem idle.
TEST(staging, a_large_upload_takes_an_independent_stream) {
  test::machine m({.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::stepped});
  auto const source = pattern(32_KiB, 1);
  for (auto const& [flags, uploads] : {std::pair{stream_flags::blocking, 0u}, {stream_flags::non_blocking, 1u}}) {
    stream const s(device(0), flags);
    buffer const a(s, 32_KiB);
    tests::counted_calls const calls(m.control());
    copy(s, a.data(), source.data(), 32_KiB);
    EXPECT_EQ(calls.of({driver::call::upload}), uploads);
    EXPECT_EQ(test::read_back(a.data(), 32_KiB, 0), source);
  }
}

TEST(staging, a_refused_upload_keeps_no_room) {
  test::machine m({.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::stepped});
  buffer const a(16_KiB, {.on = device(0)});
  auto const source = pattern(16_KiB, 1);
  for (int k = 0; k < 3; ++k) {
    ASSERT_NE(m.control().fail_call("upload", 1, driver::code::failed), 0u);
    EXPECT_THROW(copy(a.data(), source.data(), 16_KiB), driver_error);
  }
  tests::counted_calls const calls(m.control());
  copy(a.data(), source.data(), 16_KiB);
  EXPECT_EQ(calls.of({driver::call::upload}), 1u);
  EXPECT_EQ(calls.of({driver::call::copy}), 0u);
}

// The driver would read a pinned source after the call.
TEST(staging, a_pinned_source_by_slots_is_no_upload) {
  test::machine m({.devices = 1, .memory = 64_MiB});
  buffer const a(4_KiB, {.on = device(0)}), source = pinned(4_KiB);
  route_guard const by(copy_route::staged);
  tests::counted_calls const calls(m.control());
  copy(a.data(), source.data(), 4_KiB);
  EXPECT_EQ(calls.of({driver::call::upload}), 0u);
  EXPECT_EQ(calls.of({driver::call::copy}), 1u);
}

// A host function would delay the stream, and begin later than the bytes come.
TEST(staging, a_small_copy_of_an_idle_stream_arrives_in_its_call) {
  auto const source = pattern(64_KiB, 1);
  int arrived = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    test::machine m({.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::seeded, .seed = seed});
    stream const s(device(0));
    buffer const a(s, 64_KiB);
    copy(s, a.data(), source.data(), 64_KiB);
    test::bytes_of_host out(64_KiB);
    tests::counted_calls const calls(m.control());
    stamp const done = copy(s, out.data(), a.data(), 64_KiB, non_blocking);
    if (calls.of({driver::call::host_function}) == 0) {
      ++arrived;
      EXPECT_EQ(out, source) << seed;
    }
    done.synchronize();
    EXPECT_EQ(out, source) << seed;
  }
  EXPECT_GT(arrived, 0) << "in one of the draws";
}

TEST(staging, a_small_copy_in_several_chunks_arrives_whole) {
  auto const source = pattern(512_KiB, 1);
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    test::machine m({.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::seeded, .seed = seed},
                    {.pinned_limit = 192_KiB});
    stream const s(device(0));
    buffer const a(s, 512_KiB);
    copy(s, a.data(), source.data(), 512_KiB);
    test::bytes_of_host out(512_KiB);
    copy(s, out.data(), a.data(), 512_KiB, non_blocking).synchronize();
    EXPECT_EQ(out, source) << seed;
  }
}

TEST(staging, a_small_copy_of_a_busy_stream_waits_for_nothing) {
  test::machine m({.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::stepped});
  stream const s(device(0));
  buffer const a(s, 64_KiB);
  auto const source = pattern(64_KiB, 1);
  copy(s, a.data(), source.data(), 64_KiB);
  test::bytes_of_host out(64_KiB);
  stamp done;
  {
    test::held gate(m, s);
    tests::counted_calls const calls(m.control());
    done = copy(s, out.data(), a.data(), 64_KiB, non_blocking);
    EXPECT_EQ(calls.of({driver::call::host_function}), 1u);
    EXPECT_FALSE(done.query());
  }
  done.synchronize();
  EXPECT_EQ(out, source);
}

TEST(staging, a_copy_that_the_driver_refused_can_be_repeated) {
  for (char const* const call : {"copy", "record"}) {
    test::machine m({.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::stepped});
    buffer const a(1_MiB, {.on = device(0)});
    test::bytes_of_host out(1_MiB);
    ASSERT_NE(m.control().fail_call(call, 1, driver::code::failed), 0u);
    try {
      copy(out.data(), a.data(), out.size());
      ADD_FAILURE() << "nothing was refused";
    } catch (driver_error const& e) {
      EXPECT_NE(e.remedy().find("epeat the call"), std::string_view::npos) << call << ": " << e.what();
    }
    copy(out.data(), a.data(), out.size());
  }
}

TEST(staging, a_copy_on_a_lost_device_takes_no_slot) {
  test::machine m({.devices = 1, .memory = 64_MiB});
  buffer a(1_MiB, {.on = device(0)});
  auto source = pattern(1_MiB, 3);
  stream s{device(0)};
  m.control().lose_device(0);
  EXPECT_THROW(copy(s, a.data(), source.data(), 1_MiB), device_lost);
  EXPECT_THROW(copy(s, source.data(), a.data(), 1_MiB), device_lost);
  EXPECT_EQ(m.pinned().statistics().allocated_bytes.all.peak, 0);
}

}  // namespace
}  // namespace weir
