// Trains a model of eight layers on a device that holds three of them: layers not used for longest sleep in
// pinned memory. Every loss is the same, bit by bit, as without a limit.
//   overflow [MIB]    MiB of the model; 96 by default
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "examples/ending.h"
#include "weir/copy.h"
#include "weir/device.h"
#include "weir/parallel_for.h"
#include "weir/pool.h"

namespace {

struct set_to {
  float* to;
  float scale;
  WEIR_HOST_DEVICE void operator()(std::size_t i) const { to[i] = 1 + scale * static_cast<float>(i % 64); }
};
struct forward {  // out = weight * in
  float* out;
  float const *weight, *in;
  WEIR_HOST_DEVICE void operator()(std::size_t i) const { out[i] = weight[i] * in[i]; }
};
struct backward {  // of the same, with a step of gradient descent; the gradient of `out` becomes that of `in`
  float *weight, *gradient;
  float const* in;
  WEIR_HOST_DEVICE void operator()(std::size_t i) const {
    float const of_weight = gradient[i] * in[i];
    gradient[i] *= weight[i];
    weight[i] -= 0.001f * of_weight;
  }
};
struct difference {  // the gradient of the squared error to 2
  float* gradient;
  float const* out;
  WEIR_HOST_DEVICE void operator()(std::size_t i) const { gradient[i] = 2 * (out[i] - 2); }
};

struct layer {
  layer(int number, std::size_t n) : memory("layer " + std::to_string(number)) {
    weir::pool_guard const here(memory);
    weight = weir::buffer(n * sizeof(float)), in = weir::buffer(n * sizeof(float));
    auto* const w = weight.data<float>();
    weir::parallel_for(weir::current_stream(), n, {weir::writes(weight)},
                       set_to{w, 0.0001f * static_cast<float>(number)});
  }
  weir::pool memory;
  weir::buffer weight, in;
};

constexpr int layers = 8, steps = 5;

// Returns: the loss of each step.
std::vector<double> train(std::size_t n, std::size_t limit) {
  weir::set_memory_limit(limit);
  std::vector<std::unique_ptr<layer>> model;
  std::vector<std::unique_ptr<weir::spill>> overflow;
  for (int i = 0; i < layers; ++i) {
    model.push_back(std::make_unique<layer>(i, n));
    overflow.push_back(std::make_unique<weir::spill>(std::vector{&model.back()->memory}));
  }
  weir::stream_ref const s = weir::current_stream();
  weir::buffer out(n * sizeof(float)), gradient(n * sizeof(float));
  weir::parallel_for(s, n, {weir::writes(model[0]->in)}, set_to{model[0]->in.data<float>(), 0.01f});
  std::vector<double> losses;
  std::vector<float> host(n);
  for (int step = 0; step < steps; ++step) {
    for (int i = 0; i < layers; ++i) {
      layer const& l = *model[i];
      weir::buffer const& to = i + 1 < layers ? model[i + 1]->in : out;
      weir::parallel_for(s, n, {weir::writes(to), weir::reads(l.weight), weir::reads(l.in)},
                         forward{to.data<float>(), l.weight.data<float>(), l.in.data<float>()});
    }
    weir::parallel_for(s, n, {weir::writes(gradient), weir::reads(out)},
                       difference{gradient.data<float>(), out.data<float>()});
    for (int i = layers; i-- > 0;) {
      layer const& l = *model[i];
      weir::parallel_for(s, n, {weir::updates(l.weight), weir::updates(gradient), weir::reads(l.in)},
                         backward{l.weight.data<float>(), gradient.data<float>(), l.in.data<float>()});
    }
    weir::copy(host.data(), out.data(), out.size());
    losses.push_back(0);
    for (float const x : host)
      losses.back() += (x - 2.0) * (x - 2.0) / static_cast<double>(n);
  }
  int asleep = 0;
  for (auto const& l : model)
    asleep += l->memory.is_asleep();
  std::printf("%s limit: %d of %d layers sleep at the end, loss %.9f\n", limit ? "with a" : "without a", asleep, layers,
              losses.back());
  return losses;
}

}  // namespace

int main(int argc, char** argv) try {
  std::size_t const mib = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 96;
  if (argc > 2 || mib < 2 * layers)
    return std::fputs("usage: overflow [MIB]    16 at least\n", stderr), 2;
  std::size_t const bytes = (mib << 20) / layers, n = bytes / 2 / sizeof(float);
  auto const expected = train(n, 0);
  weir::empty_cache();
  bool const ok = train(n, 4 * bytes + (4 << 20)) == expected;  // three layers, and what is in no layer
  std::printf("every loss is as without a limit: %s\n", ok ? "ok" : "WRONG");
  return examples::ending("overflow", ok ? 0 : 1);
} catch (std::exception const& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
