// Random steps of an SGD optimizer with a loss scale, enqueued or captured and launched, against the same
// numbers on the host. Launches may be refused, gradients may be infinite, and the optimizer may end while
// its work runs.
// Threads: one; the seeded machine chooses what its device does.
#pragma once
#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <span>

#include "tests/model/api_program.h"
#include "weir/graph.h"
#include "weir/launch.h"
#include "weir/optimizer.h"

namespace weir::tests {

// All elements of an item are equal, and small enough that float32 rounds none.
class optimizer_program {
 public:
  explicit optimizer_program(std::uint64_t seed) : random_(seed), m_(seeded_machine(seed, 1)) {
    items_.resize(1 + random_() % 3);
    for (item& i : items_) {
      i.count = 1 + static_cast<std::int64_t>(random_() % 1500);
      i.parameter = buffer(lines_[0], i.bytes()), i.gradient = buffer(lines_[0], i.bytes());
      put(lines_[0], i.parameter_span(), 0);
    }
    begin();
  }

  verdict run() {
    try {
      for (int k = 0, n = 4 + static_cast<int>(random_() % 8); k < n; ++k)
        act();
      if (optimizer_)
        compare();
      synchronize();
    } catch (std::exception const& e) {
      wrong_.note(check::answers, e.what());
    }
    judge(m_, wrong_);
    return wrong_;
  }

 private:
  struct item {
    std::int64_t count = 0;
    buffer parameter{}, gradient{};
    double value = 0, velocity = 0, read = 0;  // read: the gradient
    std::size_t bytes() const { return static_cast<std::size_t>(count) * sizeof(float); }
    device_span parameter_span() const { return {parameter.data(), count, float32}; }
    device_span gradient_span() const { return {gradient.data(), count, float32}; }
  };

  static void put(stream_ref s, device_span to, float v) {
    launch(
        s, {writes(to)}, [](CUstream_st*) {}, [to, v] { std::fill_n(static_cast<float*>(to.data), to.count, v); });
  }

  void begin() {
    std::vector<update_item> all;
    for (item& i : items_) {
      all.push_back({i.parameter_span(), i.gradient_span()});
      i.velocity = 0;
    }
    stream_guard const in(lines_[0]);
    scale_.emplace(loss_scale_options{.first = 4, .most = 8, .steps_to_grow = 2});
    optimizer_.emplace(sgd(all, {.rate = 1, .momentum = 0.5, .scale = &*scale_}));
    scale_is_ = 4, good_ = 0, rate_ = 1, steps_ = 0, skipped_ = 0;
    lines_[1].wait(lines_[0]);
  }

  // A graph names the memory of its optimizer. Memory that both leave is filled at once by its next owner.
  void end() {
    graphs_.clear();
    optimizer_.reset(), scale_.reset();
    for (std::size_t bytes : {512u, 1024u, 4096u, 8192u, 16384u, 32768u}) {
      buffer const other(lines_[0], bytes);
      put(lines_[0], {other.data(), static_cast<std::int64_t>(bytes / 4), float32}, 77);
    }
  }

  void act() {
    // The streams take turns: what follows comes behind all that the others did.
    stream const& on = lines_[random_() % 2];
    on.wait(lines_[0]), on.wait(lines_[1]);
    switch (random_() % 8) {
      case 0: return compare();
      case 1:
        end();
        lines_[0].wait(lines_[1]);
        return begin();
      case 2:
        rate_ = random_() % 2 ? 1 : 2;
        optimizer_->set_rate(on, rate_);
        return joined(on);
      default: return step(on);
    }
  }
  void joined(stream const& on) {
    for (stream const& s : lines_)
      s.wait(on);
  }

  void step(stream const& on) {
    bool const bad = random_() % 4 == 0;
    std::size_t const which = random_() % items_.size();
    for (std::size_t i = 0; i < items_.size(); ++i) {
      items_[i].read = static_cast<double>(1 + random_() % 3);
      put(on, items_[i].gradient_span(),
          bad && i == which ? std::numeric_limits<float>::infinity() : static_cast<float>(items_[i].read * scale_is_));
    }
    auto const how = random_() % 3;
    if (how == 0)
      refused(on);
    if (how == 1 || graphs_.empty())
      captured(on);
    if (how > 0)
      graphs_[random_() % graphs_.size()].launch(on);
    follow(!bad);
    // The end of an optimizer may come while this step runs on the other stream. A launch of a graph marks no
    // memory.
    if (how == 0 && random_() % 2) {
      end();
      lines_[0].wait(on);
      return begin();
    }
    joined(on);
  }
  // One of the launches of a step may be refused. The step is repeated then.
  void refused(stream const& on) {
    auto machine = simulation::of(m_.own);
    if (random_() % 2)
      machine.fail_call("enqueue", 1 + random_() % 5);
    try {
      optimizer_->step(on);
    } catch (driver_error const&) {
      optimizer_->step(on);
    }
    machine.clear_failures();
  }
  // A launch may be refused in the capture, too, which is begun anew then.
  void captured(stream const& on) {
    auto machine = simulation::of(m_.own);
    if (random_() % 4 == 0)
      machine.fail_call("enqueue", 1 + random_() % 5);
    auto const step = [&] { optimizer_->step(on); };
    try {
      graphs_.push_back(graph::capture(on, step));
    } catch (driver_error const&) {
      graphs_.push_back(graph::capture(on, step));
    }
    machine.clear_failures();
  }
  void follow(bool good) {
    if (!good) {
      scale_is_ = std::max(1.0, scale_is_ / 2), good_ = 0, ++skipped_;
      return;
    }
    ++steps_;
    if (++good_ == 2)
      good_ = 0, scale_is_ = std::min(8.0, scale_is_ * 2);
    for (item& i : items_) {
      i.velocity = 0.5 * i.velocity + i.read;
      i.value -= rate_ * i.velocity;
    }
  }

  void compare() {
    stream const& on = lines_[random_() % 2];
    on.wait(lines_[0]), on.wait(lines_[1]);
    auto const same = [&](std::string const& what, double is, double wanted) {
      if (is != wanted)
        wrong_.note(check::bytes, what + " is " + std::to_string(is) + ", not " + std::to_string(wanted));
    };
    for (item const& i : items_) {
      std::vector<float> got(static_cast<std::size_t>(i.count));
      copy(on, got.data(), i.parameter.data(), i.bytes());
      for (float const v : got)
        same("a parameter of item " + std::to_string(&i - items_.data()), static_cast<double>(v), i.value);
    }
    same("the number of steps", static_cast<double>(optimizer_->steps(on)), steps_);
    same("the number of skipped steps", static_cast<double>(optimizer_->skipped(on)), skipped_);
    same("the scale", static_cast<double>(scale_->read(on)), scale_is_);
  }

  std::mt19937_64 random_;
  test::machine m_;
  std::array<stream, 2> const lines_{stream(device(0)), stream(device(0))};
  std::vector<item> items_;
  std::optional<loss_scale> scale_;
  std::optional<optimizer> optimizer_;
  std::vector<graph> graphs_;
  double scale_is_ = 4, rate_ = 1;
  int good_ = 0, steps_ = 0, skipped_ = 0;
  verdict wrong_;
};

}  // namespace weir::tests
