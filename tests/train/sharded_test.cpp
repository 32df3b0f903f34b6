// Sharded buckets: each rank has the sums and the optimizer's state of its part, and updates that part for
// all.
#include <cmath>
#include <limits>
#include <optional>

#include "tests/train/plain.h"
#include "weir/graph.h"
#include "weir/sim.h"

namespace weir::sharded_tests {
namespace {

using namespace weir::test;

// The last has fewer elements than there are ranks' gaps: some rank has no part of its bucket.
constexpr std::int64_t counts[] = {3, 5000, 70'000, 0, 9};
constexpr dtype types[] = {bfloat16, float32, float32, float32, float64};

void add_all(gradient_buckets& g) {
  for (std::size_t i = 0; i < std::size(counts); ++i)
    g.add("g", counts[i], types[i]);
  g.build();
}
std::size_t bytes_of_state(optimizer const& o) {
  std::size_t bytes = 0;
  for (state_part const& p : o.state())
    bytes += static_cast<std::size_t>(p.data.count) * size_of(p.data.dtype);
  return bytes;
}

TEST(sharded, parts_of_all_ranks_cover_each_element_once) {
  int const n = std::min(3, device_count());
  auto ranks = communicator::create_all(first_devices(n));
  std::vector<std::vector<gradient_buckets::part>> parts(ranks.size());
  on_each(runtime::current(), ranks, [&](communicator& c) {
    gradient_buckets g(c, {.bucket_bytes = 4096, .average = false, .sharded = true});
    add_all(g);
    EXPECT_TRUE(g.is_sharded());
    for (int i = g.size() - 1; i >= 0; --i) {
      write(g.gradient(i),
            values_of(g.gradient(i).count, [&](std::int64_t k) { return static_cast<double>((k + c.rank()) % 7); }));
      g.mark_ready(i, current_stream());
    }
    g.finish(current_stream());
    for (int i = 0; i < g.size(); ++i) {
      gradient_buckets::part const mine = g.own(i);
      parts[static_cast<std::size_t>(c.rank())].push_back(mine);
      std::vector<double> const got = values_in(g.reduced(i));
      for (std::int64_t k = mine.first; k < mine.first + mine.count; ++k) {
        double sum = 0;
        for (int r = 0; r < n; ++r)
          sum += static_cast<double>((k + r) % 7);
        ASSERT_EQ(got[static_cast<std::size_t>(k)], sum) << "gradient " << i << " element " << k;
      }
    }
  });
  for (std::size_t i = 0; i < std::size(counts); ++i) {
    std::int64_t next = 0;
    for (auto const& of_rank : parts) {
      if (of_rank[i].count > 0) {
        EXPECT_EQ(of_rank[i].first, next);
        next += of_rank[i].count;
      }
    }
    EXPECT_EQ(next, counts[i]) << i;
  }
}

struct trained {
  std::vector<elements> parameters;
  elements norm;
  std::size_t bytes;
  double steps, skipped;
};
// Five steps, the third of which has one infinite number in a part of the last rank.
// overlaps: parameters are gathered behind the update of their bucket
std::vector<trained> train(int n, bool sharded, bool captured, bool overlaps = false) {
  auto ranks = communicator::create_all(first_devices(n));
  std::vector<trained> all(ranks.size());
  on_each(runtime::current(), ranks, [&](communicator& c) {
    stream const s;
    stream_guard const in(s);
    gradient_buckets g(c, {.bucket_bytes = 4096, .sharded = sharded});
    add_all(g);
    std::mt19937 same(1), own(static_cast<unsigned>(2 + c.rank()));
    for (int i = 0; i < g.size(); ++i)
      write(g.parameter(i), random_values(same, counts[i]));
    loss_scale scale({.first = 2});
    adamw o(g, {.rate = 0.1, .max_norm = 1e6, .scale = &scale, .ranks = sharded ? &c : nullptr});
    std::optional<graph> graph;
    auto const step = [&] {
      for (int i = g.size() - 1; i >= 0; --i)
        g.mark_ready(i, s);
      g.finish(s);
      if (overlaps)
        o.step(s, g);
      else
        o.step(s);
      if (sharded)
        g.gather(s);
    };
    if (captured)
      graph.emplace(graph::capture(s, step));
    for (int t = 0; t < 5; ++t) {
      for (int i = 0; i < g.size(); ++i) {
        auto values = random_values(own, counts[i]);
        if (t == 2 && i == 2 && c.rank() == 0)
          values[0] = std::numeric_limits<double>::infinity();
        write(g.gradient(i), values);
      }
      if (graph)
        graph->launch(s);
      else
        step();
    }
    auto& mine = all[static_cast<std::size_t>(c.rank())];
    for (int i = 0; i < g.size(); ++i)
      mine.parameters.push_back(bits_of(g.parameter(i)));
    mine.norm = bits_of(o.norm());
    mine.bytes = bytes_of_state(o);
    mine.steps = static_cast<double>(o.steps(s)), mine.skipped = static_cast<double>(o.skipped(s));
  });
  return all;
}

// Simulated sums are the same bit by bit; so is all else that an element meets, for the norm is below its
// limit.
TEST(sharded, steps_have_the_bits_of_whole_ones_with_less_state) {
  runtime own(simulated{.devices = 4, .memory = 64_MiB});
  runtime_guard const in(own);
  auto const whole = train(4, false, false);
  for (int const how : {0, 1, 2, 3}) {
    auto const parts = train(4, true, how % 2 == 1, how >= 2);
    std::size_t bytes = 0;
    for (std::size_t r = 0; r < parts.size(); ++r) {
      EXPECT_EQ(parts[r].parameters, whole[0].parameters) << "rank " << r;
      EXPECT_EQ(parts[r].norm, parts[0].norm) << "rank " << r;
      EXPECT_NEAR(decode(float32, parts[r].norm.data()), decode(float32, whole[0].norm.data()), 1e-3);
      EXPECT_EQ(parts[r].steps, 4);
      EXPECT_EQ(parts[r].skipped, 1);
      // A bucket's end goes to the last ranks: no share has more than a gap of elements beyond a quarter.
      EXPECT_LE(parts[r].bytes, whole[r].bytes / 4 + std::size(counts) * 2 * 512 + 24) << "rank " << r;
      bytes += parts[r].bytes;
    }
    EXPECT_EQ(bytes, whole[0].bytes + 3 * 24);  // each has its two counts and its rate
  }
}

// A parameter that all ranks have whole counts once in their norm, and each part does.
TEST(sharded, items_that_all_ranks_have_count_once_in_the_norm) {
  int const n = std::min(4, device_count());
  auto ranks = communicator::create_all(first_devices(n));
  on_each(runtime::current(), ranks, [&](communicator& c) {
    gradient_buckets g(c, {.average = false, .sharded = true});
    g.add("w", 3000);
    g.build();
    write(g.gradient(0), std::vector<double>(3000, 1));
    g.mark_ready(0, current_stream());
    g.finish(current_stream());
    owned_item const whole(500, float32, float32);
    write(whole.item.gradient, std::vector<double>(500, 4));
    auto items = items_of(g);
    items.push_back(whole.item);
    sgd o(items, {.max_norm = 1, .ranks = &c});
    o.step(current_stream());
    double const norm = std::sqrt(3000.0 * n * n + 500 * 16);
    EXPECT_NEAR(values_in(o.norm())[0], norm, norm * 1e-6);
  });
}

// In memory that NCCL would use in place, and reduced as a shorter type.
TEST(sharded, registered_buckets_reduce_their_parts_as_bfloat16) {
  runtime own(simulated{.devices = 3, .memory = 64_MiB});
  runtime_guard const in(own);
  auto ranks = communicator::create_all(first_devices(3));
  on_each(own, ranks, [&](communicator& c) {
    gradient_buckets g(c, {.average = false, .registered = true, .reduce_as = bfloat16, .sharded = true});
    g.add("w", 5000);
    g.build();
    write(g.gradient(0), std::vector<double>(5000, c.rank() + 1));
    write(g.parameter(0), std::vector<double>(5000, 1));
    g.mark_ready(0, current_stream());
    g.finish(current_stream());
    sgd o(g, {.rate = 0.5});
    o.step(current_stream());
    g.gather(current_stream());
    EXPECT_EQ(values_in(g.parameter(0)), std::vector<double>(5000, 1 - 0.5 * (1 + 2 + 3)));
  });
}

// A rank whose items are parts of no elements takes part in the norm alone.
TEST(sharded, a_rank_without_any_part_makes_its_steps) {
  auto ranks = communicator::create_all(first_devices(1));
  device_guard const on(0);
  std::vector<update_item> items{{.parameter = {}, .gradient = {}, .is_part = true}};
  adamw o(items, {.max_norm = 1, .ranks = &ranks[0]});
  o.step(current_stream());
  EXPECT_EQ(o.steps(current_stream()), 1);
  EXPECT_EQ(values_in(o.norm()), std::vector<double>{0});
  items[0].rate = 0;
  EXPECT_NE(refusal<invalid_use>([&] { adamw{items}; }).find("nothing to update"), std::string::npos);
}

// On GPUs, too, where a sum for all and one of parts may round apart.
TEST(sharded, ranks_agree_bit_by_bit) {
  int const n = std::min(4, device_count());
  auto const all = train(n, true, false);
  for (trained const& r : all) {
    EXPECT_EQ(r.parameters, all[0].parameters);
    EXPECT_EQ(r.norm, all[0].norm);
    EXPECT_EQ(r.skipped, 1);
  }
}

TEST(sharded, calls_that_need_what_others_have_are_refused) {
  auto ranks = communicator::create_all(first_devices(1));
  device_guard const on(0);
  gradient_buckets g(ranks[0], {.sharded = true});
  g.add("w", 100);
  EXPECT_NE(refusal<invalid_use>([&] { (void)g.own(0); }), "");
  EXPECT_NE(refusal<invalid_use>([&] { g.gather(current_stream()); }), "");
  g.build();
  EXPECT_NE(refusal<not_supported>([&] { (void)g.clip(1, current_stream()); }).find("sharded buckets"),
            std::string::npos);
  EXPECT_NE(refusal<invalid_use>([&] { adamw(g, {.max_norm = 1}); }).find("a norm of parts"), std::string::npos);
  adamw o(g, {.max_norm = 1, .ranks = &ranks[0]});
  if (device_count() > 1) {
    EXPECT_NE(refusal<invalid_use>([&] { g.gather(default_stream(device(1))); }).find("gpu:1"), std::string::npos);
    EXPECT_NE(refusal<invalid_use>([&] { o.step(default_stream(device(1))); }).find("for the rank of gpu:0"),
              std::string::npos);
  }
  gradient_buckets whole(ranks[0]);
  whole.add("w", 100);
  whole.build();
  EXPECT_NE(refusal<invalid_use>([&] { whole.gather(current_stream()); }).find("not sharded"), std::string::npos);
  buffer const memory(400);
  gradient_buckets of_program(ranks[0], {.sharded = true});
  of_program.add("w", {}, {memory.data(), 100, float32});
  EXPECT_NE(refusal<invalid_use>([&] { of_program.build(); }).find("no equal shares"), std::string::npos);
}

// A launch before or behind the sum over the ranks is refused once: the step counts once. That sum takes the
// calls 3 to 5. A refused part of it ends the communicator, as that of any collective.
TEST(sharded, a_refused_step_is_repeated_and_counts_once) {
  for (std::uint64_t const call : {1, 2, 6, 7}) {
    runtime own(simulated{.devices = 1, .memory = 16_MiB});
    runtime_guard const in(own);
    auto ranks = communicator::create_all(first_devices(1));
    gradient_buckets g(ranks[0], {.sharded = true});
    g.add("w", 10);
    g.build();
    std::mt19937 random(1);
    write(g.gradient(0), random_values(random, 10));
    sgd o(g, {.rate = 1, .max_norm = 1, .ranks = &ranks[0]});
    g.mark_ready(0, current_stream());
    g.finish(current_stream());
    simulation::of(own).fail_call("enqueue", call);
    EXPECT_NE(refusal<error>([&] { o.step(current_stream()); }), "") << call;
    o.step(current_stream());
    g.gather(current_stream());
    EXPECT_EQ(o.steps(current_stream()), 1) << call;
    double squares = 0;
    for (double const p : values_in(g.parameter(0)))
      squares += p * p;
    EXPECT_NEAR(squares, 1, 1e-5) << call;
  }
}

}  // namespace
}  // namespace weir::sharded_tests
