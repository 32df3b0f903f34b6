// Loops through slots: order, overlap, each refusal, and each way to end.
// Threads: the test's is the consumer; a loop has its own.
#include "weir/pipeline.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "tests/streams/stepped_machine.h"
#include "weir/copy.h"
#include "weir/launch.h"
#include "weir/observe.h"
#include "weir/parallel_for.h"
#include "weir/sim.h"

namespace weir {
namespace {

constexpr std::size_t batch_bytes = 4096;

// Batch n is full of the byte n + 1.
fill_function counting(std::uint64_t batches) {
  return [batches](std::uint64_t n, std::span<std::byte> to) {
    if (n >= batches)
      return std::size_t{0};
    std::memset(to.data(), static_cast<int>(n + 1), to.size());
    return to.size();
  };
}

struct pipelines : testing::Test {
  runtime machine{simulated{.devices = 2, .memory = 64_MiB}, {.check_races = true}};
  runtime_guard in{machine};
  stream work;

  void TearDown() override {
    for (auto const& r : race_reports())
      ADD_FAILURE() << r.text;
  }

  std::byte first_byte(batch const& b) const {
    buffer const to = pinned(batch_bytes);
    copy(b.stream(), to.data(), b.data(), b.size());
    return to.host<std::byte>()[0];
  }
  // What a refused call says about its operands.
  template <class F>
  std::string refusal(F f) {
    return refused<invalid_use>(f);
  }
};

TEST_F(pipelines, batches_come_in_order_with_their_bytes) {
  for (int const threads : {1, 4}) {
    for (int const slots : {1, 2, 5}) {
      loader from({.batch_bytes = batch_bytes, .slots = slots, .threads = threads}, counting(20));
      std::uint64_t n = 0;
      while (auto const b = from.next(work)) {
        EXPECT_EQ(b->number(), n);
        EXPECT_EQ(b->size(), batch_bytes);
        EXPECT_EQ(first_byte(*b), std::byte(++n));
      }
      EXPECT_EQ(n, 20u);
    }
  }
}

TEST_F(pipelines, the_last_batch_may_be_short) {
  loader from({.batch_bytes = batch_bytes},
              [](std::uint64_t n, std::span<std::byte>) -> std::size_t { return n < 2 ? batch_bytes - n * 4000 : 0; });
  EXPECT_EQ(from.next()->size(), batch_bytes);
  EXPECT_EQ(from.next()->size(), batch_bytes - 4000);
  EXPECT_EQ(from.next(), std::nullopt);
}

// The current stream of the loader's device, also where another device is current.
TEST_F(pipelines, a_loader_serves_the_device_that_it_was_made_for) {
  loader from({.batch_bytes = batch_bytes, .on = device(1)}, counting(1));
  auto const b = from.next();
  EXPECT_EQ(b->stream(), default_stream(1));
  EXPECT_EQ(find_block(b->data())->on, device(1));
  EXPECT_EQ(first_byte(*b), std::byte{1});
}

// ---- overlap --------------------------------------------------------------------------------------------

using stepped_pipelines = stepped_machine;

// No compute has run, and yet the next batches come: their copies are enqueued, and run.
TEST_F(stepped_pipelines, batches_come_while_the_first_is_worked_on) {
  stream compute;
  loader from({.batch_bytes = batch_bytes, .slots = 3}, counting(3));
  buffer seen[3];
  for (int i = 0; i < 3; ++i) {
    auto const b = from.next(compute);
    seen[i] = pinned(batch_bytes);
    work(compute, i);
    copy(compute, seen[i].data(), b->data(), b->size(), non_blocking);
  }
  EXPECT_TRUE(log.empty());
  simulation::of(rt).run();
  EXPECT_EQ(log, (std::vector{0, 1, 2}));
  compute.synchronize();
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(seen[i].host<std::byte>()[0], std::byte(i + 1));
}

// The one slot is given again before its work has run: the device waits, not the host.
TEST_F(stepped_pipelines, a_slot_is_given_again_without_a_host_wait) {
  stream compute;
  buffer const seen = pinned(2 * batch_bytes);
  loader from({.batch_bytes = batch_bytes, .slots = 1}, counting(2));
  auto b = from.next(compute);
  work(compute, 1);
  copy(compute, seen.data(), b->data(), batch_bytes, non_blocking);
  b.reset();
  b = from.next(compute);
  EXPECT_TRUE(log.empty());
  copy(compute, seen.data<std::byte>() + batch_bytes, b->data(), batch_bytes, non_blocking);
  simulation::of(rt).run();
  compute.synchronize();
  EXPECT_EQ(seen.host<std::byte>()[0], std::byte{1});
  EXPECT_EQ(seen.host<std::byte>()[batch_bytes], std::byte{2});
}

// ---- what is refused ------------------------------------------------------------------------------------

TEST_F(pipelines, wrong_options_are_refused) {
  auto const make = [](loader_options o) { loader const made(o, counting(1)); };
  EXPECT_EQ(refusal([&] { make({}); }), "batches of 0 B");
  EXPECT_EQ(refusal([&] { make({.batch_bytes = 1, .slots = 0}); }), "0 slots");
  EXPECT_EQ(refusal([&] { make({.batch_bytes = 1, .threads = -1}); }), "-1 threads that fill");
  EXPECT_EQ(refusal([&] { loader const made({.batch_bytes = 1}, nullptr); }), "an empty function");
  EXPECT_EQ(refusal([&] {
              run_pipeline(
                  {.batch_bytes = 1}, counting(1), [](batch const&) {}, nullptr);
            }),
            "an empty function");
}

TEST_F(pipelines, a_call_after_the_end_is_refused) {
  loader from({.batch_bytes = batch_bytes}, counting(1));
  EXPECT_TRUE(from.next());
  EXPECT_FALSE(from.next());
  EXPECT_EQ(refusal([&] { from.next(); }), "a call after the last of 1 batches");
}

TEST_F(pipelines, a_batch_larger_than_its_slot_is_refused) {
  loader from({.batch_bytes = 100}, [](std::uint64_t n, std::span<std::byte>) { return n ? 101u : 100u; });
  EXPECT_TRUE(from.next());
  for (int again = 0; again < 2; ++again)
    EXPECT_EQ(refusal([&] { from.next(); }), "fill of batch 1 returned 101 B, and a slot holds 100 B");
}

TEST_F(pipelines, a_batch_is_refused_while_all_slots_are_held) {
  loader from({.batch_bytes = batch_bytes, .slots = 2}, counting(4));
  auto first = from.next();
  auto const second = from.next();
  EXPECT_EQ(refusal([&] { from.next(); }), "all 2 slots are held by batches, so batch 2 would never come");
  first.reset();
  EXPECT_EQ(from.next()->number(), 2u);
}

TEST_F(pipelines, a_second_consumer_is_refused) {
  std::atomic<bool> waits = false, go = false;
  loader from({.batch_bytes = batch_bytes}, [&](std::uint64_t n, std::span<std::byte> to) {
    waits = true;
    while (!go)
      std::this_thread::yield();
    return n ? 0 : to.size();
  });
  std::string said;
  std::thread other([&] {
    runtime_guard const here(machine);
    while (!waits)
      std::this_thread::yield();
    // Either thread may be the first to wait.
    try {
      from.next(work);
    } catch (invalid_use const& e) {
      said = e.operands();
    }
    go = true;
  });
  std::string mine;
  try {
    from.next(work);
  } catch (invalid_use const& e) {
    mine = e.operands();
    go = true;
  }
  other.join();
  EXPECT_EQ(mine + said, "a second thread, while another one waits for batch 0");
}

// The batch stays next.
TEST_F(pipelines, a_stream_that_cannot_wait_is_refused) {
  loader from({.batch_bytes = batch_bytes}, counting(1));
  EXPECT_EQ(refusal([&] { from.next(default_stream(1)); }), "a stream of gpu:1 for batches on gpu:0");
  simulated_stream const raw;
  EXPECT_NE(refusal([&] { from.next(borrow_stream(0, raw.handle())); }).find("a borrowed stream"), std::string::npos);
  EXPECT_EQ(from.next()->number(), 0u);
}

TEST_F(pipelines, a_batch_is_refused_after_its_loader) {
  std::optional<batch> kept;
  {
    loader from({.batch_bytes = batch_bytes}, counting(1));
    kept = from.next();
    auto moved = std::move(*kept);
    EXPECT_EQ(refusal([&] { (void)kept->data(); }), "batch 0, which was moved from");
    *kept = std::move(moved);
    EXPECT_NE(kept->data(), nullptr);
    EXPECT_EQ(refusal([&] { (void)kept->result(); }), "a batch of a loader, which writes no results");
    EXPECT_EQ(refusal([&] { kept->set_result_size(1); }), "a batch of a loader, which writes no results");
  }
  EXPECT_EQ(refusal([&] { (void)kept->data(); }), "batch 0 of a loader that has ended");
  kept.reset();
}

// ---- failures -------------------------------------------------------------------------------------------

TEST_F(pipelines, what_a_fill_throws_comes_with_its_number) {
  for (int const threads : {1, 3}) {
    loader from({.batch_bytes = batch_bytes, .threads = threads}, [](std::uint64_t n, std::span<std::byte> to) {
      if (n >= 2)
        throw std::runtime_error("no disk " + std::to_string(n));
      return to.size();
    });
    EXPECT_EQ(from.next()->number(), 0u);
    EXPECT_EQ(from.next()->number(), 1u);
    for (int again = 0; again < 2; ++again) {
      try {
        from.next();
        ADD_FAILURE() << "a batch came";
      } catch (batch_failed const& e) {
        EXPECT_EQ(e.number(), 2u);
        EXPECT_EQ(e.operands(), "fill of batch 2 threw: no disk 2");
        EXPECT_THROW(std::rethrow_exception(e.cause()), std::runtime_error);
      }
    }
  }
}

TEST_F(pipelines, a_lost_device_is_told_and_the_loader_ends) {
  std::atomic<bool> lost = false;
  loader from({.batch_bytes = batch_bytes, .slots = 2}, [&](std::uint64_t n, std::span<std::byte> to) {
    while (n == 2 && !lost)
      std::this_thread::yield();
    return to.size();
  });
  from.next(work);
  from.next(work);
  simulation::of(machine).lose_device(0);
  lost = true;
  EXPECT_THROW(from.next(work), device_lost);
}

// ---- ends -----------------------------------------------------------------------------------------------

TEST_F(pipelines, a_loader_ends_while_its_slots_are_full) {
  for (int const threads : {1, 3}) {
    loader const unused({.batch_bytes = batch_bytes, .slots = 2, .threads = threads}, counting(100));
    loader used({.batch_bytes = batch_bytes, .slots = 2, .threads = threads}, counting(100));
    used.next(work);
  }
}

TEST_F(pipelines, an_exception_of_the_consumer_ends_a_loader) {
  auto const consume = [] {
    loader from({.batch_bytes = batch_bytes}, counting(100));
    auto const first = from.next();
    auto const second = from.next();
    throw std::length_error("of the consumer");
  };
  EXPECT_THROW(consume(), std::length_error);
}

// The last work uses the slots after the loader's end. Their memory serves no other block before that work is done.
TEST_F(stepped_pipelines, memory_serves_others_behind_the_work_given) {
  stream compute, other;
  buffer const seen = pinned(batch_bytes);
  {
    loader from({.batch_bytes = batch_bytes, .slots = 1}, counting(1));
    auto const b = from.next(compute);
    work(compute, 1);
    copy(compute, seen.data(), b->data(), b->size(), non_blocking);
  }
  buffer const next(other, batch_bytes);
  fill(other, next.data(), std::byte{99}, batch_bytes);
  simulation::of(rt).run();
  compute.synchronize();
  EXPECT_EQ(seen.host<std::byte>()[0], std::byte{1});
}

TEST(pipelines_of_runtimes, a_loader_may_end_after_its_runtime) {
  auto machine = std::make_unique<runtime>(simulated{.devices = 1, .memory = 64_MiB});
  std::optional<runtime_guard> in(std::in_place, *machine);
  loader from({.batch_bytes = batch_bytes, .slots = 2}, counting(100));
  std::optional<batch> kept = from.next();
  in.reset();
  machine.reset();
  EXPECT_THROW(from.next(), error);
  kept.reset();
}

// A thread that waits for a batch is told so. The runtime's end waits for the call of fill.
TEST(pipelines_of_runtimes, a_runtime_ends_a_loop_that_waits) {
  auto machine = std::make_unique<runtime>(simulated{.devices = 1, .memory = 64_MiB});
  std::optional<runtime_guard> in(std::in_place, *machine);
  std::atomic<bool> waits = false, go = false;
  loader from({.batch_bytes = batch_bytes}, [&](std::uint64_t n, std::span<std::byte> to) {
    while (n == 1 && !go)
      std::this_thread::yield();
    return to.size();
  });
  auto const kept = from.next();
  std::string said;
  std::thread consumer([&] {
    waits = true;
    said = refused<invalid_use>([&] { from.next(kept->stream()); });
  });
  while (!waits)
    std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  std::thread until_it_ends([&] {
    (void)refused<invalid_use>([&] {
      while (kept->data())
        std::this_thread::yield();
    });
    go = true;
  });
  in.reset();
  machine.reset();
  consumer.join();
  until_it_ends.join();
  EXPECT_EQ(said, "a loop that has ended, or whose runtime has");
}

// ---- results --------------------------------------------------------------------------------------------

void double_bytes(batch const& b, std::byte* to) {
  auto const* const from = b.data<unsigned char>();
  parallel_for(b.stream(), b.size(), {updates(b), writes(to)}, [from, to] WEIR_HOST_DEVICE(std::size_t i) {
    to[i] = std::byte(static_cast<unsigned char>(from[i] * 2));
  });
}

TEST_F(pipelines, results_are_written_in_order_on_another_thread) {
  for (std::size_t const result_bytes : {std::size_t{0}, batch_bytes}) {
    for (int const slots : {1, 3}) {
      std::uint64_t written = 0;
      std::uint64_t const n = run_pipeline(
          {.batch_bytes = batch_bytes, .result_bytes = result_bytes, .slots = slots, .threads = 2}, counting(20),
          [](batch const& b) { double_bytes(b, b.result<std::byte>()); },
          [&, mine = std::this_thread::get_id()](std::uint64_t number, std::span<std::byte const> from) {
            EXPECT_NE(std::this_thread::get_id(), mine);
            EXPECT_EQ(number, written++);
            EXPECT_EQ(from.size(), batch_bytes);
            EXPECT_EQ(from[batch_bytes - 1], std::byte((number + 1) * 2));
          });
      EXPECT_EQ(n, 20u);
      EXPECT_EQ(written, 20u);
    }
  }
}

TEST_F(pipelines, a_result_has_the_size_that_compute_sets) {
  std::size_t all = 0;
  run_pipeline(
      {.batch_bytes = batch_bytes, .result_bytes = 64}, counting(3),
      [&](batch const& b) {
        EXPECT_EQ(refusal([&] { b.set_result_size(65); }), "65 B of a result that holds 64 B");
        fill(b.stream(), b.result(), std::byte{7}, 64);
        b.set_result_size(b.number());
      },
      [&](std::uint64_t n, std::span<std::byte const> from) {
        EXPECT_EQ(from.size(), n);
        all += from.size();
      });
  EXPECT_EQ(all, 3u);
}

// No work, a failure of each stage: the batches before it are written, and none after it.
TEST_F(pipelines, a_failure_leaves_the_batches_before_it_written) {
  for (std::string const stage : {"fill", "compute", "write"}) {
    std::uint64_t written = 0;
    auto const fail = [&](std::uint64_t n, std::string const& here) {
      if (n == 5 && here == stage)
        throw std::length_error("of " + here);
    };
    auto const go = [&] {
      run_pipeline(
          {.batch_bytes = batch_bytes, .threads = 2},
          [&](std::uint64_t n, std::span<std::byte> to) { return fail(n, "fill"), to.size(); },
          [&](batch const& b) { fail(b.number(), "compute"); },
          [&](std::uint64_t n, std::span<std::byte const>) { fail(n, "write"), ++written; });
    };
    if (stage == "compute") {
      EXPECT_THROW(go(), std::length_error);
    } else {
      EXPECT_THROW(go(), batch_failed);
    }
    EXPECT_EQ(written, 5u) << stage;
  }
}

TEST_F(pipelines, a_lost_device_ends_a_pipeline) {
  EXPECT_THROW(run_pipeline(
                   {.batch_bytes = batch_bytes}, counting(100),
                   [&](batch const& b) {
                     if (b.number() == 3)
                       simulation::of(machine).lose_device(0);
                   },
                   [](std::uint64_t, std::span<std::byte const>) {}),
               device_lost);
}

// Each stage waits here for another batch's, and would wait for ever if the two could not overlap.
TEST_F(pipelines, stages_of_different_batches_overlap) {
  std::atomic<std::uint64_t> filled = 0, computed = 0;
  auto const until = [](std::atomic<std::uint64_t> const& counter, std::uint64_t n) {
    while (counter < n)
      std::this_thread::yield();
  };
  run_pipeline(
      {.batch_bytes = batch_bytes, .slots = 3},
      [&](std::uint64_t n, std::span<std::byte> to) {
        ++filled;
        return n < 6 ? to.size() : 0;
      },
      [&](batch const& b) {
        until(filled, std::min<std::uint64_t>(b.number() + 2, 6));
        ++computed;
      },
      [&](std::uint64_t n, std::span<std::byte const>) { until(computed, std::min<std::uint64_t>(n + 2, 6)); });
  EXPECT_EQ(computed, 6u);
}

}  // namespace
}  // namespace weir
