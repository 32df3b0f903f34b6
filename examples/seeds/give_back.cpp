// Topic 1: assigning, moving and dropping tensors of 1 GiB, and the articles' advice for saving memory.
#include <numeric>
#include <vector>

#include "examples/seeds/topics.h"
#include "weir/tensor.h"

namespace seeds {
namespace {

void a_to_e(table& t, std::int64_t g) {
  auto const one = [&](weir::device on) { return weir::zeros({g / 4}, {.on = on}); };
  std::int64_t const off = g / 8;  // tolerance for the system's count of process memory
  t.row("", {exactly(0), exactly(0)}, "");
  weir::tensor a = one(weir::gpu);
  t.row("a = zeros(1 GiB)", {exactly(g), held_for(g), between(-off, g / 2)}, "device +1 GB, and the context");
  weir::tensor b = one(weir::gpu);
  t.row("b = zeros(1 GiB)", {exactly(2 * g), held_for(2 * g), near(0, off)}, "device +1 GB");
  b = b.to(weir::cpu);
  t.row("b = b.to(cpu)", {exactly(g), held_for(2 * g), near(g, off)},
        "memory +1 GB, device only -0.1: kept for the next");
  weir::tensor c = one(weir::gpu);
  t.row("c = zeros(1 GiB)", {exactly(2 * g), held_for(2 * g), near(0, off)}, "device +0.1: in b's place");
  c = one(weir::gpu);
  t.row("c = zeros(1 GiB), over the old c", {exactly(2 * g), held_for(3 * g), near(0, off)},
        "device +1 GB: both lived for a moment");
  t.holds(weir::max_memory_allocated() == static_cast<std::size_t>(3 * g),
          "most allocated is 3 GiB: the new value is made before the old one goes");
  weir::tensor d = one(weir::gpu);
  t.row("d = zeros(1 GiB)", {exactly(3 * g), held_for(3 * g), near(0, off)}, "as before: in the old c's place");
  d = {};
  t.row("del d", {exactly(2 * g), held_for(3 * g), near(0, off)}, "as before: kept");
  weir::tensor e = one(weir::cpu);
  t.row("e = zeros(1 GiB) on the cpu", {exactly(2 * g), held_for(3 * g), near(g, off)}, "memory +1 GB");
  e = e.to(weir::gpu);
  t.row("e = e.to(gpu)", {exactly(3 * g), held_for(3 * g), near(-g, off)},
        "memory -1 GB at once, device as before: in d's place");
  weir::reset_peak_memory_stats();
  c = {};
  c = one(weir::gpu);
  t.row("c dropped first, then zeros(1 GiB)", {exactly(3 * g), held_for(3 * g), near(0, off)},
        "its advice: needs no second place");
  t.holds(weir::max_memory_allocated() == static_cast<std::size_t>(3 * g), "most allocated since is 3 GiB, not 4");
}

// A training step keeps each layer's output for its backward pass.
std::int64_t kept_by_a_step(std::int64_t batch, std::int64_t width, int layers, weir::dtype type) {
  weir::reset_peak_memory_stats();
  auto const before = static_cast<std::int64_t>(weir::memory_allocated());
  std::vector<weir::tensor> kept;
  for (int i = 0; i < layers; ++i)
    kept.push_back(weir::empty({batch, width}, {.dtype = type}));
  return static_cast<std::int64_t>(weir::max_memory_allocated()) - before;
}

void tips(table& t) {
  std::int64_t const batch = 64, width = 4096;
  int const layers = 8;
  std::int64_t const whole = kept_by_a_step(batch, width, layers, weir::float32);
  t.row("8 layers of 64 x 4096, and their end", {exactly(0), range{}}, "");
  t.holds(whole == batch * width * 4 * layers, "what a step keeps is batch x width x layers: " + in_words(whole));
  t.holds(kept_by_a_step(batch / 2, width, layers, weir::float32) == whole / 2, "tip 1, half the batch: half of it");
  t.holds(kept_by_a_step(batch, width, layers, weir::float16) == whole / 2, "tip 2, half precision: half of it");
  t.holds(kept_by_a_step(batch, width / 2, layers, weir::float32) == whole / 2,
          "tip 4, a model of half the width: half of it");

  std::vector<std::int64_t> const lengths = {500, 300, 220, 150, 90, 60, 40, 40};  // words per sentence
  std::int64_t const all = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}), wide = 256;
  weir::tensor padded = weir::empty({static_cast<std::int64_t>(lengths.size()), lengths[0], wide});
  t.row("a batch of 8 sentences, padded to 500", {exactly(8 * 500 * wide * 4), range{}}, "pad_packed_sequence");
  padded = {};
  weir::tensor const packed = weir::empty({all, wide});
  t.row("tip 7: packed, one after the other", {exactly(1400 * wide * 4), range{}},
        "pack_padded_sequence: what is there, no more");
}

}  // namespace

int give_back(settings const& with) {
  std::int64_t const g = (1 << 30) / static_cast<std::int64_t>(with.touched_part);
  machine const on(with, {.devices = 1, .memory = static_cast<std::size_t>(4 * g)}, {});
  table t(with, "1. Give back and reuse" +
                    (with.touched_part > 1 ? "; 1 GiB of the article is " + in_words(g) + " here" : std::string()));
  a_to_e(t, g);
  weir::empty_cache();
  tips(t);
  return t.failures();
}

}  // namespace seeds
