// The table of docs/reference/copies.md, row by row: which calls block, and when the source may be touched.
// Threads: a stream held by a gate stands for work that is not done; nothing here is proved by time.
#include <atomic>
#include <thread>

#include "tests/peer/machine_fixture.h"
#include "tests/support/on_purpose.h"

namespace weir {
namespace {

using test::held;
using test::pattern;

constexpr std::size_t n = 300'001;  // odd, and more than one chunk of staging

// The same tests on a simulated machine and on GPUs. SetUp copies everything once before streams are held: a
// call that makes pages or opens memory to a peer may block.
struct copies : ::testing::TestWithParam<char const*> {
  void SetUp() override {
    made = GetParam() == std::string_view("cuda") ? test::machine::of_gpus() : std::make_unique<test::machine>();
    if (!made)
      GTEST_SKIP() << "no GPU";
    own.emplace(*made);
  }
  void TearDown() override {
    own.reset();
    made.reset();
  }
  bool two_devices() const { return made->get().device_count() > 1; }

  std::unique_ptr<test::machine> made;
  struct owned {
    explicit owned(test::machine& m)
        : s(device(0)), on_gpu(n, {.on = device(0)}), on_same(n, {.on = device(0)}), in_pinned(pinned(n)) {
      if (m.get().device_count() > 1) {
        t.emplace(device(1));
        on_peer = buffer(n, {.on = device(1)});
      }
      // Makes room for every slot: registering pages may block behind a gate.
      if (!m.driver().simulated())
        pinned(96_MiB).reset();
      test::bytes_of_host out(n);
      copy(s, on_gpu.data(), out.data(), n);
      copy(s, out.data(), on_gpu.data(), n);
      copy(s, on_same.data(), on_gpu.data(), n);
      if (t)
        copy(*t, on_peer.data(), on_gpu.data(), n);
      if (t)
        t->ref().synchronize();
      s.ref().synchronize();
    }
    stream s;
    std::optional<stream> t;
    buffer on_gpu, on_same, in_pinned, on_peer;
    test::bytes_of_host in_pageable = pattern(n, 1), first = pattern(n, 2), second = pattern(n, 3);
  };
  std::optional<owned> own;
  std::byte* pinned_bytes() { return own->in_pinned.data<std::byte>(); }
  test::bytes_of_host gpu_bytes() { return test::read_back(own->on_gpu.data(), n, 0); }
  void fill_gpu(test::bytes_of_host const& with) { copy(own->s, own->on_gpu.data(), with.data(), n); }

  // The call returns only after the gate opens.
  template <class Call>
  void expect_waits_for(held& gate, Call call) {
    std::atomic<bool> opening{false};
    std::thread caller([&] {
      runtime_guard in(made->own);
      call();
      EXPECT_TRUE(opening.load());
    });
    for (int i = 0; i < 100; ++i)
      std::this_thread::yield();
    opening.store(true);
    gate.open();
    caller.join();
  }
};

INSTANTIATE_TEST_SUITE_P(on, copies, ::testing::Values("simulated", "cuda"),
                         [](auto const& at) { return std::string(at.param); });

TEST_P(copies, pinned_to_device_reads_the_source_until_the_stamp) {
  auto& [s, t, on_gpu, on_same, in_pinned, on_peer, in_pageable, first, second] = *own;
  std::memcpy(pinned_bytes(), first.data(), n);
  held gate(*made, s);
  stamp const done = copy(s, on_gpu.data(), pinned_bytes(), n, non_blocking);
  EXPECT_FALSE(done.query());
  std::memcpy(pinned_bytes(), second.data(), n);  // too early: these bytes arrive
  gate.open();
  done.synchronize();
  EXPECT_EQ(gpu_bytes(), second);
  EXPECT_EQ(explain_copy(on_gpu.data(), pinned_bytes(), n).by, copy_route::engine);
  tests::reported_on_purpose();  // the source changed
}

TEST_P(copies, pinned_to_device_blocking_frees_the_source) {
  auto& [s, t, on_gpu, on_same, in_pinned, on_peer, in_pageable, first, second] = *own;
  std::memcpy(pinned_bytes(), first.data(), n);
  held gate(*made, s);
  expect_waits_for(gate, [&] {
    EXPECT_TRUE(copy(s, on_gpu.data(), pinned_bytes(), n).query());
    std::memcpy(pinned_bytes(), second.data(), n);
  });
  EXPECT_EQ(gpu_bytes(), first);
}

TEST_P(copies, device_to_pinned_arrives_by_the_stamp) {
  auto& [s, t, on_gpu, on_same, in_pinned, on_peer, in_pageable, first, second] = *own;
  fill_gpu(first);
  std::memcpy(pinned_bytes(), second.data(), n);
  held gate(*made, s);
  stamp const done = copy(s, pinned_bytes(), on_gpu.data(), n, non_blocking);
  EXPECT_FALSE(done.query());
  EXPECT_EQ(std::memcmp(pinned_bytes(), second.data(), n), 0);
  tests::reported_on_purpose();  // the target was read before its copy was waited for
  gate.open();
  done.synchronize();
  EXPECT_EQ(std::memcmp(pinned_bytes(), first.data(), n), 0);
}

TEST_P(copies, device_to_pinned_blocking_returns_with_the_bytes) {
  auto& [s, t, on_gpu, on_same, in_pinned, on_peer, in_pageable, first, second] = *own;
  fill_gpu(first);
  held gate(*made, s);
  expect_waits_for(gate, [&] {
    copy(s, pinned_bytes(), on_gpu.data(), n);
    EXPECT_EQ(std::memcmp(pinned_bytes(), first.data(), n), 0);
  });
}

// The stream has not run yet.
TEST_P(copies, pageable_to_device_returns_after_the_read) {
  auto& [s, t, on_gpu, on_same, in_pinned, on_peer, in_pageable, first, second] = *own;
  held gate(*made, s);
  stamp const done = copy(s, on_gpu.data(), first.data(), n, non_blocking);
  EXPECT_FALSE(done.query());
  auto const was = first;
  std::fill(first.begin(), first.end(), std::byte{0});  // after the return: does not change the bytes that arrive
  gate.open();
  done.synchronize();
  EXPECT_EQ(gpu_bytes(), was);
  EXPECT_EQ(explain_copy(on_gpu.data(), first.data(), n).by, copy_route::staged);
}

TEST_P(copies, pageable_to_device_blocking_returns_after_arrival) {
  auto& [s, t, on_gpu, on_same, in_pinned, on_peer, in_pageable, first, second] = *own;
  held gate(*made, s);
  expect_waits_for(gate, [&] { EXPECT_TRUE(copy(s, on_gpu.data(), first.data(), n).query()); });
  EXPECT_EQ(gpu_bytes(), first);
}

TEST_P(copies, pageable_to_device_waits_while_slots_are_full) {
  auto& [s, t, on_gpu, on_same, in_pinned, on_peer, in_pageable, first, second] = *own;
  std::size_t const many = streams::staging::budget + 10_MiB;
  stream_guard const home{s};
  buffer large(many, {.on = device(0)});
  auto const source = pattern(many, 9);
  copy(s, large.data(), source.data(), many);  // makes the slots
  fill(large.data(), std::byte{0}, many);
  synchronize(device(0));
  held gate(*made, s);
  auto& staging = made->get().part<streams::staging>();
  expect_waits_for(gate, [&] { copy(s, large.data(), source.data(), many, non_blocking); });
  EXPECT_EQ(test::read_back(large.data(), many, 0), source);
  EXPECT_LE(made->pinned().statistics().reserved_bytes.all.peak, std::int64_t(2 * streams::staging::budget));
  EXPECT_EQ(staging.in_use(0), 0u);
}

TEST_P(copies, device_to_pageable_arrives_in_stream_order) {
  auto& [s, t, on_gpu, on_same, in_pinned, on_peer, in_pageable, first, second] = *own;
  fill_gpu(first);
  auto const before = in_pageable;
  held gate(*made, s);
  stamp const done = copy(s, in_pageable.data(), on_gpu.data(), n, non_blocking);
  copy(s, on_gpu.data(), second.data(), n, non_blocking);  // later work of the stream does not change the result
  EXPECT_FALSE(done.query());
  EXPECT_EQ(in_pageable, before);
  gate.open();
  done.synchronize();
  EXPECT_EQ(in_pageable, first);
}

TEST_P(copies, device_to_pageable_blocking_returns_with_the_bytes) {
  auto& [s, t, on_gpu, on_same, in_pinned, on_peer, in_pageable, first, second] = *own;
  fill_gpu(first);
  held gate(*made, s);
  expect_waits_for(gate, [&] {
    copy(s, in_pageable.data(), on_gpu.data(), n);
    EXPECT_EQ(in_pageable, first);
  });
}

TEST_P(copies, device_to_pageable_of_many_slots_brings_every_byte) {
  auto& [s, t, on_gpu, on_same, in_pinned, on_peer, in_pageable, first, second] = *own;
  std::size_t const many = 50_MiB + 77;
  stream_guard const home{s};
  buffer large(many, {.on = device(0)});
  auto const source = pattern(many, 4);
  copy(s, large.data(), source.data(), many, non_blocking);
  test::bytes_of_host out(many);
  copy(s, out.data(), large.data(), many);
  fill(out.data(), std::byte{0}, many);
  held gate(*made, s);
  stamp const done = copy(s, out.data(), large.data(), many, non_blocking);
  gate.open();
  done.synchronize();
  EXPECT_EQ(out, source);
}

TEST_P(copies, within_a_device_returns_at_once_blocking_or_not) {
  auto& [s, t, on_gpu, on_same, in_pinned, on_peer, in_pageable, first, second] = *own;
  fill_gpu(first);
  held gate(*made, s);
  stamp const done = copy(s, on_same.data(), on_gpu.data(), n);  // blocking::yes, but the host has nothing to wait for
  EXPECT_FALSE(done.query());
  gate.open();
  done.synchronize();
  EXPECT_EQ(test::read_back(on_same.data(), n, 0), first);
  EXPECT_EQ(explain_copy(on_same.data(), on_gpu.data(), n).by, copy_route::same_device);
}

TEST_P(copies, between_devices_is_ordered_with_both_streams) {
  auto& [s, t, on_gpu, on_same, in_pinned, on_peer, in_pageable, first, second] = *own;
  if (!two_devices())
    GTEST_SKIP() << "one device";
  fill_gpu(first);
  EXPECT_EQ(explain_copy(on_peer.data(), on_gpu.data(), n).by, copy_route::peer);
  stream_guard by_source(s);
  stream_guard by_target(*t);
  held gate(*made, *t);  // the target's stream has earlier work
  copy(*t, on_peer.data(), second.data(), n, non_blocking);
  stamp const done = copy(on_peer.data(), on_gpu.data(), n);  // runs on the source's stream
  EXPECT_FALSE(done.query());
  test::bytes_of_host out(n);
  // The target's stream reads the copied bytes.
  stamp const after = copy(*t, out.data(), on_peer.data(), n, non_blocking);
  gate.open();
  after.synchronize();
  EXPECT_EQ(out, first);
}

// The copy runs on the target's stream.
TEST_P(copies, between_devices_waits_for_the_sources_stream) {
  auto& [s, t, on_gpu, on_same, in_pinned, on_peer, in_pageable, first, second] = *own;
  if (!two_devices())
    GTEST_SKIP() << "one device";
  stream_guard by_source(s);
  held gate(*made, s);
  copy(s, on_gpu.data(), first.data(), n, non_blocking);
  stamp const done = copy(*t, on_peer.data(), on_gpu.data(), n);
  EXPECT_FALSE(done.query());
  copy(s, on_gpu.data(), second.data(), n, non_blocking);  // ordered after the copy that reads
  gate.open();
  done.synchronize();
  EXPECT_EQ(test::read_back(on_peer.data(), n, 1), first);
}

TEST_P(copies, host_to_host_waits_for_the_stream_and_blocks) {
  auto& [s, t, on_gpu, on_same, in_pinned, on_peer, in_pageable, first, second] = *own;
  fill_gpu(first);
  held gate(*made, s);
  copy(s, pinned_bytes(), on_gpu.data(), n, non_blocking);
  expect_waits_for(gate, [&] {
    copy(s, in_pageable.data(), pinned_bytes(), n, non_blocking);
    EXPECT_EQ(in_pageable, first);
  });
  EXPECT_EQ(explain_copy(in_pageable.data(), pinned_bytes(), n).by, copy_route::host);
}

TEST_P(copies, set_fills_in_stream_order_and_host_memory_at_once) {
  auto& [s, t, on_gpu, on_same, in_pinned, on_peer, in_pageable, first, second] = *own;
  stream_guard in(s);
  held gate(*made, s);
  stamp const done = fill(on_gpu.data(), std::byte{0x5a}, n);
  EXPECT_FALSE(done.query());
  gate.open();
  done.synchronize();
  EXPECT_EQ(gpu_bytes(), test::bytes_of_host(n, std::byte{0x5a}));
  fill(pinned_bytes(), std::byte{1}, n);
  EXPECT_EQ(pinned_bytes()[n - 1], std::byte{1});
}

struct copies_without_links : ::testing::Test {
  test::machine m{{.devices = 2, .memory = 512_MiB, .peers = simulated::links::none}};
};

TEST_F(copies_without_links, are_staged_in_the_same_order) {
  std::size_t const many = 21_MiB + 5;
  stream s{device(0)}, t{device(1)};
  buffer from(many, {.on = device(0)}), to(many, {.on = device(1)});
  auto const source = pattern(many, 5);
  EXPECT_EQ(explain_copy(to.data(), from.data(), many).by, copy_route::staged);
  stream_guard by_source(s);
  stream_guard by_target(t);
  held gate(m, s);
  copy(s, from.data(), source.data(), many, non_blocking);
  stamp const done = copy(to.data(), from.data(), many);
  EXPECT_FALSE(done.query());
  test::bytes_of_host out(many);
  stamp const after = copy(t, out.data(), to.data(), many, non_blocking);
  fill(from.data(), std::byte{0}, many);  // on s: after the copy that reads
  gate.open();
  after.synchronize();
  EXPECT_EQ(out, source);
}

}  // namespace
}  // namespace weir
