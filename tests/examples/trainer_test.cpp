// The trainer gives the same losses on any number of devices, the
// same bits on each of them, and resumes from checkpoints.
#include "examples/trainer/table.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

#include "tests/examples/some_text.h"
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
    with_.shape = {.context = 8, .vocabulary = 0, .embedding = 8, .hidden = 32, .layers = 2};
    with_.batch = 64;
    with_.steps = 50;
    with_.sample = 20;
    with_.validation_rows = 512;
    with_.text_file = folder_ / "text";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  struct run {
    outcome out;
    std::vector<double> losses;
  };
  run train_on(int replicas, checkpoint const* from = nullptr) {
    text const t(with_.text_file, with_.shape.context);
    with_.shape.vocabulary = t.vocabulary();
    report told(replicas, with_.steps, from ? from->step : 0);
    run r{train(with_, t, from, told), {}};
    for (std::int64_t step = told.first_step; step < with_.steps; ++step)
      r.losses.push_back(told.loss(step));
    return r;
  }
  int devices() const { return weir::device_count(); }

  std::filesystem::path folder_ = std::filesystem::temp_directory_path() /
                                  ("weir_trainer_" + std::to_string(::testing::UnitTest::GetInstance()->random_seed()) +
                                   "_" + ::testing::UnitTest::GetInstance()->current_test_info()->name());
  std::optional<weir::runtime> machine_;
  std::optional<weir::runtime_guard> guard_;
  settings with_;
};

// Each run trains on the same global batch, and all replicas hold the same bits.
TEST_F(trained, losses_are_equal_on_1_2_and_4_devices) {
  run const one = train_on(1);
  ASSERT_EQ(one.losses.size(), 50u);
  EXPECT_NEAR(one.losses[0], std::log(static_cast<double>(with_.shape.vocabulary)), 1.0);
  EXPECT_LT(one.losses.back(), 0.7 * one.losses[0]);
  EXPECT_GE(one.out.buckets, 3);  // else no reduction overlaps the backward pass
  for (int const n : {2, 4}) {
    if (n > devices())
      GTEST_SKIP() << "there are " << devices() << " devices";
    run const several = train_on(n);
    for (std::size_t i = 0; i < one.losses.size(); ++i)
      EXPECT_NEAR(several.losses[i], one.losses[i], 1e-4 * one.losses[i]) << n << " devices, step " << i;
    EXPECT_NEAR(several.out.validation_loss, one.out.validation_loss, 1e-4 * one.out.validation_loss);
    EXPECT_EQ(several.out.validation_rows, one.out.validation_rows);
    EXPECT_TRUE(several.out.agree());
    EXPECT_EQ(several.out.fingerprints.size(), static_cast<std::size_t>(n));
  }
}

TEST_F(trained, recomputed_activations_give_the_same_bits) {
  with_.shape.layers = 9, with_.shape.hidden = 64, with_.batch = 256, with_.steps = 6;
  auto const peak_of = [&](int replicas) {
    weir::reset_peak_memory_stats(0);
    auto const bits = train_on(replicas).out.fingerprints;
    return std::pair(bits, weir::max_memory_allocated(0));
  };
  int const several = devices() >= 2 ? 2 : 1;
  auto const kept = peak_of(1), kept_on_several = peak_of(several);
  with_.how.recompute = true;
  auto const again = peak_of(1), again_on_several = peak_of(several);
  EXPECT_EQ(again.first, kept.first);
  EXPECT_EQ(again_on_several.first, kept_on_several.first);
  // Five of nine activations stay: every third and the last two. Backward recomputes three at a time.
  EXPECT_LE(again.second + 3 * 256 * 64 * sizeof(float), kept.second);
}

TEST_F(trained, parts_of_a_batch_add_up_to_it) {
  run const whole = train_on(1);
  with_.accumulate = 4;
  run const parts = train_on(1);
  for (std::size_t i = 0; i < whole.losses.size(); ++i)
    EXPECT_NEAR(parts.losses[i], whole.losses[i], 1e-4 * whole.losses[i]) << "step " << i;
  EXPECT_EQ(parts.out.validation_rows, whole.out.validation_rows);
  EXPECT_NEAR(parts.out.validation_loss, whole.out.validation_loss, 1e-4 * whole.out.validation_loss);
  EXPECT_EQ(parts.out.buckets, whole.out.buckets);
  if (devices() < 2)
    GTEST_SKIP() << "there is one device";
  run const several = train_on(2);
  EXPECT_TRUE(several.out.agree());
  for (std::size_t i = 0; i < whole.losses.size(); ++i)
    EXPECT_NEAR(several.losses[i], whole.losses[i], 1e-4 * whole.losses[i]) << "step " << i;
}

TEST_F(trained, halves_train_as_floats_do) {
  run const whole = train_on(1);
  for (weir::dtype const type : {weir::bfloat16, weir::float16}) {
    with_.how.type = type;
    run const halves = train_on(devices() >= 2 ? 2 : 1);
    EXPECT_TRUE(halves.out.agree());
    EXPECT_NE(halves.out.fingerprints[0], whole.out.fingerprints[0]) << "nothing was rounded";
    // A half has 8 or 11 significant bits: losses differ, but the trend is the same.
    EXPECT_NEAR(halves.losses[0], whole.losses[0], 0.01 * whole.losses[0]) << weir::name_of(type);
    EXPECT_NEAR(halves.losses.back(), whole.losses.back(), 0.1 * whole.losses.back()) << weir::name_of(type);
    EXPECT_NEAR(halves.out.validation_loss, whole.out.validation_loss, 0.1 * whole.out.validation_loss)
        << weir::name_of(type);
    EXPECT_EQ(halves.out.scale.by, type == weir::float16 ? 32768 : 1);
    EXPECT_EQ(halves.out.scale.steps_skipped, 0);
    with_.how.recompute = true;
    EXPECT_EQ(train_on(devices() >= 2 ? 2 : 1).out.fingerprints, halves.out.fingerprints);
    with_.how.recompute = false;
  }
}

TEST_F(trained, a_step_that_overflows_is_skipped_on_all_replicas) {
  with_.how.type = weir::float16;
  with_.steps = 20;
  with_.update.rate = 1e30f;  // the first counted step makes the parameters diverge; every later gradient is not finite
  with_.update.momentum = 0;
  with_.save_file = folder_ / "model";
  run const r = train_on(devices() >= 2 ? 2 : 1);
  EXPECT_GE(r.out.scale.steps_skipped, 15);
  EXPECT_LE(r.out.scale.by, 32768 / (1 << 14));
  EXPECT_TRUE(r.out.agree());
  EXPECT_FALSE(r.out.values.empty());
  for (float const v : r.out.values)
    ASSERT_TRUE(std::isfinite(v));
}

TEST_F(trained, the_table_names_the_memory_taken) {
  with_.shape.layers = 8, with_.shape.hidden = 128, with_.batch = 512, with_.steps = 3;
  text const t(with_.text_file, with_.shape.context);
  with_.shape.vocabulary = t.vocabulary();
  std::vector<row> const rows = compare_ways(with_, t, 1);
  ASSERT_EQ(rows.size(), 6u);
  // three layers of the backward pass, batches, and a library's workspace
  std::int64_t const more = 3 * 512 * 128 * 4 + (2 << 20) + (weir::runtime::current().is_simulated() ? 0 : 64 << 20);
  for (row const& r : rows) {
    EXPECT_GE(r.peak, r.expected()) << r.way;
    EXPECT_LE(r.peak, r.expected() + more) << r.way;
    EXPECT_GT(r.seconds_a_step, 0) << r.way;
    EXPECT_NEAR(r.validation_loss, rows[0].validation_loss, 0.05 * rows[0].validation_loss) << r.way;
    EXPECT_NE(table_of(rows).find(r.way), std::string::npos);
  }
  EXPECT_LT(rows[1].kept_a_row, rows[0].kept_a_row);
  EXPECT_LT(rows[1].peak, rows[0].peak);
  EXPECT_LT(rows[2].peak, rows[0].peak);
  EXPECT_LT(rows[5].peak, rows[1].peak);
  with_.batch = 66;
  EXPECT_THROW((void)compare_ways(with_, t, 1), std::runtime_error);
}

TEST_F(trained, everything_is_given_back) {
  train_on(1);
  EXPECT_EQ(weir::memory_allocated(0), 0u);
}

TEST_F(trained, a_checkpoint_goes_on_where_it_was_written) {
  with_.save_file = folder_ / "model";
  run const whole = train_on(1);

  with_.steps = 20;
  settings const full = with_;
  text const t(with_.text_file, with_.shape.context);
  run const half = train_on(1);
  write_checkpoint(with_.save_file, {with_.shape, with_.how.by, 20, t.characters(), half.out.values});
  checkpoint const read = read_checkpoint(with_.save_file);
  EXPECT_EQ(read.shape, with_.shape);
  EXPECT_EQ(read.step, 20);
  EXPECT_EQ(read.characters, t.characters());
  EXPECT_EQ(read.values, half.out.values);
  with_.steps = 50;
  run const rest = train_on(1, &read);
  ASSERT_EQ(rest.losses.size(), 30u);
  // The learning rate depends on the number of steps, which differed in the first half.
  EXPECT_NEAR(rest.losses.back(), whole.losses.back(), 0.25);
  EXPECT_EQ(train_on(1, &read).out.fingerprints, rest.out.fingerprints);
}

TEST_F(trained, adamw_and_clipping_agree_on_1_2_and_4_devices) {
  with_.how.by = optimizer::adamw;
  with_.update.rate = 0.01f, with_.update.clip = 0.5f;
  run const one = train_on(1);
  EXPECT_LT(one.losses.back(), 0.7 * one.losses[0]);
  for (int const n : {2, 4}) {
    if (n > devices())
      GTEST_SKIP() << "there are " << devices() << " devices";
    run const several = train_on(n);
    EXPECT_TRUE(several.out.agree());
    for (std::size_t i = 0; i < one.losses.size(); ++i)
      EXPECT_NEAR(several.losses[i], one.losses[i], 1e-3 * one.losses[i]) << n << " devices, step " << i;
  }
}

TEST_F(trained, clipping_bounds_a_step_and_changes_no_shorter_one) {
  with_.steps = 1, with_.save_file = folder_ / "model";
  auto const values_with = [&](float rate, float clip) {
    with_.update.rate = rate, with_.update.clip = clip;
    return train_on(1).out.values;
  };
  auto const norm_of_velocities = [&](std::vector<float> const& values) {  // after one step: of the gradients
    double sum = 0;
    std::size_t at = 0;
    for (auto const& row : parameter_table(with_.shape)) {
      at += static_cast<std::size_t>(row.count());
      for (std::int64_t i = 0; i < row.count(); ++i, ++at)
        sum += std::pow(double{values[at]}, 2);
    }
    return std::sqrt(sum);
  };
  std::vector<float> const free = values_with(0.1f, 0);
  EXPECT_GT(norm_of_velocities(free), 0.02);
  EXPECT_NEAR(norm_of_velocities(values_with(0.1f, 0.01f)), 0.01, 1e-6);
  EXPECT_EQ(values_with(0.1f, 1e6f), free);
}

TEST_F(trained, checkpoints_beside_training_go_on_with_the_same_bits) {
  with_.steps = 20, with_.save_every = 8, with_.save_file = folder_ / "model";
  for (optimizer const by : {optimizer::sgd, optimizer::adamw}) {
    with_.how.by = by;
    run const whole = train_on(1);
    checkpoint const read = read_checkpoint(with_.save_file);
    EXPECT_EQ(read.step, 16);
    EXPECT_EQ(read.by, by);
    EXPECT_EQ(train_on(1, &read).out.fingerprints, whole.out.fingerprints);
    if (devices() >= 2) {
      EXPECT_TRUE(train_on(2, &read).out.agree());
    }
  }
}

// The parameters diverge at once, so that each step of float16 is left out: the scale halves, and no step counts.
TEST_F(trained, a_checkpoint_has_the_loss_scale_and_the_steps) {
  with_.how.type = weir::float16;
  with_.steps = 12, with_.save_every = 8, with_.save_file = folder_ / "model";
  with_.update.rate = 1e30f, with_.update.momentum = 0;
  run const whole = train_on(1);
  EXPECT_LT(whole.out.scale.by, 32768 / (1 << 4));
  checkpoint const read = read_checkpoint(with_.save_file);
  EXPECT_EQ(read.step, 8);
  run const rest = train_on(1, &read);
  EXPECT_EQ(rest.out.scale.by, whole.out.scale.by);
  EXPECT_EQ(rest.out.fingerprints, whole.out.fingerprints);
}

// The last checkpoint beside the training meets no folder. The training comes to its end, and has its values.
TEST_F(trained, a_failed_checkpoint_does_not_end_the_training) {
  with_.steps = 4, with_.save_every = 2, with_.save_file = folder_ / "none" / "model";
  EXPECT_FALSE(train_on(1).out.values.empty());
}

TEST_F(trained, a_checkpoint_with_any_damaged_byte_is_refused) {
  with_.save_file = folder_ / "model";
  with_.steps = 2;
  run const r = train_on(1);
  text const t(with_.text_file, with_.shape.context);
  write_checkpoint(with_.save_file, {with_.shape, with_.how.by, 2, t.characters(), r.out.values});
  std::ifstream in(with_.save_file, std::ios::binary);
  std::string const good{std::istreambuf_iterator<char>(in), {}};
  auto const refused = [&](std::string const& bytes) {
    std::ofstream(with_.save_file, std::ios::binary | std::ios::trunc) << bytes;
    try {
      read_checkpoint(with_.save_file);
    } catch (std::runtime_error const& e) {
      return std::string(e.what()).find(with_.save_file) != std::string::npos;
    }
    return false;
  };
  for (std::size_t at = 0; at < good.size(); at += 1 + mix(at) % 4096) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x10);
    EXPECT_TRUE(refused(bad)) << "byte " << at;
  }
  for (std::size_t const size : {std::size_t{0}, std::size_t{7}, std::size_t{11}, std::size_t{40}, good.size() - 1})
    EXPECT_TRUE(refused(good.substr(0, size))) << size << " bytes";
  EXPECT_FALSE(refused(good));
}

TEST_F(trained, an_unusable_text_is_refused_by_name) {
  auto const says = [&](std::filesystem::path const& file) -> std::string {
    try {
      text t(file, 8);
    } catch (std::runtime_error const& e) {
      return e.what();
    }
    return "";
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
  with_.batch = 4096;
  with_.shape.hidden = 512;
  EXPECT_THROW(train_on(std::min(2, devices())), weir::out_of_memory);
  weir::set_memory_limit(0, 0);
  with_.batch = 64;
  with_.shape.hidden = 32;
  EXPECT_TRUE(train_on(std::min(2, devices())).out.agree());
}

}  // namespace
}  // namespace trainer
