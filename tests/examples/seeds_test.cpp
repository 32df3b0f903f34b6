// Every row and sentence of the articles' experiments holds, and a row that fails is reported.
// Threads: those of the topics.
#include <gtest/gtest.h>

#include <sstream>

#include "examples/seeds/tape.h"
#include "examples/seeds/topics.h"
#include "weir/memory.h"

namespace seeds {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif

settings small(std::ostream& out) {
  // The C library returns a block of 64 MiB to the system at once; it may keep smaller ones.
  return {.out = out,
          .part = 64,
          .touched_part = sanitized ? 64u : 16u,
          .process_memory = !sanitized,
          .seeds = sanitized ? 20 : 50};
}

class seeds_topic : public testing::TestWithParam<topic> {};

TEST_P(seeds_topic, every_row_is_as_expected) {
  std::ostringstream said;
  EXPECT_EQ(GetParam().run(small(said)), 0) << said.str();
}
INSTANTIATE_TEST_SUITE_P(all, seeds_topic, testing::ValuesIn(topics().begin(), topics().end()),
                         [](auto const& which) { return std::string(which.param.name); });

TEST(seeds_table, an_unexpected_row_is_reported_and_counted) {
  std::ostringstream said;
  settings const with = small(said);
  machine const on(with, {.devices = 1, .memory = 64_MiB}, {});
  table t(with, "a table");
  weir::buffer const block(2_MiB);
  t.row("right", {exactly(2 << 20), held_for(2 << 20)}, "");
  EXPECT_EQ(t.failures(), 0) << said.str();
  t.row("wrong", {exactly(1 << 20), held_for(1 << 20)}, "");
  EXPECT_EQ(t.failures(), 1) << said.str();  // reserved bytes may exceed the expectation by a few pages
  EXPECT_NE(said.str().find("NOT AS IT MUST BE: allocated 2097152 B"), std::string::npos) << said.str();
  t.holds(false, "water flows up");
  EXPECT_EQ(t.failures(), 2);
  EXPECT_NE(said.str().find("NOT TRUE: water flows up"), std::string::npos);
}

// Compares each gradient with the difference quotient of the loss.
TEST(seeds_tape, gradients_are_the_slopes_of_the_loss) {
  weir::runtime machine{weir::simulated{.devices = 1, .memory = 64_MiB}};
  weir::runtime_guard const in(machine);
  weir::manual_seed(5);
  weir::tensor const a = weir::randn({3, 4}, {.on = weir::cpu}), b = weir::randn({4, 5}, {.on = weir::cpu}),
                     c = weir::randn({3, 5}, {.on = weir::cpu});
  var const x = var::parameter(a), y = var::parameter(b), z = var::parameter(c);
  auto const loss = [&] {
    var const h = matmul(x, y);
    return mean(
        mul(sin(h), checkpoint([&z, kept = h.detach()](var const& k) { return mul(mul(k, z), kept); }, sin(z))));
  };
  backward(loss());
  struct one {
    weir::tensor values;
    var of;
  };
  for (one const& p : {one{a, x}, one{b, y}, one{c, z}}) {
    for (std::int64_t i = 0; i < p.values.numel(); ++i) {
      float& number = p.values.host<float>()[static_cast<std::size_t>(i)];
      float const was = number, step = 1e-2f;
      weir::tensor const h = weir::matmul(a, b);  // detached in the loss, so it stays fixed
      auto const slope_at = [&](float v) {
        number = v;
        weir::tensor const moved = weir::matmul(a, b);
        return static_cast<double>(
            weir::mean(weir::mul(weir::sin(moved), weir::mul(weir::mul(weir::sin(c), c), h))).item<float>());
      };
      double const should = (slope_at(was + step) - slope_at(was - step)) / (2 * static_cast<double>(step));
      number = was;
      EXPECT_NEAR(static_cast<double>(p.of.gradient().view({-1}).host<float>()[static_cast<std::size_t>(i)]), should,
                  2e-3)
          << i;
    }
  }
}

TEST(seeds_tape, an_in_place_change_of_a_saved_value_is_refused) {
  var const x = var::parameter(weir::ones({2, 2}, {.on = weir::cpu}));
  var const h = mul(x, x), loss = mean(sin(h));
  weir::tensor(h.value()).relu_();
  try {
    backward(loss);
    FAIL();
  } catch (weir::invalid_use const& e) {
    EXPECT_NE(std::string(e.what()).find("[2, 2]: its storage is at version"), std::string::npos) << e.what();
  }
  EXPECT_THROW(backward(var(weir::ones({}, {.on = weir::cpu}))), weir::invalid_use);
}

}  // namespace
}  // namespace seeds
