// On a guarded machine, only running work that declared device memory can access it.
// Threads: one, and the machine's.
#include "runtime/core/parts.h"
#include "streams/stream/context.h"
#include "tests/check/programs.h"

#if defined(__SANITIZE_ADDRESS__)
constexpr bool by_the_byte = true;
#else
constexpr bool by_the_byte = false;
#endif

namespace weir::check_tests {
namespace {

using how = simulated::scheduling;

struct guarded : ::testing::TestWithParam<how> {
  // the checker guards memory
  runtime rt{simulated{.devices = 2, .memory = 64_MiB, .schedule = GetParam(), .seed = 7}, {.check_races = true}};
  runtime_guard const in{rt};
};
struct guarded_death : guarded {};

TEST_P(guarded, work_reads_and_writes_its_declared_ranges) {
  stream s, t;
  stream_guard const home{s.ref()};
  buffer x(4096), y(4096), far(4096, {.on = device(1)}), host = pinned(4096);
  write(s, x.data(), 4096);
  launch(s, {reads(x), writes(y)}, on_gpu,
         [from = x.data<char>(), to = y.data<char>()] { std::copy(from, from + 4096, to); });
  copy(far.data(), y.data(), 4096);
  copy(host.data(), far.data(), 4096, blocking::yes);
  EXPECT_EQ(host.host<char>()[4095], 1);
  t.ref().wait(s);
  read(t, y.data<char>() + 17, 30);
  s.ref().wait(t);
  fill(y.data(), std::byte{5}, 4096);
  std::vector<char> pageable(4096);
  copy(pageable.data(), y.data(), 4096, blocking::yes);
  EXPECT_EQ(pageable[1], 5);
  synchronize();
  expect_none(race_reports());
}

// Regression: the end of one reader closed the bytes to the other, and AddressSanitizer reported the access.
TEST_P(guarded, concurrent_readers_keep_the_bytes_open) {
  stream s, t;
  buffer x(64 << 10);
  write(current_stream(), x.data(), x.size());
  for (stream* one : {&s, &t})
    one->wait(current_stream());
  for (int i = 0; i < 40; ++i) {
    read(s, x.data(), 100 + static_cast<size_t>(i));
    read(t, x.data(), x.size());
  }
  synchronize();
  expect_none(race_reports());
}

TEST_P(guarded, memory_that_comes_back_is_guarded_again) {
  stream s;
  stream_guard const home{s.ref()};
  for (int i = 0; i < 30; ++i) {
    buffer x(1000 + static_cast<size_t>(i) * 5000);
    write(s, x.data(), x.size());
    if (i % 10 == 9)
      empty_cache();
  }
  synchronize();
  expect_none(race_reports());
}

[[maybe_unused]] void host_touches_a_block() {
  buffer x(4096);
  synchronize();
  *static_cast<char volatile*>(x.data()) = 1;
}

constexpr int stray_launch = __LINE__ + 3;
void work_touches_another_block() {
  buffer x(8_MiB), y(8_MiB);
  launch(current_stream(), {writes(x)}, on_gpu, [p = y.data<char>() + 4_MiB] { *static_cast<char volatile*>(p) = 1; });
  synchronize();
}

[[maybe_unused]] void work_touches_a_byte_too_far() {
  buffer x(1000);
  launch(current_stream(), {writes(x)}, on_gpu, [p = x.data<char>()] { p[1000] = 1; });
  synchronize();
}

void a_race_and_then_a_stray_touch() {
  stream a, b;
  buffer x(4096);
  write(a, x.data(), 4096);
  read(b, x.data(), 4096);
  synchronize();
  *static_cast<char volatile*>(x.data()) = 1;
}

void a_race_and_then_an_exception() {
  stream a, b;
  buffer x(4096);
  write(a, x.data(), 4096);
  read(b, x.data(), 4096);
  launch(a, {}, on_gpu, [] { throw std::runtime_error("no such word"); });
  synchronize();
}

// Under AddressSanitizer the process ends with the sanitizer's own report.
TEST_P(guarded_death, races_found_before_the_end_are_printed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  if (!by_the_byte) {
    EXPECT_DEATH(
        a_race_and_then_a_stray_touch(),
        "host code touched.*\n.*the race checker found (1 error|2 errors):\n.*race: bytes 0-4095 of block 1 of gpu:0");
  }
  EXPECT_DEATH(
      a_race_and_then_an_exception(),
      "no such word.*\n.*the race checker found (1 error|2 errors):\n.*race: bytes 0-4095 of block 1 of gpu:0");
}

TEST_P(guarded_death, a_host_access_names_the_block_before_the_end) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(host_touches_a_block(), by_the_byte ? "use-after-poison"
                                                   : "host code touched 0x[0-9a-f]+, memory of gpu:0, in byte 0 of "
                                                     "block 1 of gpu:0 .4096 B, allocated at guard_test.cpp:[0-9]+");
}

TEST_P(guarded_death, an_undeclared_access_of_work_is_named) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(work_touches_another_block(),
               by_the_byte ? "use-after-poison"
                           : "work .launch at guard_test.cpp:" + std::to_string(stray_launch) +
                                 " on stream 1 of gpu:0. touched 0x[0-9a-f]+, memory of gpu:0, in byte 4194304 of "
                                 "block 2.*reads.p., writes.p.");
}

// Work that bypasses weir's own check for live blocks.
struct passed_by {
  passed_by() : rt(runtime::current()), line(streams::clock_of(current_stream())) {}
  void write(void* p, size_t bytes) {
    driver::touch const t{reinterpret_cast<driver::address>(p), bytes, true};
    struct target {
      char* at;
      size_t bytes;
    };
    driver::work const w{[](void* at) {
                           auto const& to = *static_cast<target*>(at);
                           for (size_t i = 0; i < to.bytes; ++i)
                             static_cast<char volatile*>(to.at)[i] = 1;
                         },
                         [](void* at) { delete static_cast<target*>(at); }, new target{static_cast<char*>(p), bytes}};
    EXPECT_TRUE(rt.get().machine().enqueue(0, line.handle(), {&t, 1}, w).ok());
  }
  runtime& rt;
  clock::stream_clock& line;
};

TEST_P(guarded, work_given_before_a_free_goes_on) {
  stream s;
  stream_guard const home{s.ref()};
  passed_by by;
  for (int i = 0; i < 3; ++i) {
    buffer x(1000), y(3000);
    write(s, x.data(), 1000);
    by.write(y.data(), 3000);
    x.reset();
    y.reset();
    buffer z(3000);
    write(s, z.data(), 3000);
  }
  synchronize();
  expect_none(race_reports());
}

#if defined(__SANITIZE_ADDRESS__)
void work_touches_a_block_given_back(size_t too_far) {
  stream s;
  stream_guard const home{s.ref()};
  passed_by by;
  buffer x(1000), y(1000);
  auto* const p = x.data<char>();
  by.write(p, 1000);
  x.reset();
  by.write(p + 1000 - too_far, too_far);  // enqueued after the free, although no other block has this place
  synchronize();
}

void an_engine_touches_a_block_given_back() {
  buffer x(4096), y(4096);
  void* const gone = x.data();
  x.reset();
  EXPECT_TRUE(runtime::current()
                  .get()
                  .machine()
                  .copy(0, streams::clock_of(current_stream()).handle(), y.data(), gone, 100)
                  .ok());
  synchronize();
}

TEST_P(guarded_death, work_given_after_a_free_ends_at_one_byte) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (size_t const bytes : {1, 8, 1000})
    EXPECT_DEATH(work_touches_a_block_given_back(bytes), "use-after-poison");
  EXPECT_DEATH(an_engine_touches_a_block_given_back(), "use-after-poison");
}

TEST_P(guarded_death, one_byte_too_far_is_caught_by_guarded_bytes) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(work_touches_a_byte_too_far(), "use-after-poison");
}
#endif

INSTANTIATE_TEST_SUITE_P(machine, guarded, ::testing::Values(how::threads, how::seeded, how::stepped));
INSTANTIATE_TEST_SUITE_P(machine, guarded_death, ::testing::Values(how::threads, how::seeded));

}  // namespace
}  // namespace weir::check_tests
