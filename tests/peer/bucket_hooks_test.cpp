// Gradient buckets between gradient and reduction: a function of the program, and another type on the wire.
#include <algorithm>
#include <stdexcept>

#include "tests/peer/ranks.h"
#include "weir/graph.h"
#include "weir/launch.h"
#include "weir/sim.h"
#include "weir/tensor.h"

namespace weir::hooks_of_buckets {
namespace {

using namespace weir::test;

constexpr std::int64_t counts[] = {3, 1000, 0, 64, 4097};
constexpr int gradients = static_cast<int>(std::size(counts));

double value(int rank, int which, std::int64_t i) {
  return static_cast<double>((i + rank * 3 + which * 7) % 32) - 10;
}
double sum_of(int ranks, int which, std::int64_t i) {
  double sum = 0;
  for (int r = 0; r < ranks; ++r)
    sum += value(r, which, i);
  return sum;
}
void write(device_span to, int rank, int which) {
  elements const e = encode(to.dtype, values_of(to.count, [&](std::int64_t i) { return value(rank, which, i); }));
  copy(to.data, e.data(), e.size());
}
void expect(device_span at, double factor, int ranks, int which) {
  elements const got = to_host(at.data, static_cast<std::size_t>(at.count) * size_of(at.dtype));
  for (std::int64_t i = 0; i < at.count; ++i)
    ASSERT_EQ(decode(at.dtype, got.data() + static_cast<std::size_t>(i) * size_of(at.dtype)),
              factor * sum_of(ranks, which, i))
        << "gradient " << which << " element " << i;
}
void scale(device_span what, double by) {  // on the current stream
  tensor::from_blob(what.data, {what.count}, what.dtype, gpu).mul_(by);
}

// Its work runs behind the writers and before the reduction, whatever streams they are.
TEST(bucket_hooks, scale_every_gradient_once_before_its_reduction) {
  int const n = ranks_here();
  for (bool const of_program : {false, true}) {
    auto ranks = communicator::create_all(first_devices(n));
    on_each(runtime::current(), ranks, [&](communicator& c) {
      int calls = 0;
      bucket_options o{.bucket_bytes = 4096, .average = false};
      o.before_reduction = [&](device_span range, stream_ref s) {
        EXPECT_EQ(current_stream(), s);
        scale(range, 0.5);
        ++calls;
      };
      gradient_buckets g(c, o);
      buffer const memory(64 << 10);
      float* at = memory.data<float>();
      for (std::int64_t const count : counts) {
        if (of_program)
          g.add("g", {}, {at, count, float32});
        else
          g.add("g", count);
        at += count + 3;
      }
      g.build();
      stream const writer;
      for (int step = 0; step < 3; ++step) {
        writer.wait(current_stream());
        for (int i = gradients - 1; i >= 0; --i) {
          stream_guard const on(writer);
          write(g.gradient(i), c.rank(), i);
          g.mark_ready(i, writer);
        }
        g.finish(current_stream());
        for (int i = 0; i < gradients; ++i) {
          EXPECT_EQ(g.reduced(i).data, g.gradient(i).data);
          expect(g.gradient(i), 0.5, n, i);
        }
      }
      EXPECT_EQ(calls, 3 * (of_program ? 4 : g.bucket_count()));
    });
  }
}

// Three passes add to the gradients, and the last one marks them: the function and the reduction see the sums once.
TEST(bucket_passes, before_the_last_one_reduce_nothing) {
  int const n = ranks_here();
  auto ranks = communicator::create_all(first_devices(n));
  on_each(runtime::current(), ranks, [&](communicator& c) {
    int calls = 0;
    bucket_options o{.bucket_bytes = 1, .average = false};
    o.before_reduction = [&](device_span, stream_ref) { ++calls; };
    gradient_buckets g(c, o);
    for (int i = 0; i < 3; ++i)
      g.add("g", 100);
    g.build();
    buffer const of_pass(400);
    for (int pass = 0; pass < 3; ++pass)
      for (int i = 2; i >= 0; --i) {
        write({of_pass.data(), 100, float32}, c.rank(), i);
        g.gradient_tensor(i, {100}).add_(tensor::from_blob(of_pass.data(), {100}, float32, gpu));
        EXPECT_EQ(calls, pass < 2 ? 0 : 2 - i);
        if (pass == 2)
          g.mark_ready(i, current_stream());
      }
    g.finish(current_stream());
    for (int i = 0; i < 3; ++i)
      expect(g.gradient(i), 3, n, i);
  });
}

TEST(bucket_wire_types, reduce_a_cast_and_leave_the_gradient) {
  int const n = ranks_here();
  for (dtype const wire : {bfloat16, float16})
    for (bool const of_program : {false, true}) {
      auto ranks = communicator::create_all(first_devices(n));
      on_each(runtime::current(), ranks, [&](communicator& c) {
        gradient_buckets g(c, {.bucket_bytes = 4096, .average = false, .reduce_as = wire});
        buffer const memory(64 << 10);
        double* at = memory.data<double>();
        for (int i = 0; i < gradients; ++i) {
          dtype const type = i == 1 ? float64 : float32;
          if (of_program)
            g.add("g", {}, {at, counts[i], type});
          else
            g.add("g", counts[i], type);
          at += counts[i] + 3;
        }
        int const whole = g.add("whole numbers", 5, int32), half = g.add("half", 5, bfloat16);
        g.build();
        for (int step = 0; step < 2; ++step) {
          for (int i = g.size() - 1; i >= 0; --i) {
            write(g.gradient(i), c.rank(), i);
            g.mark_ready(i, current_stream());
          }
          g.finish(current_stream());
          for (int i = 0; i < g.size(); ++i)
            expect(g.reduced(i), 1, n, i);
        }
        for (int i = 0; i < gradients; ++i) {
          EXPECT_EQ(g.reduced(i).dtype, wire);
          device_span const own = g.gradient(i);
          EXPECT_EQ(to_host(own.data, static_cast<std::size_t>(own.count) * size_of(own.dtype)),
                    encode(own.dtype, values_of(own.count, [&](std::int64_t k) { return value(c.rank(), i, k); })));
        }
        for (int const i : {whole, half})
          EXPECT_EQ(g.reduced(i).data, g.gradient(i).data);
      });
    }
}

// The sums of the last step are read while the next one is cast: the reader's stream writes the gradients.
TEST(bucket_wire_types, a_captured_step_casts_at_each_launch) {
  runtime own(simulated{.devices = 2, .memory = 16_MiB});
  runtime_guard const in(own);
  auto ranks = communicator::create_all(first_devices(2));
  on_each(own, ranks, [&](communicator& c) {
    stream const s;
    stream_guard const here(s);
    bucket_options o{.average = false, .reduce_as = bfloat16};
    o.before_reduction = [](device_span range, stream_ref) { scale(range, 2); };
    gradient_buckets g(c, o);
    g.add("g", 300);
    g.build();
    graph step = graph::capture(s, [&] {
      copy(s, g.gradient(0).data, g.parameter(0).data, 1200);
      g.mark_ready(0, s);
      g.finish(s);
    });
    for (int turn = 0; turn < 3; ++turn) {
      write(g.parameter(0), c.rank(), turn);
      step.launch(s);
      expect(g.reduced(0), 2, 2, turn);
    }
  });
}

// Two simulated ranks, whose calls one thread makes in turn.
class bucket_preparation : public testing::Test {
 protected:
  runtime machine_{simulated{.devices = 2, .memory = 64_MiB}};
  runtime_guard in_{machine_};
  std::vector<communicator> ranks_ = communicator::create_all(first_devices(2));
  std::vector<gradient_buckets> buckets_;
  int calls_ = 0;

  void build(std::function<void(device_span, stream_ref)> f, std::optional<dtype> reduce_as = {}) {
    for (communicator& c : ranks_) {
      device_guard const on(c.device());
      bucket_options o{.bucket_bytes = 1, .average = false, .reduce_as = reduce_as};
      o.before_reduction = f;
      buckets_.emplace_back(c, o);
      buckets_.back().add("first", 4);
      buckets_.back().add("last", 4);
      buckets_.back().build();
      for (int i : {0, 1})
        write(buckets_.back().gradient(i), c.rank(), i);
    }
  }
  void mark(int rank, int which) {
    buckets_[static_cast<std::size_t>(rank)].mark_ready(which, default_stream(device(rank)));
  }
  void finish() {
    for (int r : {0, 1})
      buckets_[static_cast<std::size_t>(r)].finish(default_stream(device(r)));
  }
  void expect_all(double factor) {
    for (int r : {0, 1}) {
      device_guard const on(r);
      for (int i : {0, 1})
        expect(buckets_[static_cast<std::size_t>(r)].reduced(i), factor, 2, i);
    }
  }
};

// The function's work is launched, and the reduction behind it is refused.
TEST_F(bucket_preparation, a_refused_start_does_not_scale_twice) {
  for (std::optional<dtype> const wire : {std::optional<dtype>(), std::optional(bfloat16)}) {
    buckets_.clear(), calls_ = 0;
    build(
        [this](device_span range, stream_ref) {
          scale(range, 2);
          ++calls_;
        },
        wire);
    for (int r : {0, 1})
      mark(r, 1);
    mark(1, 0);
    simulation::of(machine_).fail_call("enqueue", wire ? 3 : 2);
    EXPECT_NE(refusal<driver_error>([&] { mark(0, 0); }), "");
    EXPECT_EQ(calls_, 4);
    finish();
    EXPECT_EQ(calls_, 4);
    expect_all(2);
  }
}

TEST_F(bucket_preparation, what_the_function_throws_is_made_up_for) {
  build([this](device_span range, stream_ref) {
    if (++calls_ == 3)
      throw std::runtime_error("no scale yet");
    scale(range, 2);
  });
  for (int r : {0, 1})
    mark(r, 1);
  try {
    mark(0, 0);
    FAIL() << "nothing was thrown";
  } catch (std::runtime_error const& e) {
    EXPECT_STREQ(e.what(), "no scale yet");
  }
  mark(1, 0);
  finish();
  EXPECT_EQ(calls_, 5);
  expect_all(2);
}

TEST_F(bucket_preparation, a_call_from_the_function_is_refused) {
  std::vector<std::string> said;
  build([&](device_span, stream_ref s) {
    said.push_back(refusal<invalid_use>([&] { buckets_[0].mark_ready(0, s); }));
    said.push_back(refusal<invalid_use>([&] { buckets_[0].finish(s); }));
  });
  mark(0, 1);
  ASSERT_EQ(said.size(), 2u);
  EXPECT_NE(said[0].find("gradient_buckets::mark_ready: a call from before_reduction"), std::string::npos) << said[0];
  EXPECT_NE(said[1].find("gradient_buckets::finish: a call from before_reduction"), std::string::npos) << said[1];
  ranks_[0].abort();
}

TEST_F(bucket_preparation, another_type_and_huge_sizes_are_refused) {
  gradient_buckets g(ranks_[0], {.reduce_as = float32});
  g.add("w", 4);
  std::string const said = refusal<invalid_use>([&] { g.build(); });
  EXPECT_NE(said.find("gradient_buckets::build: reduce_as is float32"), std::string::npos) << said;
  gradient_buckets huge(ranks_[0], {.reduce_as = bfloat16});
  for (int i = 0; i < 31; ++i)
    huge.add("huge", std::int64_t{1} << 56, float32);
  EXPECT_THROW(huge.build(), out_of_memory);
}

// Marks come from threads of the program, whose current runtime may be another.
TEST(bucket_hooks_elsewhere, run_in_the_runtime_of_their_ranks) {
  runtime own(simulated{.devices = 1, .memory = 16_MiB});
  std::vector<communicator> ranks;
  std::optional<stream> s;
  {
    runtime_guard const in(own);
    ranks = communicator::create_all(first_devices(1));
    s.emplace(device(0));
  }
  std::vector<std::int64_t> seen;
  gradient_buckets g(ranks[0], {.bucket_bytes = 1, .before_reduction = [&](device_span range, stream_ref) {
                                  EXPECT_EQ(&runtime::current(), &own);
                                  seen.push_back(range.count);
                                }});
  g.add("none", 0), g.add("some", 128);
  g.build(*s);
  for (int i : {1, 0})
    g.mark_ready(i, *s);
  g.finish(*s);
  EXPECT_EQ(seen, (std::vector<std::int64_t>{128})) << "a range of no elements is not shown";
}

}  // namespace
}  // namespace weir::hooks_of_buckets
