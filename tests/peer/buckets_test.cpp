// Gradient buckets: reduced in place while the backward pass still runs.
#include <algorithm>
#include <numeric>

#include "runtime/core/parts.h"
#include "streams/stream/context.h"
#include "tests/peer/ranks.h"
#include "tests/support/on_purpose.h"
#include "weir/graph.h"
#include "weir/launch.h"
#include "weir/sim.h"

namespace {

using namespace weir;
using namespace weir::test;

constexpr std::int64_t counts[] = {3, 1000, 1, 64, 4097, 0, 257, 512};
constexpr int parameters = static_cast<int>(std::size(counts));

void add_all(gradient_buckets& g, dtype type = float32) {
  for (int i = 0; i < parameters; ++i)
    EXPECT_EQ(g.add("layer " + std::to_string(i), counts[i], type), i);
}

double written(int rank, int step, int which, std::int64_t i) {
  return static_cast<double>((i + rank * 3 + step * 5 + which * 7) % 64) - 20;
}

void write(stream_ref to, device_span gradient, int rank, int step, int which) {
  elements const e =
      encode(gradient.dtype, values_of(gradient.count, [&](std::int64_t i) { return written(rank, step, which, i); }));
  copy(to, gradient.data, e.data(), e.size());
}

// Gradients become ready in any order.
TEST(gradient_buckets, every_step_ends_with_the_mean_on_all_ranks) {
  int const n = ranks_here();
  for (std::size_t const bucket_bytes : {std::size_t{1}, std::size_t{6000}, std::size_t{0}}) {
    auto ranks = communicator::create_all(first_devices(n));
    on_each(runtime::current(), ranks, [&](communicator& c) {
      std::mt19937 random(static_cast<unsigned>(c.rank()) + 17u);  // another order on each rank
      gradient_buckets g(c, {.bucket_bytes = bucket_bytes});
      add_all(g);
      g.build();
      stream const other;
      std::vector<int> order(parameters);
      std::iota(order.begin(), order.end(), 0);
      for (int step = 0; step < 4; ++step) {
        std::shuffle(order.begin(), order.end(), random);
        for (int const i : order) {
          stream_ref const writer = random() % 2 ? other.ref() : current_stream();
          write(writer, g.gradient(i), c.rank(), step, i);
          pause_at_random(random);
          g.mark_ready(i, writer);
        }
        g.finish(current_stream());
        for (int i = 0; i < parameters; ++i) {
          device_span const gradient = g.gradient(i);
          std::vector<double> const mean = values_of(counts[i], [&](std::int64_t at) {
            double sum = 0;
            for (int r = 0; r < n; ++r)
              sum += written(r, step, i, at);
            return sum / n;
          });
          elements const got = to_host(gradient.data, static_cast<std::size_t>(counts[i]) * 4);
          for (std::int64_t at = 0; at < counts[i]; ++at)
            ASSERT_NEAR(decode(float32, got.data() + at * 4), mean[static_cast<std::size_t>(at)], 1e-5)
                << "step " << step << " gradient " << i;
        }
        other.ref().wait(current_stream());
      }
    });
  }
}

// Each launch reduces what its own gradients hold then.
TEST(gradient_buckets, a_captured_step_reduces_at_each_launch) {
  runtime own(simulated{.devices = 3, .memory = 16_MiB});
  runtime_guard const in(own);
  auto ranks = communicator::create_all(first_devices(3));
  on_each(own, ranks, [&](communicator& c) {
    stream const s;
    stream_guard const here(s);
    gradient_buckets g(c, {.bucket_bytes = 4096});
    add_all(g);
    g.build();
    auto const enqueue = [&] {  // the gradients are the parameters
      for (int i = parameters - 1; i >= 0; --i) {
        auto const bytes = static_cast<std::size_t>(counts[i]) * 4;
        copy(s, g.gradient(i).data, g.parameter(i).data, bytes);
        g.mark_ready(i, s);
      }
      g.finish(s);
    };
    graph step = graph::capture(s, enqueue);
    (void)graph::capture(s, enqueue);  // never launched
    for (int turn = 0; turn < 4; ++turn) {
      if (turn == 2)
        enqueue();
      for (int i = 0; i < parameters; ++i)
        write(s, g.parameter(i), c.rank(), turn, i);
      step.launch(s);
      for (int i = 0; i < parameters; ++i) {
        elements const got = to_host(g.gradient(i).data, static_cast<std::size_t>(counts[i]) * 4);
        for (std::int64_t at = 0; at < counts[i]; ++at) {
          double const sum = written(0, turn, i, at) + written(1, turn, i, at) + written(2, turn, i, at);
          ASSERT_NEAR(decode(float32, got.data() + at * 4), sum / 3, 1e-5) << "launch " << turn << " gradient " << i;
        }
      }
    }
  });
}

// A step is abandoned: its gradient's bucket is not full, so no reduction follows it. The memory serves again
// only after the writer's work.
TEST(gradient_buckets, an_abandoned_step_waits_for_its_writer) {
  runtime own(simulated{.devices = 1, .memory = 4_MiB, .schedule = simulated::scheduling::stepped});
  runtime_guard const in(own);
  auto ranks = communicator::create_all(first_devices(1));
  device_guard const on(0);
  stream const writer, next;
  stamp wrote;
  {
    gradient_buckets g(ranks[0]);
    g.add("a", 200'000), g.add("b", 200'000);
    g.build();
    launch_host(writer, [] {});  // weir knows of this work only through mark_ready()
    g.mark_ready(0, writer);
    wrote = writer.stamp();
  }
  void* const again = allocate(next.ref(), 3_MiB);  // needs all memory
  EXPECT_TRUE(streams::clock_of(next.ref()).covers(streams::inner_stamp(wrote)));
  deallocate(again);
}

// Gradients begin as zeros.
TEST(gradient_buckets, parameters_and_gradients_lie_alike) {
  auto ranks = communicator::create_all(first_devices(1));
  device_guard const on(0);
  gradient_buckets g(ranks[0], {.bucket_bytes = 4096});
  add_all(g, float64);
  g.build();
  device_span const all_p = g.parameters(), all_g = g.gradients();
  ASSERT_EQ(all_p.count, all_g.count);
  auto const offset = [](device_span part, device_span whole) {
    return static_cast<std::byte*>(part.data) - static_cast<std::byte*>(whole.data);
  };
  std::vector<std::pair<std::ptrdiff_t, std::ptrdiff_t>> ranges;
  for (int i = 0; i < g.size(); ++i) {
    EXPECT_EQ(offset(g.parameter(i), all_p), offset(g.gradient(i), all_g));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(g.gradient(i).data) % 512, 0u);
    ranges.emplace_back(offset(g.gradient(i), all_g), offset(g.gradient(i), all_g) + counts[i] * 8);
  }
  std::sort(ranges.begin(), ranges.end());
  EXPECT_GE(ranges.front().first, 0);
  EXPECT_LE(ranges.back().second, all_g.count * 8);
  for (std::size_t i = 1; i < ranges.size(); ++i)
    EXPECT_LE(ranges[i - 1].second, ranges[i].first);
  EXPECT_GE(offset(all_g, all_p), all_p.count * 8);
  EXPECT_EQ(to_host(all_p.data, static_cast<std::size_t>(all_p.count) * 8),
            elements(static_cast<std::size_t>(all_p.count) * 8));
  EXPECT_EQ(to_host(all_g.data, static_cast<std::size_t>(all_g.count) * 8),
            elements(static_cast<std::size_t>(all_g.count) * 8));
}

TEST(gradient_buckets, memory_is_zeroed_on_the_stream_named) {
  auto ranks = communicator::create_all(first_devices(1));
  stream const s(device(0));
  gradient_buckets g(ranks[0]);
  g.add("one", 1000);
  if (device_count() > 1) {
    EXPECT_NE(refusal<invalid_use>([&] { g.build(default_stream(device(1))); }).find("gpu:1"), std::string::npos);
  }
  g.build(s);
  EXPECT_EQ(find_block(g.parameters().data)->home, s.ref());
  s.synchronize();
  EXPECT_EQ(to_host(g.parameters().data, 4000), elements(4000));
}

TEST(gradient_buckets, are_cut_from_last_to_first_by_size_and_type) {
  auto ranks = communicator::create_all(first_devices(1));
  device_guard const on(0);
  gradient_buckets g(ranks[0], {.bucket_bytes = 4096});
  g.add("a", 1024, float32);
  g.add("b", 512, float32);
  g.add("c", 512, float32);  // b and c fill a bucket
  g.add("d", 8, float64);    // another type
  g.build();
  EXPECT_EQ(g.bucket_count(), 3);
  EXPECT_LT(g.gradient(3).data, g.gradient(2).data);
  EXPECT_LT(g.gradient(2).data, g.gradient(1).data);
  EXPECT_LT(g.gradient(1).data, g.gradient(0).data);
  EXPECT_NE(refusal<invalid_use>([&] { (void)g.gradients(); }).find("\"d\" of float64"), std::string::npos);
}

// Other sizes can still be built.
TEST(gradient_buckets, overflowing_sizes_are_refused) {
  auto ranks = communicator::create_all(first_devices(1));
  device_guard const on(0);
  gradient_buckets g(ranks[0]);
  constexpr std::int64_t huge = std::int64_t{1} << 56;
  std::string refused;
  int added = 0;
  for (; added < 16 && refused.empty(); ++added)
    refused = refusal<invalid_use>([&] { g.add("huge", huge, float64); });
  EXPECT_EQ(added, 16) << "15 of them and their gradients still have addresses";
  EXPECT_NE(refused.find("\"huge\" of 72057594037927936 float64 (576460752303423488 B) beside 8646911284551352320 B"),
            std::string::npos)
      << refused;
  EXPECT_EQ(g.size(), 15);
  EXPECT_THROW(g.build(), error);

  gradient_buckets other(ranks[0]);
  add_all(other);
  EXPECT_THROW(other.add("huge", huge * 2, int8), invalid_use);
  EXPECT_NO_THROW(other.build());
}

// The step can still end.
TEST(gradient_buckets, a_gradient_ready_twice_or_never_is_named) {
  auto ranks = communicator::create_all(first_devices(1));
  device_guard const on(0);
  gradient_buckets g(ranks[0]);
  add_all(g);
  g.build();
  for (int step = 0; step < 2; ++step) {
    for (int i = 0; i < parameters - 2; ++i)
      g.mark_ready(i, current_stream());
    std::string const twice = refusal<invalid_use>([&] { g.mark_ready(1, current_stream()); });
    EXPECT_NE(twice.find("\"layer 1\" (gradient 1) is ready twice"), std::string::npos) << twice;
    std::string const never = refusal<invalid_use>([&] { g.finish(current_stream()); });
    EXPECT_NE(
        never.find("2 of 8 gradients were not marked as ready: \"layer 6\" (gradient 6), \"layer 7\" (gradient 7)"),
        std::string::npos)
        << never;
    g.mark_ready(6, current_stream());
    g.mark_ready(7, current_stream());
    g.finish(current_stream());
  }
}

TEST(gradient_buckets, a_borrowed_writer_is_named) {
  runtime own(simulated{.devices = 1, .memory = 64_MiB});
  runtime_guard const in(own);
  auto ranks = communicator::create_all(first_devices(1));
  device_guard const on(0);
  simulated_stream const theirs(device(0));
  gradient_buckets g(ranks[0]);
  g.add("layer", 4);
  g.build();
  stream_ref const borrowed = borrow_stream(device(0), theirs.handle());
  borrowed.wait(current_stream());
  fill(borrowed, g.gradient(0).data, std::byte{1}, 16);
  std::string const said = refusal<invalid_use>([&] { g.mark_ready(0, borrowed); });
  EXPECT_NE(said.find("\"layer\" (gradient 0) from a borrowed stream"), std::string::npos) << said;
  current_stream().wait(borrowed);
  g.mark_ready(0, current_stream());
  g.finish(current_stream());
}

TEST(gradient_buckets, after_their_runtime_each_call_says_so) {
  auto own = std::make_unique<runtime>(simulated{.devices = 1, .memory = 64_MiB});
  std::vector<communicator> ranks;
  std::optional<gradient_buckets> b;
  {
    runtime_guard const in(*own);
    ranks = communicator::create_all(std::vector{device(0)});
    b.emplace(ranks[0]);
    b->add("a", 10);
    b->build();
  }
  own.reset();
  runtime next(simulated{.devices = 1, .memory = 64_MiB});
  runtime_guard const in(next);
  auto const said = [](auto call) {
    try {
      call();
    } catch (invalid_use const& e) {
      return std::string(e.operation()) + ": " + std::string(e.operands());
    }
    return std::string();
  };
  EXPECT_EQ(said([&] { b->mark_ready(0, current_stream()); }),
            "gradient_buckets::mark_ready: the communicator's runtime has ended");
  EXPECT_EQ(said([&] { b->finish(current_stream()); }),
            "gradient_buckets::finish: the communicator's runtime has ended");
}

TEST(gradient_buckets, of_many_missing_gradients_eight_are_named) {
  auto ranks = communicator::create_all(first_devices(1));
  device_guard const on(0);
  for (int const n : {8, 9}) {
    gradient_buckets g(ranks[0]);
    for (int i = 0; i < n; ++i)
      g.add("layer " + std::to_string(i), 1);
    g.build();
    std::string const never = refusal<invalid_use>([&] { g.finish(current_stream()); });
    EXPECT_NE(never.find("\"layer 7\" (gradient 7)"), std::string::npos) << never;
    EXPECT_EQ(never.find("layer 8"), std::string::npos) << never;
    EXPECT_EQ(never.find(", …") != std::string::npos, n > 8) << never;
  }
}

TEST(gradient_buckets, wrong_order_or_foreign_memory_is_refused) {
  auto ranks = communicator::create_all(first_devices(1));
  device_guard const on(0);
  gradient_buckets g(ranks[0]);
  EXPECT_NE(refusal<invalid_use>([&] { g.build(); }), "");
  g.add("a", 4);
  EXPECT_NE(refusal<invalid_use>([&] { g.mark_ready(0, current_stream()); }), "");
  EXPECT_NE(refusal<invalid_use>([&] { g.gradient(0); }), "");
  EXPECT_NE(refusal<invalid_use>([&] { g.finish(current_stream()); }), "");
  EXPECT_NE(refusal<invalid_use>([&] { g.add("negative", -1); }), "");
  EXPECT_NE(refusal<not_supported>([&] { g.add("flags", 4, boolean); }), "");
  g.build();
  EXPECT_NE(refusal<invalid_use>([&] { g.build(); }), "");
  EXPECT_NE(refusal<invalid_use>([&] { g.add("late", 4); }), "");
  EXPECT_NE(refusal<invalid_use>([&] { g.mark_ready(1, current_stream()); }).find("gradient 1 of 1"),
            std::string::npos);
  EXPECT_NE(refusal<invalid_use>([&] { g.mark_ready(-1, current_stream()); }), "");
  if (device_count() > 1) {
    EXPECT_NE(refusal<invalid_use>([&] { g.mark_ready(0, default_stream(device(1))); }).find("gpu:1"),
              std::string::npos);
  }
  g.mark_ready(0, current_stream());
  g.finish(current_stream());
}

// One thread arranges the order of the ranks, which a simulated machine allows.
class simulated_buckets : public testing::Test {
 protected:
  runtime machine_{simulated{.devices = 2, .memory = 1_GiB}};
  runtime_guard in_{machine_};
  std::vector<communicator> ranks_ = communicator::create_all(first_devices(2));
  std::vector<gradient_buckets> buckets_;

  void SetUp() override {
    for (communicator& c : ranks_) {
      device_guard const on(c.device());
      buckets_.emplace_back(c, bucket_options{.bucket_bytes = 1, .average = false});
      buckets_.back().add("first", 4, int32);
      buckets_.back().add("last", 4, int32);
      buckets_.back().build();
    }
  }
  void write_ready(int rank, int which, stream_ref writer) {
    device_span const g = buckets_[static_cast<std::size_t>(rank)].gradient(which);
    elements const e = encode(int32, {1.0 + rank, 2, 3, 4});
    device_guard const on(rank);
    copy(writer, g.data, e.data(), e.size());
    buckets_[static_cast<std::size_t>(rank)].mark_ready(which, writer);
  }
  static void all_done() {
    for (int rank : {0, 1})
      synchronize(device(rank));
  }
  elements read(int rank, int which) {
    device_guard const on(rank);
    stream const apart;
    elements e(16);
    copy(apart, e.data(), buckets_[static_cast<std::size_t>(rank)].gradient(which).data, e.size());
    return e;
  }
};

TEST_F(simulated_buckets, a_full_bucket_is_reduced_during_the_pass) {
  for (int rank : {0, 1})
    write_ready(rank, 1, default_stream(device(rank)));
  all_done();
  for (int rank : {0, 1}) {
    EXPECT_EQ(read(rank, 1), encode(int32, {3, 4, 6, 8}));
    EXPECT_EQ(read(rank, 0), encode(int32, {0, 0, 0, 0}));
  }
  for (int rank : {0, 1})
    write_ready(rank, 0, default_stream(device(rank)));
  for (int rank : {0, 1})
    buckets_[static_cast<std::size_t>(rank)].finish(default_stream(device(rank)));
}

TEST_F(simulated_buckets, a_bucket_starts_after_those_in_front_of_it) {
  for (int rank : {0, 1})
    write_ready(rank, 0, default_stream(device(rank)));
  all_done();
  EXPECT_EQ(read(0, 0), encode(int32, {1, 2, 3, 4}));  // its own value, not reduced
  for (int rank : {0, 1})
    write_ready(rank, 1, default_stream(device(rank)));
  all_done();
  EXPECT_EQ(read(0, 0), encode(int32, {3, 4, 6, 8}));
}

TEST_F(simulated_buckets, a_reduction_is_ordered_with_its_users) {
  device_guard const on(0);
  stream const writer, reader;
  writer.ref().wait(default_stream(device(0)));  // the stream on which the buckets were made
  driver::driver& machine = machine_.get().machine();
  device_span const last = buckets_[0].gradient(1);
  auto const gate = machine.hold(0, streams::clock_of(writer).handle());
  ASSERT_TRUE(gate.ok());
  buffer const source = pinned(16);
  elements const e = encode(int32, {1, 2, 3, 4});
  std::copy(e.begin(), e.end(), source.data<std::byte>());
  copy(writer, last.data, source.data(), 16, non_blocking);  // behind the gate
  buckets_[0].mark_ready(1, writer);
  buckets_[0].mark_ready(0, writer);
  write_ready(1, 1, default_stream(device(1)));
  write_ready(1, 0, default_stream(device(1)));
  buckets_[0].finish(reader);
  simulation hand = simulation::of(machine_);
  EXPECT_NE(refusal<invalid_use>([&] { hand.run(); }), "");
  EXPECT_FALSE(reader.ref().query());
  EXPECT_EQ(read(1, 1), encode(int32, {2, 2, 3, 4})) << "rank 1's gradient is not reduced before rank 0's is written";
  ASSERT_TRUE(machine.open_gate(gate.value).ok());
  hand.run();
  EXPECT_TRUE(reader.ref().query());
  all_done();
  EXPECT_EQ(read(1, 1), encode(int32, {3, 4, 6, 8}));
  tests::reported_on_purpose();  // a gradient was read while it was being reduced
}

TEST_F(simulated_buckets, a_refused_start_is_made_up_for_by_finish) {
  for (int rank : {0, 1})
    write_ready(rank, 1, default_stream(device(rank)));
  write_ready(1, 0, default_stream(device(1)));
  simulation::of(machine_).fail_call("enqueue", 1);
  EXPECT_NE(refusal<driver_error>([&] { write_ready(0, 0, default_stream(device(0))); }), "");
  for (int rank : {0, 1})
    buckets_[static_cast<std::size_t>(rank)].finish(default_stream(device(rank)));
  all_done();
  EXPECT_EQ(read(0, 0), encode(int32, {3, 4, 6, 8}));
  EXPECT_EQ(read(1, 0), encode(int32, {3, 4, 6, 8}));
}

TEST_F(simulated_buckets, a_build_without_memory_can_be_tried_again) {
  gradient_buckets g(ranks_[0]);
  g.add("huge", std::int64_t{1} << 30, float32);
  device_guard const on(0);
  EXPECT_THROW(g.build(), out_of_memory);
  EXPECT_NE(refusal<invalid_use>([&] { g.gradient(0); }), "");
  gradient_buckets small(ranks_[0]);
  small.add("small", 1 << 20);
  small.build();
}

// Equal shares round up what add() allows: parameters and gradients would take 2^64 B, and that is 0.
TEST_F(simulated_buckets, shares_that_round_up_too_far_are_refused) {
  gradient_buckets g(ranks_[0], {.bucket_bytes = 1, .sharded = true});
  for (int i = 0; i < 16; ++i)
    g.add("huge", (std::int64_t{1} << 56) - (i == 15 ? 64 : 0), float64);
  device_guard const on(0);
  EXPECT_THROW(g.build(), out_of_memory);
}

TEST_F(simulated_buckets, a_second_build_cuts_the_same_buckets) {
  gradient_buckets g(ranks_[0], {.bucket_bytes = 1});
  g.add("first", 4 << 20, int32);
  g.add("last", 4 << 20, int32);
  device_guard const on(0);
  set_memory_limit(1);
  EXPECT_THROW(g.build(), out_of_memory);
  set_memory_limit(0);
  g.build();
  EXPECT_EQ(g.bucket_count(), 2);
}

}  // namespace
