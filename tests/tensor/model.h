// A simple model of tensors: a view is the list of its elements' storage positions.
#pragma once
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "weir/device.h"
#include "weir/runtime.h"
#include "weir/sim.h"
#include "weir/tensor.h"

namespace weir::testing {

inline std::uint64_t seed_of_test() {
  char const* const given = std::getenv("WEIR_TEST_SEED");
  return given ? std::strtoull(given, nullptr, 0) : std::random_device{}();
}

class random_source {
 public:
  explicit random_source(std::uint64_t seed) : engine_(seed) {}
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(engine_);
  }
  float number() { return std::uniform_real_distribution<float>(-2, 2)(engine_); }
  template <class T>
  T const& one_of(std::vector<T> const& all) {
    return all[static_cast<size_t>(between(0, static_cast<std::int64_t>(all.size()) - 1))];
  }

 private:
  std::mt19937_64 engine_;
};

using extents = std::vector<std::int64_t>;
inline shape shape_of(extents const& s) {
  return shape(std::span<std::int64_t const>(s));
}

struct model_view {
  extents shape;
  std::vector<std::int64_t> at;  // each element's position in the storage, in row-major order

  static model_view whole(extents s) {
    model_view v{std::move(s), {}};
    v.at.resize(
        static_cast<size_t>(std::accumulate(v.shape.begin(), v.shape.end(), std::int64_t{1}, std::multiplies<>())));
    std::iota(v.at.begin(), v.at.end(), 0);
    return v;
  }
  // A view of shape `s` whose element at a new index is the old one at from(index).
  template <class F>
  model_view gathered(extents s, F from) const {
    model_view v{std::move(s), {}};
    for (std::int64_t const e : v.shape)
      if (e == 0)
        return v;
    extents i(v.shape.size(), 0);
    while (true) {
      extents const old = from(i);
      std::int64_t k = 0;
      for (size_t d = 0; d < old.size(); ++d)
        k = k * shape[d] + old[d];
      v.at.push_back(at[static_cast<size_t>(k)]);
      int d = static_cast<int>(i.size()) - 1;
      while (d >= 0 && ++i[static_cast<size_t>(d)] == v.shape[static_cast<size_t>(d)])
        i[static_cast<size_t>(d--)] = 0;
      if (d < 0)
        return v;
    }
  }
  model_view transposed(size_t a, size_t b) const {
    extents s = shape;
    std::swap(s[a], s[b]);
    return gathered(s, [=](extents i) {
      std::swap(i[a], i[b]);
      return i;
    });
  }
  model_view sliced(size_t d, std::int64_t from, std::int64_t to) const {
    extents s = shape;
    s[d] = to - from;
    return gathered(s, [=](extents i) {
      i[d] += from;
      return i;
    });
  }
  model_view indexed(std::int64_t k) const {
    return gathered({shape.begin() + 1, shape.end()}, [=](extents i) {
      i.insert(i.begin(), k);
      return i;
    });
  }
};

struct modelled {
  tensor t;
  model_view m;
  modelled transposed(size_t a, size_t b) const {
    return {t.transpose(static_cast<int>(a), static_cast<int>(b)), m.transposed(a, b)};
  }
  modelled sliced(size_t d, std::int64_t from, std::int64_t to) const {
    return {t.slice(static_cast<int>(d), from, to), m.sliced(d, from, to)};
  }
};

inline modelled random_view(modelled v, random_source& random, std::int64_t steps) {
  for (std::int64_t i = 0; i < steps; ++i) {
    auto const rank = static_cast<std::int64_t>(v.m.shape.size());
    if (rank == 0)
      return v;
    auto const d = static_cast<size_t>(random.between(0, rank - 1));
    switch (random.between(0, 3)) {
      case 0: v = v.transposed(d, static_cast<size_t>(random.between(0, rank - 1))); break;
      case 1:
      case 2: {
        auto const from = random.between(0, v.m.shape[d]), to = random.between(from, v.m.shape[d]);
        if (to > from || random.between(0, 7) == 0)
          v = v.sliced(d, from, to);  // seldom empty
        break;
      }
      default:
        if (rank > 1 && v.m.shape[0] > 0) {
          auto const k = random.between(0, v.m.shape[0] - 1);
          v = {v.t[k], v.m.indexed(k)};
        }
    }
  }
  return v;
}

inline extents random_shape(random_source& random, std::int64_t most_dimensions = 4, std::int64_t most = 7) {
  extents s(static_cast<size_t>(random.between(1, most_dimensions)));
  for (auto& e : s)
    e = random.between(0, 15) ? random.between(1, most) : 0;
  return s;
}

struct memory_of_tensor {
  device on;
  memory_kind kind;
};
inline tensor_options options_at(memory_of_tensor p, dtype type = float32) {
  return {.dtype = type, .on = p.on, .kind = p.kind};
}

// On the machine of WEIR_DEVICES.
class on_devices : public ::testing::Test {
 protected:
  std::uint64_t const seed = seed_of_test();
  ::testing::ScopedTrace const trace{__FILE__, __LINE__, "WEIR_TEST_SEED=" + std::to_string(seed)};
  random_source random{seed};
  device const second = device_count() > 1 ? device(1) : device(0);
  std::vector<memory_of_tensor> const places{{cpu, memory_kind::pageable},
                                             {cpu, memory_kind::pinned},
                                             {0, memory_kind::device},
                                             {second, memory_kind::device}};

  void TearDown() override {
    for (int i = 0; i < device_count(); ++i)
      synchronize(i);
    if (runtime::current().is_simulated()) {
      EXPECT_EQ(simulation::of(runtime::current()).findings(), std::vector<std::string>{});
    }
  }
};

// `call` throws a weir::error whose text contains all words and a remedy.
template <class F>
void expect_refusal(F call, std::vector<std::string> words) {
  try {
    call();
    ADD_FAILURE() << "not refused: " << words[0];
  } catch (error const& e) {
    std::string const text =
        std::string(e.operation()) + ": " + std::string(e.operands()) + ". " + std::string(e.remedy());
    for (auto const& w : words)
      EXPECT_NE(text.find(w), std::string::npos) << w << " is not in: " << text;
    EXPECT_FALSE(e.remedy().empty()) << text;
  }
}

}  // namespace weir::testing
