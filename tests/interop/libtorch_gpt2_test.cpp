// examples/gpt2: ranks train as one, a checkpoint continues a run, and bad input is named.
#include <cstring>
#include <limits>
#include <set>

#include "examples/gpt2/gpt2.h"
#include "tests/checkpoint/files.h"
#include "tests/peer/ranks.h"
#include "weir/observe.h"

namespace weir::gpt2_test {
namespace {

using namespace weir::test;

// A model of two layers on a text that a seed gives.
class gpt2_training : public in_a_folder {
 protected:
  void SetUp() override {
    in_a_folder::SetUp();
    std::string text;
    std::mt19937 random(3);
    while (text.size() < 4000)
      text += std::string("the model reads a text of some words again ").substr(random() % 9, 4 + random() % 9);
    write_file(folder_ / "text", text);
    s_.tokens = folder_ / "text";
    s_.layers = s_.heads = 2;
    s_.width = 16;
    s_.context = 12;
    s_.vocabulary = 128;
    s_.steps = s_.warmup = 20;
    s_.rate = 0.01;
    s_.every = 1;
  }
  static gpt2::outcome on(int ranks, gpt2::settings const& s, options with = {}) {
    runtime machine(simulated{.devices = 4, .memory = 64_MiB}, with);
    runtime_guard const in(machine);
    gpt2::prepare(s);
    gpt2::corpus const from = gpt2::read(s);
    auto all = communicator::create_all(first_devices(ranks));
    gpt2::outcome of_first;
    on_each(machine, all, [&](communicator& c) {
      gpt2::outcome o = gpt2::train(s, from, c, false);
      if (c.rank() == 0)
        of_first = std::move(o);
    });
    if (with.check_races)
      require_no_races();
    return of_first;
  }
  // float32 rounds to some seven digits, in another order on each number of ranks.
  static void expect_near(gpt2::outcome const& a, gpt2::outcome const& b) {
    ASSERT_EQ(a.losses.size(), b.losses.size());
    for (std::size_t i = 0; i < a.losses.size(); ++i)
      EXPECT_NEAR(a.losses[i], b.losses[i], 1e-4) << "step " << i + 1;
    EXPECT_NEAR(a.validation, b.validation, 1e-4);
  }
  gpt2::settings s_;
};

TEST_F(gpt2_training, on_ranks_is_that_of_one) {
  s_.batch = 8;
  gpt2::outcome const alone = on(1, s_);
  ASSERT_EQ(alone.losses.size(), 20u);
  EXPECT_NEAR(alone.losses[0], std::log(128), 0.1) << "a model that knows nothing";
  EXPECT_LT(alone.losses[19], 3.5);
  for (int const ranks : {2, 4}) {
    s_.batch = 8 / ranks;
    gpt2::outcome const o = on(ranks, s_);
    SCOPED_TRACE(ranks);
    for (std::size_t i = 0; i < 20; ++i)
      EXPECT_NEAR(o.losses[i], alone.losses[i], 1e-4) << "step " << i + 1;
  }
}

TEST_F(gpt2_training, of_two_passes_is_that_of_a_batch_of_twice) {
  s_.batch = 4;
  gpt2::outcome const whole = on(2, s_);
  s_.batch = 2;
  s_.accumulate = 2;
  expect_near(on(2, s_), whole);
}

TEST_F(gpt2_training, in_bfloat16_comes_near) {
  s_.batch = 2;
  gpt2::outcome const exact = on(2, s_);
  for (std::string gpt2::settings::*what : {&gpt2::settings::dtype, &gpt2::settings::reduce}) {
    gpt2::settings s = s_;
    s.*what = "bf16";
    gpt2::outcome const rounded = on(2, s);
    for (std::size_t i = 0; i < 20; ++i)
      EXPECT_NEAR(rounded.losses[i], exact.losses[i], 0.05) << "step " << i + 1;
    EXPECT_NE(rounded.losses, exact.losses);
  }
}

// The rate rises in all twenty steps, so that it does not depend on where a run ends.
TEST_F(gpt2_training, continues_from_a_checkpoint_to_the_bit) {
  s_.batch = 2;
  gpt2::outcome const whole = on(2, s_);
  s_.steps = 10;
  s_.save = file();
  on(2, s_);
  s_.steps = 20;
  s_.load = std::exchange(s_.save, "");
  gpt2::outcome const rest = on(2, s_);
  EXPECT_EQ(rest.losses, std::vector(whole.losses.begin() + 10, whole.losses.end()));
  EXPECT_EQ(rest.validation, whole.validation);
}

// As published files of GPT-2 have them: without "transformer." and the optimizer's state.
TEST_F(gpt2_training, begins_with_a_file_of_others) {
  s_.steps = 3;
  s_.save = file();
  gpt2::outcome const saved = on(1, s_);
  std::filesystem::path const theirs = folder_ / "theirs.safetensors";
  {
    runtime machine(simulated{.devices = 1});
    runtime_guard const in(machine);
    checkpoint_reader const ours(file());
    EXPECT_EQ(ours.metadata().at("format"), "pt");
    EXPECT_EQ(ours.find("transformer.h.1.attn.c_attn.weight")->extents, (shape{16, 48}));
    std::vector<tensor> values;
    std::vector<checkpoint_item> items;
    for (auto const& entry : ours.entries())
      if (entry.name.starts_with("transformer."))
        items.emplace_back(entry.name.substr(12), values.emplace_back(ours.read(entry.name)));
    checkpoint_writer(theirs).save(items);
  }
  s_.steps = 0;
  s_.save.clear();
  s_.load = theirs;
  EXPECT_EQ(on(1, s_).validation, saved.validation);
}

TEST_F(gpt2_training, has_no_races) {
  s_.steps = 3;
  on(2, s_, {.check_races = true});
}

TEST_F(gpt2_training, has_other_rows_with_another_seed) {
  gpt2::corpus const from = gpt2::read(s_);
  std::set<std::vector<std::int64_t>> all;
  for (s_.seed = 0; s_.seed < 8; ++s_.seed) {
    std::vector<std::int64_t> rows(static_cast<std::size_t>(2 * s_.batch * s_.context));
    gpt2::fill(from.training, 0, s_, rows.data());
    all.insert(rows);
  }
  EXPECT_EQ(all.size(), 8);
}

TEST_F(gpt2_training, reads_tokens_of_llm_c) {
  gpt2::corpus const of_text = gpt2::read(s_);
  std::string const text = bytes_of_file(s_.tokens);
  std::int32_t const header[256] = {20240520, 1, static_cast<std::int32_t>(text.size())};
  std::string bytes(reinterpret_cast<char const*>(header), sizeof header);
  for (char const c : text)
    bytes += c, bytes += '\0';
  s_.tokens = folder_ / "text.bin";
  write_file(s_.tokens, bytes);
  EXPECT_EQ(gpt2::read(s_).training, of_text.training);
  EXPECT_EQ(gpt2::read(s_).validation, of_text.validation);
}

TEST_F(gpt2_training, names_what_tokens_lack) {
  auto const refused = [&](auto change) {
    gpt2::settings s = s_;
    change(s);
    return refusal<std::runtime_error>([&] { gpt2::read(s); });
  };
  auto const expect = [](std::string const& text, char const* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  std::int32_t header[256] = {20240520, 1, 3};
  write_file(folder_ / "cut.bin", std::string(reinterpret_cast<char const*>(header), sizeof header) + "12345");
  write_file(folder_ / "other.bin", "not tokens at all");
  expect(refused([&](auto& s) { s.tokens = folder_ / "none"; }), "none cannot be read");
  expect(refused([&](auto& s) { s.tokens = folder_; }), "cannot be read");
  expect(refused([&](auto& s) { s.tokens = folder_ / "cut.bin"; }), "has 1029 B, and its header says 3 tokens");
  expect(refused([&](auto& s) { s.tokens = folder_ / "other.bin"; }), "tokens of llm.c begin with 20240520, 1");
  expect(refused([&](auto& s) { s.vocabulary = 100; }), "outside of --vocabulary 100");
  expect(refused([&](auto& s) { s.context = 400; }), "its last tenth needs more than --context 400");
}

TEST_F(gpt2_training, names_a_checkpoint_of_another_model) {
  s_.steps = 0;
  s_.save = file();
  on(1, s_);
  s_.load = std::exchange(s_.save, "");
  s_.width = 32;
  std::string text = refusal<std::runtime_error>([&] { on(2, s_); });
  EXPECT_NE(text.find("transformer.wte.weight is [128, 16], the model's is [128, 32]"), std::string::npos) << text;
  s_.width = 16;
  s_.layers = 3;
  text = refusal<std::runtime_error>([&] { on(1, s_); });
  EXPECT_NE(text.find("h.2.ln_1.weight is missing"), std::string::npos) << text;
  s_.load = folder_ / "none.safetensors";
  EXPECT_NE(refusal<checkpoint_error>([&] { on(1, s_); }), "");
}

}  // namespace
}  // namespace weir::gpt2_test
