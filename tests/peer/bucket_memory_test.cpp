// Gradient buckets and memory: tensors and uses of launches over them, and gradients in the program's own memory.
#include "runtime/core/parts.h"
#include "streams/stream/context.h"
#include "tests/peer/ranks.h"
#include "weir/launch.h"
#include "weir/observe.h"
#include "weir/pool.h"
#include "weir/sim.h"
#include "weir/tensor.h"

namespace weir::memory_of_buckets {
namespace {

using namespace weir::test;

TEST(bucket_tensors, lie_over_parameters_and_gradients) {
  auto ranks = communicator::create_all(first_devices(1));
  device_guard const on(0);
  gradient_buckets g(ranks[0]);
  g.add("a", 6), g.add("none", 0, float64);
  g.build();
  tensor const p = g.parameter_tensor(0, {2, 3}), d = g.gradient_tensor(0, {3, 2, 1});
  EXPECT_EQ(p.data(), g.parameter(0).data);
  EXPECT_EQ(d.data(), g.gradient(0).data);
  EXPECT_EQ(d.shape(), (shape{3, 2, 1}));
  EXPECT_EQ(d.device(), device(0));
  EXPECT_EQ(g.gradient_tensor(1, {0, 7}).dtype(), float64);
  for (std::string const& said : {refusal<invalid_use>([&] { (void)g.parameter_tensor(0, {7}); }),
                                  refusal<invalid_use>([&] { (void)g.gradient_tensor(0, {7}); })})
    EXPECT_NE(said.find("shape [7] of 7 elements for 6"), std::string::npos) << said;
}

// They are of the communicator's runtime, whatever runtime is current.
TEST(bucket_tensors, belong_to_the_runtime_of_their_ranks) {
  runtime own(simulated{.devices = 2, .memory = 16_MiB});
  std::vector<communicator> ranks;
  {
    runtime_guard const in(own);
    ranks = communicator::create_all(std::vector{device(1)});
  }
  gradient_buckets g(ranks[0]);
  g.add("a", 6);
  g.build();
  tensor const d = g.gradient_tensor(0, {6});
  EXPECT_EQ(d.device(), device(1));
  runtime_guard const in(own);
  EXPECT_EQ(sum(d.clone()).item<float>(), 0);
}

TEST(device_spans, are_uses_of_a_launch_to_the_last_byte) {
  float memory[3];
  device_span const some{memory, 3}, none{nullptr, 0};
  memory_use const all[] = {reads(some), writes(some), updates(some)};
  access_mode const how[] = {access_mode::read, access_mode::write, access_mode::update};
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(all[i].address, memory);
    EXPECT_EQ(all[i].bytes, 12u);
    EXPECT_EQ(all[i].how, how[i]);
  }
  EXPECT_EQ(updates(none).address, nullptr);
  EXPECT_EQ(updates(device_span{memory, 0}).address, nullptr) << "a size of 0 would mean the whole block";
}

// Two simulated ranks, whose calls one thread makes in turn.
class bucket_memory : public testing::Test {
 protected:
  runtime machine_{simulated{.devices = 2, .memory = 64_MiB}};
  runtime_guard in_{machine_};
  std::vector<communicator> ranks_ = communicator::create_all(first_devices(2));

  static elements of(double value, std::int64_t count = 4, dtype type = int32) {
    return encode(type, values_of(count, [&](std::int64_t i) { return value + static_cast<double>(i); }));
  }
  static void write(int rank, void* to, double value, std::int64_t count = 4) {
    device_guard const on(rank);
    elements const e = of(value, count);
    copy(default_stream(device(rank)), to, e.data(), e.size());
  }
  static elements read(int rank, void const* from, std::int64_t count = 4) {
    device_guard const on(rank);
    return to_host(from, static_cast<std::size_t>(count) * 4);
  }
  // Marks all as ready, from the last to the first, and finishes the step.
  static void step(std::vector<gradient_buckets>& all) {
    for (std::size_t r = 0; r < all.size(); ++r)
      for (int i = all[r].size() - 1; i >= 0; --i)
        all[r].mark_ready(i, default_stream(device(static_cast<int>(r))));
    for (std::size_t r = 0; r < all.size(); ++r)
      all[r].finish(default_stream(device(static_cast<int>(r))));
  }
  void build(gradient_buckets& g, int rank) {
    device_guard const on(rank);
    g.build();
  }
  gradient_buckets summed(int rank, bucket_options o = {}) {
    o.average = false;
    return gradient_buckets(ranks_[static_cast<std::size_t>(rank)], o);
  }
};
device_span ints(void* at, std::int64_t count = 4) {
  return {at, count, int32};
}

TEST_F(bucket_memory, of_the_program_is_reduced_where_it_lies) {
  std::vector<gradient_buckets> all;
  std::vector<buffer> apart;  // a rank has two
  for (int r : {0, 1}) {
    apart.emplace_back(16, buffer_options{.on = device(r)});
    apart.emplace_back(16, buffer_options{.on = device(r)});
    all.push_back(summed(r));
    std::size_t const at = apart.size() - 2;
    all.back().add("first", {}, ints(apart[at].data()));
    all.back().add("owned", 4, int32);
    all.back().add("none", {}, ints(nullptr, 0));
    all.back().add("last", ints(apart[at].data()), ints(apart[at + 1].data()));
    build(all.back(), r);
    EXPECT_EQ(all.back().gradient(0).data, apart[at].data());
    EXPECT_EQ(all.back().parameter(3).data, apart[at].data());
    EXPECT_EQ(all.back().parameter(0).count, 0);
    EXPECT_EQ(all.back().bucket_count(), 3) << "a bucket lies in one kind of memory";
  }
  for (int turn = 0; turn < 2; ++turn) {
    for (int r : {0, 1})
      for (int i : {0, 1, 3})
        write(r, all[static_cast<std::size_t>(r)].gradient(i).data, 1 + r + i * 10 + turn * 100);
    step(all);
    for (int r : {0, 1})
      for (int i : {0, 1, 3}) {
        elements wanted = of(0);
        for (std::int64_t k = 0; k < 4; ++k)
          encode(int32, static_cast<double>(3 + i * 20 + turn * 200 + 2 * k), wanted.data() + k * 4);
        EXPECT_EQ(read(r, all[static_cast<std::size_t>(r)].gradient(i).data), wanted) << r << i;
      }
  }
  std::string const said = refusal<invalid_use>([&] { (void)all[0].gradients(); });
  EXPECT_NE(said.find("\"first\" lies in the program's memory"), std::string::npos) << said;
}

// Which block lies lower differs from rank to rank. Within one block that is refused.
TEST_F(bucket_memory, in_another_order_on_a_rank_is_reduced_by_item) {
  struct layout {
    std::optional<dtype> wire;
    bool in_one_block;
  };
  for (auto const [wire, in_one_block] : {layout{{}, false}, layout{bfloat16, false}, layout{{}, true}}) {
    std::vector<gradient_buckets> all;
    std::vector<buffer> blocks;  // a rank has two
    for (int r : {0, 1}) {
      blocks.emplace_back(512, buffer_options{.on = device(r)});
      blocks.emplace_back(512, buffer_options{.on = device(r)});
      std::byte* low = blocks[blocks.size() - 2].data<std::byte>();
      std::byte* high = in_one_block ? low + 16 : blocks.back().data<std::byte>();
      if ((low > high) != (r == 1))
        std::swap(low, high);
      all.push_back(summed(r, {.reduce_as = wire}));
      all.back().add("a", {}, {low, 4, float32});
      all.back().add("b", {}, {high, 4, float32});
      build(all.back(), r);
      for (int i : {0, 1}) {
        device_guard const on(r);
        elements const e = of(i == 0 ? 1 : 100, 4, float32);
        copy(default_stream(device(r)), all.back().gradient(i).data, e.data(), e.size());
      }
    }
    std::string const said = refusal<invalid_use>([&] { step(all); });
    EXPECT_EQ(said.find("all_reduce of 4 float32 (sum), member 1 of a group of 2") != std::string::npos, in_one_block)
        << said;
    if (in_one_block) {
      ranks_[0].abort();
      ranks_ = communicator::create_all(first_devices(2));
      continue;
    }
    for (int r : {0, 1})
      for (int i : {0, 1}) {
        device_guard const on(r);
        device_span const sums = all[static_cast<std::size_t>(r)].reduced(i);
        elements const got = to_host(sums.data, 4 * size_of(sums.dtype));
        EXPECT_EQ(decode(sums.dtype, got.data()), i == 0 ? 2 : 200) << r << i << in_one_block;
      }
  }
}

// The refusal of another call tells what the buckets have called. Neighbours follow each other in the order of add().
TEST_F(bucket_memory, neighbours_in_one_block_are_one_collective) {
  struct place {
    int block, first;
  };
  struct layout {
    std::vector<place> gradients;
    char const* called;
  };
  layout const layouts[] = {{{{0, 0}, {0, 4}, {0, 8}}, "all_reduce of 12 int32 (sum) "},
                            {{{0, 0}, {0, 4}, {1, 8}}, "all_reduce of 8 int32 (sum), member 1 of a group of 2"},
                            {{{0, 8}, {0, 0}, {0, 4}}, "all_reduce of 4 int32 (sum), member 1 of a group of 2"},
                            {{{0, 0}, {0, 8}, {0, 4}}, "all_reduce of 4 int32 (sum), member 1 of a group of 3"},
                            {{{0, 0}, {0, 8}}, "all_reduce of 4 int32 (sum), member 1 of a group of 2"},
                            {{{0, 0}, {1, 0}}, "all_reduce of 4 int32 (sum), member 1 of a group of 2"}};
  for (layout const& l : layouts) {
    buffer const blocks[] = {buffer(512, {.on = device(0)}), buffer(512, {.on = device(0)})};
    gradient_buckets g = summed(0);
    for (place const p : l.gradients)
      g.add("g", {}, ints(blocks[p.block].data<std::int32_t>() + p.first));
    build(g, 0);
    for (int i = 0; i < g.size(); ++i)
      g.mark_ready(i, default_stream(device(0)));
    device_guard const on(1);
    buffer const other(64);
    std::string const said = refusal<invalid_use>([&] { ranks_[1].all_reduce({other.data(), 1, int32}); });
    EXPECT_NE(said.find(l.called), std::string::npos) << said;
    ranks_[0].abort();
    ranks_ = communicator::create_all(first_devices(2));
  }
}

// Two blocks that touch may lie apart on another rank.
TEST_F(bucket_memory, blocks_that_touch_are_reduced_apart) {
  buffer one(512, {.on = device(0)}), two(512, {.on = device(0)});
  ASSERT_EQ(one.data<std::byte>() + 512, two.data()) << "no neighbours: the test sees nothing";
  gradient_buckets g = summed(0);
  g.add("end", {}, ints(one.data<std::int32_t>() + 124));
  g.add("begin", {}, ints(two.data()));
  build(g, 0);
  for (int i : {0, 1})
    g.mark_ready(i, default_stream(device(0)));
  device_guard const on(1);
  buffer const other(64);
  std::string const said = refusal<invalid_use>([&] { ranks_[1].all_reduce({other.data(), 1, int32}); });
  EXPECT_NE(said.find("member 1 of a group of 2"), std::string::npos) << said;
}

TEST_F(bucket_memory, a_gradient_is_reduced_once) {
  buffer const b(64, {.on = device(0)});
  for (int const second : {0, 1, 3, 4}) {
    gradient_buckets g = summed(0, {.bucket_bytes = 1});
    g.add("one", {}, ints(b.data()));
    g.add("two", {}, ints(b.data<std::int32_t>() + second));
    std::string const said = refusal<invalid_use>([&] { build(g, 0); });
    EXPECT_EQ(said.find("share memory") != std::string::npos, second < 4) << second << said;
  }
}

TEST_F(bucket_memory, that_is_wrong_is_refused_by_name) {
  buffer freed(64, {.on = device(0)});
  buffer const here(64, {.on = device(0)}), there(64, {.on = device(1)});
  int host = 0;
  auto const built_over = [&](device_span gradient) {
    gradient_buckets g = summed(0);
    g.add("w", {}, gradient);
    return refusal<invalid_use>([&] { build(g, 0); });
  };
  EXPECT_EQ(built_over(ints(here.data(), 16)), "");
  for (std::string const& said : {built_over(ints(here.data(), 17)), built_over(ints(there.data())),
                                  built_over(ints(&host, 1)), built_over(ints(nullptr))})
    EXPECT_NE(said.find("gradient_buckets::build: \"w\" (gradient 0) of "), std::string::npos) << said;

  gradient_buckets g = summed(0);
  std::string const counts = refusal<invalid_use>([&] { g.add("w", ints(here.data(), 3), ints(here.data(), 4)); });
  EXPECT_NE(counts.find("\"w\" of 3 elements, its gradient of 4"), std::string::npos) << counts;
  EXPECT_NE(refusal<not_supported>([&] { g.add("w", {}, {here.data(), 4, boolean}); }), "");
  EXPECT_NE(refusal<invalid_use>([&] { g.add("w", {}, ints(here.data(), -1)); }), "");
  g.add("w", {}, ints(freed.data()));
  build(g, 0);
  EXPECT_NE(refusal<invalid_use>([&] { g.add("w", {}, ints(here.data())); }), "");
  freed.reset();
  std::string const said = refusal<invalid_use>([&] { g.mark_ready(0, default_stream(device(0))); });
  EXPECT_NE(said.find("\"w\" (gradient 0) of 4 int32 at gpu:0"), std::string::npos) << said;

  gradient_buckets r = summed(0, {.registered = true});
  r.add("w", {}, ints(here.data()));
  std::string const registered = refusal<invalid_use>([&] { build(r, 0); });
  EXPECT_NE(registered.find("\"w\" (gradient 0) lies in the program's memory, which is not registered"),
            std::string::npos)
      << registered;
}

// The memory serves again behind the writer's work, which weir knows only through mark_ready(), and its reduction.
TEST(freed_bucket_memory, waits_for_writer_and_reduction) {
  for (bool const reduced : {false, true}) {
    runtime own(simulated{.devices = 1, .memory = 4_MiB, .schedule = simulated::scheduling::stepped});
    runtime_guard const in(own);
    auto ranks = communicator::create_all(first_devices(1));
    stream const writer, next;
    buffer b(2_MiB);
    gradient_buckets g(ranks[0], {.bucket_bytes = 1_GiB});
    g.add("w", {}, ints(b.data()));
    g.add("x", {}, ints(b.data<std::int32_t>() + 4));
    g.build();
    launch_host(writer, [] {});
    for (int i = 0; i < (reduced ? 2 : 1); ++i)
      g.mark_ready(i, writer);
    stamp const wrote = writer.stamp();
    b.reset();
    if (reduced) {
      EXPECT_THROW((void)allocate(next.ref(), 3_MiB), out_of_memory) << "weir waits for no collective";
      g.finish(next);
      next.synchronize();
    }
    void* const again = allocate(next.ref(), 3_MiB);  // needs that memory
    EXPECT_TRUE(streams::clock_of(next.ref()).covers(streams::inner_stamp(wrote))) << reduced;
    deallocate(again);
  }
}

// A refused step has changed nothing: the late gradient is named, comes, and the step ends.
TEST_F(bucket_memory, unused_and_late_gradients_of_it_are_named) {
  std::vector<gradient_buckets> all;
  buffer const blocks[] = {buffer(64, {.on = device(0)}), buffer(64, {.on = device(1)})};
  for (int r : {0, 1}) {
    all.push_back(summed(r));
    all.back().add("used", {}, ints(blocks[r].data()));
    all.back().add("unused", {}, ints(blocks[r].data<std::int32_t>() + 4));
    build(all.back(), r);
    write(r, blocks[r].data(), 1 + r, 8);
    all.back().mark_ready(0, default_stream(device(r)));
    std::string const said = refusal<invalid_use>([&] { all.back().finish(default_stream(device(r))); });
    EXPECT_NE(said.find("1 of 2 gradients were not marked as ready: \"unused\" (gradient 1)"), std::string::npos);
    std::string const twice = refusal<invalid_use>([&] { all.back().mark_ready(0, default_stream(device(r))); });
    EXPECT_NE(twice.find("\"used\" (gradient 0) is ready twice"), std::string::npos) << twice;
    all.back().mark_ready(1, default_stream(device(r)));
    all.back().finish(default_stream(device(r)));
  }
  EXPECT_EQ(read(0, blocks[0].data(), 8), read(1, blocks[1].data(), 8));
  EXPECT_EQ(read(0, blocks[0].data(), 2), encode(int32, {3, 5}));
}

// weir does not know the ends of such memory, so that neighbours are reduced apart.
TEST_F(bucket_memory, of_the_driver_is_reduced_too) {
  std::vector<gradient_buckets> all;
  driver::driver& machine = machine_.get().machine();
  driver::address segments[2];
  for (int r : {0, 1}) {
    segments[r] = machine.create_segment(r, 2_MiB).value;
    auto* const at = reinterpret_cast<std::int32_t*>(segments[r]);
    all.push_back(summed(r));
    all.back().add("a", {}, ints(at));
    all.back().add("b", {}, ints(at + 4));
    build(all.back(), r);
    write(r, at, 1 + r, 8);
    for (int i : {1, 0})
      all.back().mark_ready(i, default_stream(device(r)));
    if (r == 0) {
      device_guard const on(1);
      buffer const other(64);
      std::string const said = refusal<invalid_use>([&] { ranks_[1].all_reduce({other.data(), 1, int32}); });
      EXPECT_NE(said.find("member 1 of a group of 2"), std::string::npos) << said;
    }
  }
  for (int r : {0, 1}) {
    all[static_cast<std::size_t>(r)].finish(default_stream(device(r)));
    synchronize(device(r));
  }
  for (int r : {0, 1})
    EXPECT_EQ(read(r, all[static_cast<std::size_t>(r)].gradient(0).data, 8),
              encode(int32, {3, 5, 7, 9, 11, 13, 15, 17}));
  all.clear();
  for (int r : {0, 1})
    EXPECT_TRUE(machine.release_segment(r, segments[r]).ok());
}

// A rank whose gradients lie elsewhere in the pool is refused.
TEST_F(bucket_memory, in_a_registered_pool_has_its_place_there) {
  std::vector<pool> pools;
  for (int r : {0, 1}) {
    pools.emplace_back("of rank " + std::to_string(r),
                       pool_options{.on = device(r), .limit = 4_MiB, .registered = true});
    ranks_[static_cast<std::size_t>(r)].register_pool(pools.back());
  }
  for (bool const alike : {true, false}) {
    std::vector<gradient_buckets> all;
    std::vector<void*> blocks;
    for (int r : {0, 1}) {
      blocks.push_back(pools[static_cast<std::size_t>(r)].allocate(64));
      all.push_back(summed(r));
      all.back().add("w", {}, ints(static_cast<std::int32_t*>(blocks.back()) + (alike ? 0 : r)));
      build(all.back(), r);
    }
    std::string const said = refusal<invalid_use>([&] { step(all); });
    EXPECT_EQ(said.find("of registered pool 1") != std::string::npos, !alike) << said;
    for (communicator& c : ranks_)
      if (!alike)
        c.abort();
    all.clear();
    for (void* const b : blocks)
      deallocate(b);
  }
}

}  // namespace
}  // namespace weir::memory_of_buckets
