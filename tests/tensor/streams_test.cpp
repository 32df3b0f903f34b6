// Tensors made, read on other streams and devices, copied and dropped in any order keep their values.
#include <cmath>
#include <functional>
#include <optional>
#include <thread>

#include "tests/tensor/model.h"

using namespace weir;
using namespace weir::testing;

namespace {

// Every element has one value and never changes, so only memory reused too early can damage it.
struct known {
  tensor t;
  float value;
  std::optional<stream_ref> made_on;
};

void random_program(std::uint64_t seed, simulated::scheduling how) {
  weir::runtime machine{simulated{.devices = 2, .memory = size_t{1} << 26, .schedule = how, .seed = seed | 1}};
  runtime_guard const chosen{machine};
  random_source random(seed);
  std::vector<stream> streams;
  for (int i = 0; i < 6; ++i)
    streams.emplace_back(device(i % 2));
  std::vector<known> live;
  for (int step = 0; step < 80; ++step) {
    stream_ref const s = random.one_of(streams);
    stream_guard const in{s};
    auto const pick = [&]() -> known const& { return random.one_of(live); };
    auto const ready = [&](known const& k) {
      if (k.made_on)
        s.wait(*k.made_on);
      return k.t;
    };
    auto const here = [&](known const& k) {  // on the stream's device, copied there if needed
      tensor const t = ready(k);
      if (k.made_on && t.device().is_cpu())
        k.made_on->synchronize();  // that stream writes the host's memory
      return t.to(s.device(), random.between(0, 1) ? blocking::yes : blocking::no);
    };
    auto const what = live.size() < 3 ? 0 : random.between(0, 7);
    if (what == 0) {
      auto const value = static_cast<float>(random.between(0, 9));
      live.push_back({full({random.between(1, 3), 700}, value), value, s});
    } else if (what <= 2) {
      auto const i = static_cast<size_t>(random.between(0, static_cast<std::int64_t>(live.size()) - 1));
      known const b = pick();
      if (live[i].t.shape() != b.t.shape() || live[i].value + b.value > 1e6f)
        continue;
      known sum{add(here(live[i]), here(b)), live[i].value + b.value, s};
      // dropped while it is read, and memory of its size requested
      if (random.between(0, 3) && live[i].made_on->device() == s.device()) {
        stream_guard const at_home{*live[i].made_on};
        extents const like(live[i].t.shape().begin(), live[i].t.shape().end());
        live[i] = {};
        auto const value = static_cast<float>(random.between(10, 19));
        live[i] = {full(shape_of(like), value), value, current_stream()};
      }
      live.push_back(std::move(sum));
    } else if (what == 3) {
      known const a = pick();
      live.push_back({here(a).transpose(0, 1).contiguous().t().contiguous(), a.value, s});
    } else if (what == 4) {
      known const a = pick();
      if (a.t.device().is_cpu())
        continue;
      // a copy to the host runs on the tensor's device
      stream_guard const there{streams[static_cast<size_t>(a.t.device().index())]};
      stream_ref const on = current_stream();
      on.wait(*a.made_on);
      live.push_back({a.t.to(cpu, non_blocking), a.value, on});
    } else if (what == 5) {
      tensor const a = here(pick()), product = matmul(a, a, transposed::right);
      float const v = a.slice(0, 0, 1).slice(1, 0, 1).item<float>();
      if (v < 30)
        live.push_back({product, 700 * v * v, s});
      // if it has another shape: dropped while it is computed
      if (live.back().t.numel() != live.back().t.size(0) * 700)
        live.pop_back();
    } else {
      auto const i = static_cast<size_t>(random.between(0, static_cast<std::int64_t>(live.size()) - 1));
      live[i] = live.back();
      live.pop_back();
    }
  }
  for (int d = 0; d < 2; ++d)
    synchronize(d);
  for (size_t i = 0; i < live.size(); ++i) {
    tensor const is = live[i].t.cpu();
    for (float const v : is.host<float>())
      ASSERT_EQ(v, live[i].value) << "tensor " << i << " of " << live[i].t.shape().str() << " on "
                                  << live[i].t.device().str();
  }
  EXPECT_EQ(simulation::of(machine).findings(), std::vector<std::string>{});
}

void random_programs(simulated::scheduling how, std::uint64_t count) {
  std::uint64_t const first = seed_of_test();
  for (std::uint64_t seed = first; seed < first + (std::getenv("WEIR_TEST_SEED") ? 1 : count); ++seed) {
    SCOPED_TRACE("WEIR_TEST_SEED=" + std::to_string(seed));
    random_program(seed, how);
    if (::testing::Test::HasFatalFailure())
      return;
  }
}

TEST(tensor_streams, each_value_is_right_under_all_freedoms) {
  random_programs(simulated::scheduling::seeded, 100);
}
TEST(tensor_streams, each_tensor_holds_its_value_with_threads) {
  random_programs(simulated::scheduling::threads, 15);
}

TEST(tensor_streams, devices_with_threads_give_equal_bits) {
  int const devices = device_count();
  manual_seed(3);
  std::vector<std::vector<float>> results(static_cast<size_t>(devices));
  std::vector<std::thread> threads;
  for (int d = 0; d < devices; ++d) {
    threads.emplace_back([d, &results] {
      device_guard const on{d};
      tensor w = randn({64, 64}), x = rand({32, 64});
      for (int step = 0; step < 20; ++step) {
        tensor const h = matmul(x, w).relu_();
        tensor gradient = matmul(x, h, transposed::left);
        w.add_(gradient, -1e-5).mul_(0.999);
        results[static_cast<size_t>(d)].push_back(mean(h).item<float>());
      }
      results[static_cast<size_t>(d)].push_back(sum(w).item<float>());
    });
  }
  for (auto& t : threads)
    t.join();
  for (int d = 1; d < devices; ++d)
    EXPECT_EQ(results[static_cast<size_t>(d)], results[0]) << "gpu:" << d;
  EXPECT_TRUE(std::isfinite(results[0].back()));
}

TEST(tensor_streams, factories_write_on_the_stream_they_name) {
  weir::runtime machine{simulated{.devices = 2, .memory = 64_MiB, .schedule = simulated::scheduling::stepped}};
  runtime_guard const chosen{machine};
  stream const s(device(1));
  tensor const like = empty(s, {4});
  EXPECT_EQ(find_block(like.data())->home, s.ref());
  EXPECT_EQ(find_block(empty_like(s, like).data())->home, s.ref());
  std::function<tensor()> const all[] = {
      [&] { return zeros(s, {4}); },       [&] { return ones(s, {4}); },       [&] { return full(s, {4}, 2); },
      [&] { return arange(s, 4); },        [&] { return rand(s, {4}); },       [&] { return randn(s, {4}); },
      [&] { return zeros_like(s, like); }, [&] { return ones_like(s, like); }, [&] { return full_like(s, like, 2); },
      [&] { return rand_like(s, like); },  [&] { return randn_like(s, like); }};
  for (auto const& make : all) {
    auto const which = &make - all;
    tensor const t = make();
    EXPECT_EQ(find_block(t.data())->home, s.ref()) << which;
    EXPECT_FALSE(s.query()) << which;
    EXPECT_TRUE(current_stream(0).query() && current_stream(1).query()) << which;
    EXPECT_EQ(current_device(), device(0)) << which;
    simulation::of(machine).run();
  }
  expect_refusal([&] { (void)zeros(s, {4}, {.on = cpu}); }, {"zeros", "cpu"});
  expect_refusal([&] { (void)ones(s, {4}, {.on = device(0)}); }, {"ones", "gpu:0"});
  expect_refusal([&] { (void)ones_like(s, ones({4}, {.on = cpu})); }, {"ones_like", "cpu"});
  expect_refusal([&] { (void)zeros_like(s, tensor()); }, {"zeros_like", "undefined"});
}

TEST(tensor_streams, lists_are_copied_on_the_stream_they_name) {
  stream const s;
  tensor const row = tensor_of(s, {1, 2, 3}), matrix = tensor_of(s, {{1.f, 2.f}, {3.f, 4.f}}, {.on = s.device()});
  EXPECT_EQ(find_block(row.data())->home, s.ref());
  EXPECT_EQ(find_block(matrix.data())->home, s.ref());
  EXPECT_EQ(row.cpu().host<std::int32_t>()[2], 3);
  EXPECT_EQ(matrix.cpu().host<float>()[3], 4);
}

}  // namespace
