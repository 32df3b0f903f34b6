// Two models take turns on a device that holds one and a half: one sleeps while the other works.
//   turns [MIB]    MiB of each model's weights; 64 by default
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "examples/ending.h"
#include "weir/copy.h"
#include "weir/device.h"
#include "weir/parallel_for.h"
#include "weir/pool.h"

namespace {

struct step_of {  // one step of "training"
  std::uint32_t* weights;
  std::uint32_t seed;
  WEIR_HOST_DEVICE void operator()(std::size_t i) const {
    weights[i] = weights[i] * 1664525u + seed + static_cast<std::uint32_t>(i);
  }
};

class model {
 public:
  model(char const* name, std::size_t bytes, std::uint32_t seed) : pool_(name), seed_(seed) {
    weir::pool_guard const here(pool_);
    for (int i = 0; i < layers; ++i) {
      layers_.emplace_back(bytes / layers);
      weir::fill(layers_.back().data(), std::byte{0}, layers_.back().size());
    }
  }
  weir::pool& memory() { return pool_; }
  void train() {
    ++steps_;
    for (weir::buffer& layer : layers_) {
      auto* const weights = static_cast<std::uint32_t*>(layer.data());
      weir::parallel_for(weir::current_stream(), layer.size() / 4, {weir::updates(layer)}, step_of{weights, seed_});
    }
  }
  bool right() const {  // as the same steps on the host
    for (weir::buffer const& layer : layers_) {
      std::vector<std::uint32_t> there(layer.size() / 4);
      weir::copy(there.data(), layer.data(), layer.size());
      for (std::size_t i = 0; i < there.size(); i += 97) {
        std::uint32_t expected = 0;
        for (int s = 0; s < steps_; ++s)
          expected = expected * 1664525u + seed_ + static_cast<std::uint32_t>(i);
        if (there[i] != expected)
          return false;
      }
    }
    return true;
  }

 private:
  static constexpr int layers = 8;
  weir::pool pool_;
  std::vector<weir::buffer> layers_;
  std::uint32_t seed_;
  int steps_ = 0;
};

double ms_of(auto work) {
  auto const from = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - from).count();
}

}  // namespace

int main(int argc, char** argv) try {
  std::size_t const mib = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 64;
  if (argc > 2 || mib == 0)
    return std::fputs("usage: turns [MIB]\n", stderr), 2;
  std::size_t const bytes = mib << 20;
  weir::set_memory_limit(bytes + bytes / 2);
  model first("first", bytes, 1);
  first.memory().sleep();
  model second("second", bytes, 2);
  std::printf("two models of %zu MiB on a device limited to %zu MiB\n", mib, (bytes + bytes / 2) >> 20);
  model *awake = &second, *asleep = &first;
  for (int turn = 0; turn < 6; ++turn) {
    awake->train();
    weir::synchronize();
    double const down = ms_of([&] { awake->memory().sleep(); }), up = ms_of([&] { asleep->memory().wake(); });
    std::swap(awake, asleep);
    std::printf("%s sleeps in %.1f ms, %s wakes in %.1f ms\n", asleep->memory().name().c_str(), down,
                awake->memory().name().c_str(), up);
  }
  bool ok = awake->right();
  awake->memory().sleep();
  asleep->memory().wake();
  ok = asleep->right() && ok;
  std::printf("every weight is as if both had stayed: %s\n", ok ? "ok" : "WRONG");
  return examples::ending("turns", ok ? 0 : 1);
} catch (std::exception const& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
