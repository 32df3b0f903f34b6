// Refusals of weir::copy and their texts; batches, guards, memory freed behind a copy, refused calls, lost
// devices.
#include <atomic>

#include "tests/peer/machine_fixture.h"
#include "tests/support/refused.h"

namespace weir {
namespace {

using test::held;
using test::pattern;

constexpr std::size_t n = 4096;

struct routes : ::testing::Test {
  test::machine m;
  stream s{device(0)}, t{device(1)};
  buffer a{n, {.on = device(0)}}, b{n, {.on = device(0)}}, c{n, {.on = device(1)}}, p = pinned(n);
  test::bytes_of_host host = pattern(n, 1);

  static bool has(std::string const& text, std::string_view part) { return text.find(part) != std::string::npos; }
};

TEST_F(routes, a_copy_past_the_end_names_size_and_request) {
  auto const past = test::refused([&] { copy(a.data(), host.data(), n + 1); });
  EXPECT_TRUE(has(past, "dst gpu:0") && has(past, "holds 4096 B") && has(past, "asked 4097 B")) << past;
  auto const inside = test::refused([&] { weir::copy(host.data(), c.data<std::byte>() + 4000, 97); });
  EXPECT_TRUE(has(inside, "src gpu:1") && has(inside, "holds 96 B to the end of its block of 4096 B")) << inside;
  auto const of_pinned = test::refused([&] { copy(p.data<std::byte>() + 1, a.data(), n); });
  EXPECT_TRUE(has(of_pinned, "dst pinned") && has(of_pinned, "holds 4095 B")) << of_pinned;
  EXPECT_NO_THROW(weir::copy(c.data<std::byte>() + 4000, host.data(), 96));
}

TEST_F(routes, overlaps_are_refused_and_equal_places_are_no_work) {
  auto* const x = a.data<std::byte>();
  EXPECT_TRUE(has(test::refused([&] { weir::copy(x + 8, x, 16); }), "overlap"));
  EXPECT_TRUE(has(test::refused([&] { weir::copy(host.data(), host.data() + 15, 16); }), "overlap"));
  EXPECT_NO_THROW(weir::copy(x + 16, x, 16));
  EXPECT_NO_THROW(weir::copy(x, x, n));
}

TEST_F(routes, null_is_refused_but_with_zero_bytes_anything_is_fine) {
  EXPECT_TRUE(has(test::refused([&] { copy(nullptr, host.data(), 1); }), "dst is null"));
  EXPECT_TRUE(has(test::refused([&] { copy(a.data(), nullptr, 1); }), "src is null"));
  EXPECT_NO_THROW(copy(nullptr, nullptr, 0));
  EXPECT_NO_THROW(copy(s, nullptr, reinterpret_cast<void*>(8), 0).synchronize());
  EXPECT_NO_THROW(fill(nullptr, std::byte{1}, 0));
  EXPECT_TRUE(has(test::refused([&] { fill(nullptr, std::byte{1}, 1); }), "null"));
  EXPECT_TRUE(has(test::refused([&] { copy(a.data(), host.data(), std::size_t(-8)); }), "asked"));
}

TEST_F(routes, another_devices_stream_is_refused_and_named) {
  auto const said = test::refused([&] { copy(t, a.data(), host.data(), n); });
  EXPECT_TRUE(has(said, "stream of gpu:1") && has(said, "gpu:0")) << said;
  // Between devices: the stream of either device. Nothing orders s and t, so the host waits.
  EXPECT_NO_THROW(copy(t, c.data(), a.data(), n).synchronize());
  EXPECT_NO_THROW(copy(s, c.data(), a.data(), n));
}

TEST_F(routes, freed_memory_is_refused) {
  void* const gone = allocate(s, 1_MiB);
  deallocate(gone);
  EXPECT_TRUE(has(test::refused([&] { copy(s, gone, host.data(), 16); }), "not allocated"));
  void* const gone_too = p.data();
  p = buffer();
  EXPECT_TRUE(has(test::refused([&] { copy(s, a.data(), gone_too, 16); }), "not allocated"));
}

TEST_F(routes, a_refused_copy_changes_nothing) {
  copy(a.data(), host.data(), n);
  EXPECT_THROW(copy(a.data(), pattern(n + 1, 7).data(), n + 1), invalid_use);
  EXPECT_EQ(test::read_back(a.data(), n, 0), host);
}

TEST_F(routes, memory_freed_right_after_a_copy_waits_for_it) {
  held gate(m, s);
  void* const pinned_block = m.pinned().allocate(2_MiB, 0, source_location::current());
  std::memset(pinned_block, 7, 2_MiB);
  void* const away = allocate(default_stream(device(0)), 2_MiB);  // its home is another stream
  copy(s, away, pinned_block, 2_MiB, non_blocking);
  deallocate(pinned_block);
  deallocate(away);
  void* const next = m.pinned().allocate(2_MiB, 0, source_location::current());
  EXPECT_NE(next, pinned_block);
  void* const next_away = allocate(default_stream(device(0)), 2_MiB);
  // Otherwise the block lies behind a device wait, and nothing can write it yet.
  EXPECT_TRUE(next_away != away || !default_stream(device(0)).query());
  gate.open();
  deallocate(next);
  deallocate(next_away);
}

TEST_F(routes, memory_that_another_stream_sets_waits_for_it) {
  stream_guard const current(s);
  held gate(m, s);
  for (std::size_t const bytes : {std::size_t{4096}, std::size_t{2_MiB}}) {  // a slot, and a block of the arena
    void* const away = allocate(default_stream(device(0)), bytes);
    fill(away, std::byte{1}, bytes);
    fill(static_cast<std::byte*>(away) + bytes - 1, std::byte{2}, 1);
    EXPECT_TRUE(has(test::refused([&] { fill(static_cast<std::byte*>(away) + 1, std::byte{3}, bytes); }), "holds"));
    deallocate(away);
    EXPECT_TRUE(has(test::refused([&] { fill(away, std::byte{4}, bytes); }), "not allocated"));
    EXPECT_GE(m.memory(0).statistics().pending_bytes.all.current, std::int64_t(bytes))
        << "the engine may still write it";
  }
}

TEST_F(routes, a_batch_is_checked_whole_before_any_is_enqueued) {
  auto const other = pattern(n, 2);
  copy_item const wrong[] = {{a.data(), host.data(), n}, {b.data(), host.data(), n + 1}};
  fill(a.data(), std::byte{0}, n);
  EXPECT_THROW(copy(s, wrong), invalid_use);
  EXPECT_EQ(test::read_back(a.data(), n, 0), test::bytes_of_host(n, std::byte{0}));
  copy_item const right[] = {{a.data(), other.data(), n}, {nullptr, nullptr, 0}, {b.data(), a.data(), n}};
  copy(s, right).synchronize();
  EXPECT_EQ(test::read_back(b.data(), n, 0), other);
  stamp const of_nothing = copy(s, std::span<copy_item const>{});
  of_nothing.synchronize();
  EXPECT_TRUE(of_nothing.query());
}

TEST_F(routes, a_refused_blocking_batch_releases_host_memory) {
  buffer q = pinned(n);
  copy_item const two[] = {{p.data(), a.data(), n}, {q.data(), b.data(), n}};
  held gate(m, s);
  m.control().fail_call("copy", 2, driver::code::failed);
  std::atomic<bool> opened{false};
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    opened = true;
    gate.open();
  });
  EXPECT_THROW(copy(s, two), driver_error) << "it blocks unless told not to, as a copy does";
  EXPECT_TRUE(opened) << "the first copy may still write the host's memory";
  later.join();
}

// Not complete after any number of polls: a gate holds it.
void expect_held(stamp s) {
  for (int looks = 0; looks < 1000; ++looks) {
    ASSERT_FALSE(s.query());
    std::this_thread::yield();
  }
}

TEST_F(routes, a_batch_between_devices_takes_one_wait_each_way) {
  stream_guard const by_the_other(t);
  buffer d{n, {.on = device(1)}};
  std::memcpy(p.data(), host.data(), n);
  fill(a.data(), std::byte{7}, n);
  s.wait(default_stream(device(0)));
  copy_item const items[] = {
      {b.data(), c.data(), n}, {nullptr, nullptr, 0}, {d.data(), a.data(), n}, {a.data(), c.data(), n}};
  held other(m, t);
  copy(t, c.data(), p.data(), n, non_blocking);
  auto const waits = m.clocks().counted().waits;
  stamp const done = copy(s, items);
  EXPECT_EQ(m.clocks().counted().waits, waits + 2);
  expect_held(done);
  held late(m, s);
  other.open();
  done.synchronize();
  EXPECT_EQ(test::read_back(d.data(), n, 1), test::bytes_of_host(n, std::byte{7}));
  copy(s, items);
  fill(c.data(), std::byte{0}, n);  // on the other stream
  expect_held(t.stamp());
  late.open();
  t.synchronize();
  EXPECT_EQ(test::read_back(b.data(), n, 0), host);
  EXPECT_EQ(test::read_back(a.data(), n, 0), host);
}

// The other stream waits for the copies enqueued before the refusal.
TEST_F(routes, a_refused_batch_orders_the_other_stream_behind_it) {
  stream_guard const by_the_other(t);
  buffer d{n, {.on = device(1)}};
  held gate(m, s);
  m.control().fail_call("copy_peer", 2, driver::code::failed);
  copy_item const two[] = {{c.data(), a.data(), n}, {d.data(), b.data(), n}};
  EXPECT_THROW(copy(s, two), driver_error);
  fill(c.data(), std::byte{0}, n);
  expect_held(t.stamp());
  gate.open();
  t.synchronize();
  EXPECT_EQ(test::read_back(c.data(), n, 1), test::bytes_of_host(n, std::byte{0}));
}

TEST_F(routes, a_guard_forces_a_possible_route_and_ends) {
  std::memcpy(p.data(), host.data(), n);
  {
    route_guard through_slots(copy_route::staged);
    auto const choice = explain_copy(a.data(), p.data(), n);
    EXPECT_EQ(choice.by, copy_route::staged);
    EXPECT_TRUE(has(choice.reason, "route_guard"));
    copy(a.data(), p.data(), n);
    EXPECT_EQ(test::read_back(a.data(), n, 0), host);
    copy(c.data(), a.data(), n).synchronize();
    EXPECT_EQ(test::read_back(c.data(), n, 1), host);
    route_guard wrong(copy_route::peer);
    EXPECT_TRUE(has(test::refused([&] { copy(a.data(), p.data(), n); }), "route::peer"));
  }
  EXPECT_EQ(explain_copy(a.data(), p.data(), n).by, copy_route::engine);
}

TEST_F(routes, a_refused_wait_names_both_ends) {
  auto& machine = *driver::fault_injector_of(m.driver());
  copy(s, a.data(), p.data(), n);
  for (bool const up : {true, false}) {
    void *const dst = up ? a.data() : p.data(), *const src = up ? p.data() : a.data();
    using driver::call;
    for (call const one : {call::synchronize_event, call::synchronize_stream, call::query_event})
      machine.refuse({.of = one, .more = driver::fault_injector::without_end, .by_contract = false});
    std::string said;
    {
      held const gate(m, s);
      try {
        copy(s, dst, src, n, blocking::yes);
      } catch (driver_error const& e) {
        said = e.what();
      }
    }
    machine.forget_orders();
    EXPECT_TRUE(has(said, "dst " + std::string(up ? "gpu:0 " : "pinned ") + base::address_text(dst))) << said;
    EXPECT_TRUE(has(said, "src " + std::string(up ? "pinned " : "gpu:0 ") + base::address_text(src))) << said;
  }
  s.ref().synchronize();
}

TEST_F(routes, explain_says_why_for_every_pair_of_places) {
  EXPECT_TRUE(has(explain_copy(a.data(), p.data(), n).reason, "pinned"));
  EXPECT_TRUE(has(explain_copy(a.data(), host.data(), n).reason, "pageable"));
  EXPECT_TRUE(has(explain_copy(a.data(), b.data(), n).reason, "one device"));
  EXPECT_TRUE(has(explain_copy(a.data(), c.data(), n).reason, "gets access"));
  enable_peer_access(c.data(), device(0));
  EXPECT_TRUE(has(explain_copy(a.data(), c.data(), n).reason, "has access"));
  EXPECT_TRUE(has(explain_copy(host.data(), p.data(), n).reason, "host"));
}

TEST_F(routes, a_dead_device_is_named_and_the_others_go_on) {
  m.control().lose_device(1);
  EXPECT_THROW(copy(t, c.data(), host.data(), n), device_lost);
  EXPECT_THROW(copy(t, host.data(), c.data(), n), device_lost);
  for (bool const there : {true, false}) {
    try {
      there ? copy(s, c.data(), a.data(), n) : copy(s, a.data(), c.data(), n);
      ADD_FAILURE() << "went through";
    } catch (device_lost const& e) {
      EXPECT_NE(std::string(e.what()).find(": gpu:1: the device is lost"), std::string::npos) << e.what();
    }
  }
  copy(s, a.data(), host.data(), n);
  EXPECT_EQ(test::read_back(a.data(), n, 0), host);
  EXPECT_EQ(m.pinned().validate(), std::vector<std::string>{});
}

TEST_F(routes, a_device_lost_under_staging_spares_the_host) {
  std::size_t const many = 10_MiB;
  buffer large(many, {.on = device(1)});
  auto const before = pattern(many, 3);
  auto target = before;
  {
    held gate(m, t);
    copy(t, target.data(), large.data(), many, non_blocking);
    m.control().lose_device(1);
  }
  EXPECT_THROW(stream_ref(t).synchronize(), device_lost);
  EXPECT_EQ(target, before);
  EXPECT_EQ(m.pinned().validate(), std::vector<std::string>{});
}

TEST_F(routes, a_refused_staged_copy_writes_nothing_later) {
  std::size_t const many = 24_MiB;  // three chunks
  stream_guard const home{s};
  buffer large(many, {.on = device(0)});
  fill(large.data(), std::byte{7}, many);
  auto const before = pattern(many, 3);
  auto target = before;
  copy(s, target.data(), large.data(), many);  // makes the slots
  target = before;
  {
    held gate(m, s);
    m.control().fail_call("host_function", 3, driver::code::failed);
    EXPECT_THROW(copy(s, target.data(), large.data(), many, non_blocking), driver_error);
  }
  s.ref().synchronize();
  EXPECT_EQ(target, before);
  copy(s, target.data(), large.data(), many);
  EXPECT_EQ(target, test::bytes_of_host(many, std::byte{7}));
}

TEST_F(routes, a_refused_batch_writes_no_pageable_memory_later) {
  auto target = host;
  {
    held gate(m, s);
    m.control().fail_call("copy_peer", 1, driver::code::failed);
    copy_item const two[] = {{target.data(), a.data(), n}, {c.data(), b.data(), n}};
    EXPECT_THROW(copy(s, two, non_blocking), driver_error);
  }
  s.ref().synchronize();
  EXPECT_EQ(target, host);
}

// Every call of a scenario is refused in turn: a typed error, nothing lost, and the same copy works again.
struct scenario {
  char const* name;
  std::size_t bytes;
  bool linked;
  void (*run)(scenario const&, stream_ref on0, stream_ref on1, void* gpu0, void* gpu1, std::byte* in_pinned,
              std::byte* from, std::byte* to);
};
void PrintTo(scenario const& one, std::ostream* out) {
  *out << one.name;
}
scenario const scenarios[] = {
    {"pageable_out_and_back", 600_KiB, true,
     [](scenario const& o, stream_ref s, stream_ref, void* gpu, void*, std::byte*, std::byte* from, std::byte* to) {
       copy(s, gpu, from, o.bytes, non_blocking);
       copy(s, to, gpu, o.bytes);
     }},
    {"pinned_out_and_back", 8192, true,
     [](scenario const& o, stream_ref s, stream_ref, void* gpu, void*, std::byte* in_pinned, std::byte* from,
        std::byte* to) {
       std::memcpy(in_pinned, from, o.bytes);
       copy(s, gpu, in_pinned, o.bytes);
       std::memset(in_pinned, 0, o.bytes);
       copy(s, in_pinned, gpu, o.bytes);
       std::memcpy(to, in_pinned, o.bytes);
     }},
    {"over_the_link", 16_KiB, true,
     [](scenario const& o, stream_ref s, stream_ref t, void* gpu0, void* gpu1, std::byte*, std::byte* from,
        std::byte* to) {
       copy(s, gpu0, from, o.bytes, non_blocking);
       copy(t, gpu1, gpu0, o.bytes);
       copy(t, to, gpu1, o.bytes);
     }},
    {"staged_between_devices", 600_KiB, false,
     [](scenario const& o, stream_ref s, stream_ref t, void* gpu0, void* gpu1, std::byte*, std::byte* from,
        std::byte* to) {
       copy(s, gpu0, from, o.bytes, non_blocking);
       copy(s, gpu1, gpu0, o.bytes);
       t.wait(s);
       copy(t, to, gpu1, o.bytes);
     }},
};

struct refused_calls : ::testing::TestWithParam<scenario> {};
INSTANTIATE_TEST_SUITE_P(of, refused_calls, ::testing::ValuesIn(scenarios),
                         [](auto const& at) { return std::string(at.param.name); });

TEST_P(refused_calls, each_gives_a_typed_error_and_can_be_repeated) {
  auto const& one = GetParam();
  bool refused_one = true;
  for (std::uint64_t k = 1; refused_one; ++k) {
    ASSERT_LT(k, 400u);
    test::machine m(
        {.devices = 2, .memory = 64_MiB, .peers = one.linked ? simulated::links::all : simulated::links::none});
    stream s{device(0)}, t{device(1)};
    buffer gpu0(one.bytes, {.on = device(0)}), gpu1(one.bytes, {.on = device(1)}), in_pinned = pinned(one.bytes);
    auto from = pattern(one.bytes, k);
    test::bytes_of_host to(one.bytes);
    auto const run = [&] {
      stream_guard by_source(s);
      stream_guard by_target(t);
      one.run(one, s, t, gpu0.data(), gpu1.data(), in_pinned.data<std::byte>(), from.data(), to.data());
    };
    m.control().fail_call("any", k, driver::code::failed);
    refused_one = false;
    try {
      run();
    } catch (driver_error const&) {
      refused_one = true;
    }
    EXPECT_TRUE(refused_one || to == from) << "call " << k;  // absorbed, or never reached
    EXPECT_EQ(m.pinned().validate(), std::vector<std::string>{}) << "call " << k;
    driver::fault_injector_of(m.driver())->forget_orders();
    std::fill(to.begin(), to.end(), std::byte{0});
    run();
    EXPECT_EQ(to, from) << "after call " << k;
    for (int d = 0; d < 2; ++d)
      EXPECT_EQ(m.memory(d).validate(), std::vector<std::string>{}) << "call " << k;
    EXPECT_EQ(m.control().findings(), std::vector<std::string>{}) << "call " << k;
    if (!refused_one && k < 30)
      refused_one = true;  // an absorbed refusal does not end the calls
  }
}

}  // namespace
}  // namespace weir
