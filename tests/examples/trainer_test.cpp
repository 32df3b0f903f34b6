// The trainer's gradients are those of its loss. It gives the same losses on any number of devices, the same bits on
// each of them, and resumes from checkpoints.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <optional>

#include "examples/trainer/trainer.h"
#include "tests/examples/some_text.h"
#include "weir/copy.h"
#include "weir/observe.h"

namespace trainer {
namespace {

class trained : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(folder_);
    std::ofstream(folder_ / "text") << some_text(60'000);
    // GPUs if WEIR_DEVICES requests them; else four simulated devices.
    char const* const devices = std::getenv("WEIR_DEVICES");
    if (!devices || std::string(devices) != "cuda")
      machine_.emplace(weir::simulated{.devices = 4, .memory = 1 << 30});
    if (machine_)
      guard_.emplace(*machine_);
    with_.shape = {.context = 16, .width = 32, .layers = 2, .heads = 2};
    with_.batch = 16;
    with_.steps = 50;
    with_.how.rate = 0.01;
    with_.sample = 20;
    with_.text_file = folder_ / "text";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  struct run {
    outcome out;
    std::vector<float> losses;
  };
  run train_on(
      int replicas, std::function<void(std::int64_t)> const& after = [](std::int64_t) {}) {
    text const t(with_.text_file, with_.shape);
    run r;
    auto ranks = weir::communicator::create_launched(replicas);
    r.out = train(with_, t, ranks, [&](std::int64_t step, float loss) {
      r.losses.push_back(loss);
      after(step);
    });
    return r;
  }
  // What train_on(1) throws.
  std::string failure() {
    try {
      train_on(1);
    } catch (std::runtime_error const& e) {
      return e.what();
    }
    return "";
  }
  int devices() const { return weir::device_count(); }
  static bool agree(outcome const& out) {
    return std::ranges::count(out.fingerprints, out.fingerprints[0]) == std::ssize(out.fingerprints);
  }

  std::filesystem::path folder_ = std::filesystem::temp_directory_path() /
                                  ("weir_trainer_" + std::to_string(::testing::UnitTest::GetInstance()->random_seed()) +
                                   "_" + ::testing::UnitTest::GetInstance()->current_test_info()->name());
  std::optional<weir::runtime> machine_;
  std::optional<weir::runtime_guard> guard_;
  settings with_;
};

// Each matrix is moved by 0.02 both ways, along its gradient and along its eight largest elements. The loss then
// changes by 0.04 times the gradient, but for the third derivative and the rounding of float32: 1 %, of an element and 1e-4.
TEST_F(trained, gradients_are_those_of_finite_differences) {
  auto all = weir::communicator::create_launched(1);
  model_shape const shape{.context = 8, .width = 16, .layers = 2, .heads = 2, .vocabulary = 24};
  weir::manual_seed(3);
  model m(shape, weir::float32, {.rate = 0, .decay = 0}, all[0]);
  constexpr int sequences = 4, predicted = 8 * sequences;
  std::vector<std::uint8_t> host((8 + 1) * sequences);
  for (std::size_t i = 0; i < host.size(); ++i)
    host[i] = static_cast<std::uint8_t>(i * i % 23);
  weir::tensor const memory = weir::empty({static_cast<std::int64_t>(host.size())}, {.dtype = weir::uint8});
  weir::copy(memory.data(), host.data(), host.size());
  weir::device_span const tokens{memory.data(), memory.numel(), weir::uint8};
  weir::tensor const loss = m.step(tokens, 1.f / predicted, 0);
  double const at_first = m.loss(tokens).item<double>() / predicted;
  EXPECT_NEAR(loss.item<double>(), at_first, 1e-5);
  EXPECT_NEAR(at_first, std::log(24.0), 0.5);
  for (int i = 0; i + 1 < m.buckets().size(); ++i) {
    weir::device_span const value = m.buckets().parameter(i), gradient = m.buckets().gradient(i);
    auto const count = static_cast<std::size_t>(value.count);
    std::vector<float> values(count), g(count), moved(count);
    weir::copy(values.data(), value.data, count * sizeof(float));
    weir::copy(g.data(), gradient.data, count * sizeof(float));
    std::vector<std::size_t> largest(count);
    std::iota(largest.begin(), largest.end(), std::size_t{0});
    std::ranges::sort(largest, std::greater<>(), [&](std::size_t k) { return std::abs(g[k]); });
    double norm = 0;
    for (float const x : g)
      norm += static_cast<double>(x) * static_cast<double>(x);
    norm = std::sqrt(norm);
    ASSERT_GT(norm, 1e-4) << "matrix " << i;
    auto const slope = [&](auto const& direction, double h) {
      double at[2];
      for (int const side : {0, 1}) {
        for (std::size_t k = 0; k < count; ++k)
          moved[k] = static_cast<float>(static_cast<double>(values[k]) + (side ? h : -h) * direction(k));
        weir::copy(value.data, moved.data(), count * sizeof(float));
        at[side] = m.loss(tokens).item<double>() / predicted;
      }
      weir::copy(value.data, values.data(), count * sizeof(float));
      return (at[1] - at[0]) / (2 * h);
    };
    EXPECT_NEAR(slope([&](std::size_t k) { return static_cast<double>(g[k]) / norm; }, 0.02), norm, 0.01 * norm)
        << "matrix " << i;
    for (std::size_t n = 0; n < 8; ++n) {
      auto const expected = static_cast<double>(g[largest[n]]);
      EXPECT_NEAR(slope([&](std::size_t k) { return k == largest[n] ? 1. : 0.; }, 0.02), expected,
                  0.01 * std::abs(expected) + 1e-4)
          << "matrix " << i << ", element " << largest[n];
    }
  }
}

// What gelu gets is near 12, 100 and 1000 on both sides of 0, then the logits are. The exponential of 100 is infinite.
TEST_F(trained, far_activations_give_a_finite_loss) {
  auto all = weir::communicator::create_launched(1);
  model_shape const shape{.context = 8, .width = 16, .layers = 1, .heads = 2, .vocabulary = 24};
  weir::manual_seed(3);
  model m(shape, weir::float32, {.rate = 0, .decay = 0}, all[0]);
  std::vector<std::uint8_t> host(8 + 1);
  std::iota(host.begin(), host.end(), std::uint8_t{0});
  weir::tensor const memory = weir::empty({9}, {.dtype = weir::uint8});
  weir::copy(memory.data(), host.data(), host.size());
  weir::device_span const tokens{memory.data(), 9, weir::uint8};
  // The matrices before gelu and before the loss.
  for (int const matrix : {3, 5})
    for (float const scale : {12.f, 8.f, 10.f}) {
      weir::device_span const value = m.buckets().parameter(matrix);
      std::vector<float> values(static_cast<std::size_t>(value.count));
      weir::copy(values.data(), value.data, values.size() * sizeof(float));
      for (float& v : values)
        v *= scale;
      weir::copy(value.data, values.data(), values.size() * sizeof(float));
      EXPECT_TRUE(std::isfinite(m.loss(tokens).item<double>())) << "matrix " << matrix;
      EXPECT_TRUE(std::isfinite(m.step(tokens, 1.f / 8, 0).item<double>())) << "matrix " << matrix;
      std::vector<float> gradient(static_cast<std::size_t>(m.buckets().gradient(matrix).count));
      weir::copy(gradient.data(), m.buckets().gradient(matrix).data, gradient.size() * sizeof(float));
      EXPECT_TRUE(std::ranges::all_of(gradient, [](float g) { return std::isfinite(g); })) << "matrix " << matrix;
    }
}

// Each run trains on the same global batch, and all replicas hold the same bits.
TEST_F(trained, losses_are_equal_on_1_2_and_4_devices) {
  run const one = train_on(1);
  ASSERT_EQ(one.losses.size(), 50u);
  EXPECT_NEAR(one.losses[0], std::log(static_cast<double>(with_.shape.vocabulary)), 1.0);
  EXPECT_LT(one.losses.back(), 0.7f * one.losses[0]);
  EXPECT_GE(one.out.buckets, 3);  // else no reduction overlaps the backward pass
  EXPECT_LT(one.out.validation_loss, 0.7 * static_cast<double>(one.losses[0]));
  for (int const n : {2, 4}) {
    if (n > devices())
      GTEST_SKIP() << "there are " << devices() << " devices";
    run const several = train_on(n);
    for (std::size_t i = 0; i < one.losses.size(); ++i)
      EXPECT_NEAR(several.losses[i], one.losses[i], 1e-4f * one.losses[i]) << n << " devices, step " << i;
    EXPECT_NEAR(several.out.validation_loss, one.out.validation_loss, 1e-4 * one.out.validation_loss);
    EXPECT_TRUE(agree(several.out));
    EXPECT_EQ(several.out.fingerprints.size(), static_cast<std::size_t>(n));
  }
}

TEST_F(trained, bfloat16_trains_as_float32_does) {
  run const whole = train_on(1);
  with_.type = weir::bfloat16;
  run const halves = train_on(devices() >= 2 ? 2 : 1);
  EXPECT_TRUE(agree(halves.out));
  EXPECT_NE(halves.losses, whole.losses) << "nothing was rounded";
  // It has 8 significant bits: losses differ, but the trend is the same.
  EXPECT_NEAR(halves.losses[0], whole.losses[0], 0.02f * whole.losses[0]);
  EXPECT_NEAR(halves.losses.back(), whole.losses.back(), 0.1f * whole.losses.back());
  EXPECT_NEAR(halves.out.validation_loss, whole.out.validation_loss, 0.1 * whole.out.validation_loss);
}

TEST_F(trained, steps_reserve_nothing_after_the_first_ones) {
  std::size_t after_ten = 0;
  train_on(1, [&](std::int64_t step) {
    if (step == 10)
      after_ten = weir::memory_reserved(0);
    if (step > 10) {
      ASSERT_EQ(weir::memory_reserved(0), after_ten) << "step " << step;
    }
  });
  EXPECT_GT(after_ten, 0u);
}

TEST_F(trained, everything_is_given_back) {
  train_on(1);
  EXPECT_EQ(weir::memory_allocated(0), 0u);
}

TEST_F(trained, a_sample_has_characters_of_the_text) {
  with_.sample = 40;  // more than the context has
  run const r = train_on(1);
  ASSERT_EQ(r.out.sample.size(), 40u);
  text const t(with_.text_file, with_.shape);
  EXPECT_EQ(r.out.sample.find_first_not_of(t.characters), std::string::npos);
  EXPECT_EQ(train_on(1).out.sample, r.out.sample);
}

// The first run ends behind its checkpoint of step 16.
TEST_F(trained, a_resumed_run_has_the_bits_of_an_unbroken_one) {
  with_.steps = 20;
  for (weir::dtype const type : {weir::float32, weir::bfloat16}) {
    for (int const n : {1, devices() >= 2 ? 2 : 1}) {
      with_.type = type, with_.save_file.clear(), with_.resume = false, with_.save_every = 8;
      run const whole = train_on(n);
      with_.save_file = folder_ / "model";
      EXPECT_THROW(train_on(n,
                            [](std::int64_t step) {
                              if (step == 17)
                                throw std::runtime_error("it ends here");
                            }),
                   std::runtime_error);
      EXPECT_EQ(weir::checkpoint_reader(with_.save_file).metadata().at("step"), "16");
      with_.resume = true;
      run const rest = train_on(n);
      EXPECT_EQ(rest.losses, std::vector<float>(whole.losses.begin() + 16, whole.losses.end()));
      EXPECT_EQ(rest.out.fingerprints, whole.out.fingerprints);
      EXPECT_EQ(weir::checkpoint_reader(with_.save_file).metadata().at("step"), "20");
    }
  }
}

TEST_F(trained, a_checkpoint_of_another_run_is_refused) {
  with_.steps = 2, with_.save_file = folder_ / "model";
  train_on(1);
  with_.resume = true;
  EXPECT_EQ(failure(), "");  // it has nothing to learn, and writes a sample
  with_.steps = 1;
  EXPECT_NE(failure().find("has 2 steps"), std::string::npos) << failure();
  with_.shape.layers = 1, with_.steps = 8;
  EXPECT_NE(failure().find("of another training"), std::string::npos) << failure();
  with_.shape.layers = 2;
  std::ofstream(folder_ / "text", std::ios::app) << "#";
  EXPECT_NE(failure().find("of another training"), std::string::npos) << failure();
  std::ofstream(folder_ / "model") << "no checkpoint";
  EXPECT_NE(failure().find("model"), std::string::npos) << failure();
}

// Two embeddings of such a size are infinite together.
TEST_F(trained, a_loss_that_is_no_number_replaces_no_checkpoint) {
  with_.steps = 2, with_.save_file = folder_ / "model";
  train_on(1);
  for (std::int64_t const every : {0, 1})
    for (std::int64_t const steps : {1, 8}) {
      with_.how.rate = 3e38, with_.save_every = every, with_.steps = steps;
      EXPECT_NE(failure().find("the loss is no number"), std::string::npos) << every << ", " << steps;
      EXPECT_EQ(weir::checkpoint_reader(with_.save_file).metadata().at("step"), "2");
    }
}

TEST_F(trained, a_checkpoint_with_any_damaged_byte_is_refused) {
  with_.save_file = folder_ / "model";
  with_.shape = {.context = 8, .width = 8, .layers = 1, .heads = 1};
  with_.steps = 2;
  train_on(1);
  with_.resume = true;
  with_.steps = 3, with_.sample = 0;
  std::ifstream in(with_.save_file, std::ios::binary);
  std::string const good{std::istreambuf_iterator<char>(in), {}};
  auto const refused = [&](std::string const& bytes) {
    std::ofstream(with_.save_file, std::ios::binary | std::ios::trunc) << bytes;
    return failure().find(with_.save_file) != std::string::npos;
  };
  for (std::size_t at = 0; at < good.size(); at += 1 + at * at % 701) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x10);
    EXPECT_TRUE(refused(bad)) << "byte " << at;
  }
  for (std::size_t const size : {std::size_t{0}, std::size_t{7}, std::size_t{40}, good.size() - 1})
    EXPECT_TRUE(refused(good.substr(0, size))) << size << " bytes";
  EXPECT_FALSE(refused(good));
}

TEST_F(trained, a_checkpoint_without_a_folder_is_told_first) {
  with_.steps = 4, with_.save_every = 2, with_.save_file = folder_ / "none" / "model";
  std::int64_t last = -1;
  EXPECT_THROW(train_on(devices() >= 2 ? 2 : 1, [&](std::int64_t step) { last = step; }), weir::checkpoint_error);
  EXPECT_EQ(last, -1);
}

TEST_F(trained, an_unusable_text_is_refused_by_name) {
  auto const says = [&](std::filesystem::path const& file) {
    with_.text_file = file;
    return failure();
  };
  EXPECT_NE(says(folder_ / "missing").find("cannot be read"), std::string::npos);
  EXPECT_NE(says(folder_).find("cannot be read"), std::string::npos);
  std::ofstream(folder_ / "short") << "short";
  EXPECT_NE(says(folder_ / "short").find("has 5 bytes"), std::string::npos);
  std::ofstream(folder_ / "binary") << std::string(1000, '\0');
  EXPECT_NE(says(folder_ / "binary").find("not text"), std::string::npos);
}

TEST_F(trained, out_of_memory_in_one_replica_stops_all) {
  weir::set_memory_limit(4 << 20, 0);
  with_.batch = 512;
  EXPECT_THROW(train_on(std::min(2, devices())), weir::out_of_memory);
  weir::set_memory_limit(0, 0);
  with_.batch = 16;
  EXPECT_TRUE(agree(train_on(std::min(2, devices())).out));
}

}  // namespace
}  // namespace trainer
