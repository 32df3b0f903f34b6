// Optimizers for tests: each formula in float64 for one element, and tensors of random numbers in device
// memory.
// Threads: as each says.
#pragma once
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "tests/peer/ranks.h"
#include "weir/half.h"
#include "weir/optimizer.h"

namespace weir::test {

inline elements rounded(dtype type, std::vector<double> const& values) {
  elements e(values.size() * size_of(type));
  for (std::size_t i = 0; i < values.size(); ++i) {
    auto const put = [&](auto v) { std::memcpy(e.data() + i * sizeof v, &v, sizeof v); };
    switch (type) {
      case float64: put(values[i]); break;
      case float16: put(float16_t(static_cast<float>(values[i]))); break;
      case bfloat16: put(bfloat16_t(static_cast<float>(values[i]))); break;
      default: put(static_cast<float>(values[i])); break;
    }
  }
  return e;
}
inline std::vector<double> values_in(device_span s) {
  elements const e = to_host(s.data, static_cast<std::size_t>(s.count) * size_of(s.dtype));
  return values_of(s.count, [&](std::int64_t i) {
    auto const get = [&]<class T>(T v) {
      std::memcpy(&v, e.data() + static_cast<std::size_t>(i) * sizeof v, sizeof v);
      return v;
    };
    switch (s.dtype) {
      case float64: return get(double{});
      case float16: return static_cast<double>(static_cast<float>(get(float16_t{})));
      case bfloat16: return static_cast<double>(static_cast<float>(get(bfloat16_t{})));
      case int64: return static_cast<double>(get(std::int64_t{}));
      default: return static_cast<double>(get(float{}));
    }
  });
}
inline elements bits_of(device_span s) {
  return to_host(s.data, static_cast<std::size_t>(s.count) * size_of(s.dtype));
}
inline void write(device_span to, std::vector<double> const& values) {
  elements const e = rounded(to.dtype, values);
  copy(to.data, e.data(), e.size());
}
inline std::vector<double> random_values(std::mt19937& random, std::int64_t count, double deviation = 1) {
  std::normal_distribution<double> of(0, deviation);
  return values_of(count, [&](std::int64_t) { return of(random); });
}

// An item in memory of its own, `late` elements behind its begin.
struct owned_item {
  buffer parameter, gradient;
  update_item item;
  owned_item(std::int64_t count, dtype of_parameter, dtype of_gradient, double rate = 1, double decay = 1,
             std::int64_t late = 0)
      : parameter(static_cast<std::size_t>(count + late) * size_of(of_parameter)),
        gradient(static_cast<std::size_t>(count + late) * size_of(of_gradient)),
        item{{from(parameter, late, of_parameter), count, of_parameter},
             {from(gradient, late, of_gradient), count, of_gradient},
             rate,
             decay} {}

 private:
  static void* from(buffer const& memory, std::int64_t element, dtype type) {
    return static_cast<std::byte*>(memory.data()) + static_cast<std::size_t>(element) * size_of(type);
  }
};
inline std::vector<update_item> items_in(std::vector<owned_item> const& all) {
  std::vector<update_item> items;
  for (owned_item const& o : all)
    items.push_back(o.item);
  return items;
}
inline device_span part(optimizer const& o, std::string const& name) {
  for (state_part const& p : o.state())
    if (p.name == name)
      return p.data;
  ADD_FAILURE() << "no state " << name;
  return {};
}

// One element. t counts from 1.
struct plain_adamw {
  double p, mean = 0, square = 0;
  void step(adamw_options const& o, double rate, double decay, double g, int t) {
    p -= rate * decay * p;
    mean = o.beta1 * mean + (1 - o.beta1) * g;
    square = o.beta2 * square + (1 - o.beta2) * g * g;
    p -= rate / (1 - std::pow(o.beta1, t)) * mean / (std::sqrt(square / (1 - std::pow(o.beta2, t))) + o.epsilon);
  }
};
struct plain_sgd {
  double p, velocity = 0;
  void step(sgd_options const& o, double rate, double decay, double g) {
    g += decay * p;
    velocity = o.momentum * velocity + g;
    p -= rate * (o.nesterov ? g + o.momentum * velocity : velocity);
  }
};

}  // namespace weir::test
