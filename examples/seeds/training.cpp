// Topic 5: the memory that a training step keeps, when it is freed, and how to keep less.
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>

#include "examples/seeds/tape.h"
#include "examples/seeds/topics.h"

namespace seeds {
namespace {

constexpr std::int64_t width = 128, layers = 8, matrix = width * width * 4;

struct network {
  std::vector<var> weights;
  network() {
    weir::manual_seed(1);
    for (std::int64_t i = 0; i < layers; ++i)
      weights.push_back(var::parameter(weir::randn({width, width}).mul_(0.3)));
  }
  var layer(var const& h, std::int64_t i) const { return sin(matmul(h, weights[static_cast<std::size_t>(i)])); }
  var forward(var h, std::int64_t from = 0, std::int64_t to = layers) const {
    for (std::int64_t i = from; i < to; ++i)
      h = layer(h, i);
    return h;
  }
  var forward_checkpointed(var h, std::int64_t segment) const {
    for (std::int64_t i = 0; i < layers; i += segment)
      h = checkpoint([this, i, segment](var const& x) { return forward(x, i, i + segment); }, h);
    return h;
  }
  void clear_gradients() {
    for (var& w : weights)
      w.clear_gradient();
  }
  std::vector<float> gradients() const {
    std::vector<float> all;
    for (var const& w : weights) {
      weir::tensor const g = w.gradient().cpu();
      all.insert(all.end(), g.host<float>().begin(), g.host<float>().end());
    }
    return all;
  }
};

std::int64_t allocated() {
  return static_cast<std::int64_t>(weir::memory_allocated());
}
std::int64_t peak() {
  return static_cast<std::int64_t>(weir::max_memory_allocated());
}
constexpr std::int64_t scalars = 64 << 10;  // losses, partial sums and tolerance of a peak

// Returns: the norm of a - b relative to the norm of b.
double apart(std::vector<float> const& a, std::vector<float> const& b) {
  double off = a.size() == b.size() ? 0 : INFINITY, all = 1e-30;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    double const x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
    off += (x - y) * (x - y), all += y * y;
  }
  return std::sqrt(off / all);
}

// The article's own example.
void a_times_b(table& t) {
  std::int64_t const one = 40448, before = allocated();  // 100 x 100 floats
  var const a = var::parameter(weir::randn({100, 100})), b = var::parameter(weir::randn({100, 100}));
  {
    var loss = mean(sin(mul(a, b)));
    t.row("loss = (a * b).sin().mean()", {near(before + 3 * one, 1024), range{}}, "c is kept for the backward pass");
    backward(loss);
    t.row("loss.backward()", {near(before + 4 * one, 1024), range{}}, "c goes, the gradients come");
    std::string why;
    try {
      backward(loss);
    } catch (weir::invalid_use const& e) {
      why = e.what();
    }
    t.holds(why.find("retained") != std::string::npos, "a second backward() is refused: " + why);
    var const again = mean(sin(mul(a, b)));
    backward(again, graph::retained);
    t.row("again, with retain_graph", {near(before + 5 * one, 1024), range{}}, "c stays");
    backward(again);
    t.row("backward() again", {near(before + 4 * one, 1024), range{}}, "c goes");
  }
  no_grad const off;
  var const loss = mean(sin(mul(a, b)));
  t.row("with no_grad", {near(before + 4 * one, 1024), range{}}, "nothing is kept");
  t.holds(!loss.is_tracked() && a.gradient().defined(), "the loss has no history; a's gradient is still there");
}

void steps(table& t, network& net, std::int64_t batch) {
  std::int64_t const parameters = layers * matrix, activation = batch * width * 4, before = allocated();
  var const x(weir::randn({batch, width}));
  std::int64_t const base = before + activation;
  {
    var const loss = mean(net.forward(x));
    // Each layer keeps the inputs of its product and of its sine. The last output has no consumer.
    t.row("8 layers, batch " + std::to_string(batch) + ": forward",
          {near(base + (2 * layers - 1) * activation, scalars), range{}}, "activations pile up");
    backward(loss);
  }
  t.row("backward", {near(base + parameters, scalars), range{}}, "they go, the gradients come");
  std::vector<float> const right = net.gradients();
  net.clear_gradients();
  weir::reset_peak_memory_stats();
  backward(mean(net.forward(x)));
  std::int64_t const plain = peak() - before;
  // bytes: a GPU's workspace for products, part of every peak
  std::int64_t const library = weir::runtime::current().is_simulated() ? 0 : 32 << 20;
  net.clear_gradients();
  weir::reset_peak_memory_stats();
  std::int64_t const made = products_made();
  backward(mean(net.forward_checkpointed(x, 2)));
  std::int64_t const less = peak() - before;
  t.row("a step with checkpoint(2 layers)", {near(base + parameters, scalars), range{}}, "recomputed, not kept");
  t.holds(less - library < (plain - library) * 2 / 3,
          "its peak is " + in_words(less) + " over the parameters, without " + in_words(plain));
  t.holds(products_made() - made == 2 * layers && net.gradients() == right,
          "for twice the forward products, and the same gradients to the bit");
  net.clear_gradients();
  weir::reset_peak_memory_stats();
  for (std::int64_t i = 0; i < 4; ++i)
    backward(mean(net.forward(var(x.value().slice(0, i * batch / 4, (i + 1) * batch / 4)))));
  for (var& w : net.weights)
    w.gradient().mul_(0.25);
  std::int64_t const accumulated = peak() - before;
  t.row("four steps of a quarter batch, accumulated", {near(base + parameters, scalars), range{}},
        "gradient accumulation");
  // Four partial sums round differently from one, so the gradients agree only approximately.
  t.holds(accumulated - library < (plain - library) * 2 / 3 && apart(net.gradients(), right) < 0.01,
          "its peak is " + in_words(accumulated) + ", and the gradients are those of the whole batch but for rounding");
  net.clear_gradients();
}

// Bytes: parameters + batch x activations kept per sample.
void by_batch(table& t, network& net) {
  std::int64_t const before = allocated();
  std::int64_t last = 0;
  for (std::int64_t const batch : {128, 256, 512}) {
    var const loss = mean(net.forward(var(weir::ones({batch, width}))));
    std::int64_t const kept = allocated() - before;
    t.holds(last == 0 || std::abs(kept - 2 * last) < scalars,
            "batch " + std::to_string(batch) + " keeps " + in_words(kept) + (last ? ": twice as much" : ""));
    last = kept;
  }
  t.row("the losses dropped", {near(before, scalars), range{}}, "parameters + batch x activations");
}

void kept_losses(table& t, network& net, std::int64_t batch) {
  std::int64_t const before = allocated(), activation = batch * width * 4;
  var const x(weir::randn({batch, width}));
  weir::record_memory_history();
  {
    std::vector<var> all_losses;
    for (int i = 0; i < 3; ++i)
      all_losses.push_back(mean(net.forward(x)));
    t.row("all_losses.append(loss), three times",
          {near(before + activation + 3 * (2 * layers - 1) * activation, scalars), range{}},
          "each keeps its whole graph");
    std::vector<weir::line_statistics> const lines = weir::memory_by_line();
    std::string const where = lines.empty() || !lines[0].where.file_name() ? "" : lines[0].where.file_name();
    t.holds(where.find("training.cpp") != std::string::npos && lines[0].bytes >= 3 * (layers - 1) * activation,
            "memory_by_line names the line: " + where.substr(where.rfind('/') + 1) + ":" +
                std::to_string(lines.empty() ? 0 : lines[0].where.line()) + ", " +
                in_words(lines.empty() ? 0 : lines[0].bytes));
  }
  weir::stop_memory_history();
  std::vector<var> all_losses;
  for (int i = 0; i < 3; ++i)
    all_losses.push_back(mean(net.forward(x)).detach());
  t.row("all_losses.append(loss.detach())", {near(before + activation, scalars), range{}}, "the losses alone");
}

// Loads a file of parameters onto a device that holds the same parameters already.
void loaded(table& t, network& net) {
  std::filesystem::path const path =
      std::filesystem::temp_directory_path() / ("weir_seeds_" + std::to_string(::getpid()));
  {
    std::ofstream out(path, std::ios::binary);
    for (var const& w : net.weights) {
      weir::tensor const h = w.value().cpu();
      out.write(static_cast<char const*>(h.data()), static_cast<std::streamsize>(h.nbytes()));
    }
  }
  weir::tensor const was = net.weights[3].value().cpu();
  for (var& w : net.weights)
    weir::tensor(w.value()).zero_();
  std::int64_t const before = allocated();
  weir::reset_peak_memory_stats();
  std::ifstream in(path, std::ios::binary);
  weir::tensor const staging = weir::empty({width, width}, {.on = weir::cpu, .kind = weir::memory_kind::pinned});
  for (var& w : net.weights) {
    in.read(static_cast<char*>(staging.data()), static_cast<std::streamsize>(staging.nbytes()));
    weir::tensor(w.value()).copy_(staging);
  }
  std::filesystem::remove(path);
  t.row("parameters loaded from a file, by copy_", {exactly(before), range{}},
        "map_location='cpu', then load_state_dict");
  t.holds(peak() - before < matrix && weir::sum(net.weights[3].value()).item<float>() == weir::sum(was).item<float>(),
          "no second copy on the device at any moment, and they are the ones that were written");
}

}  // namespace

int training(settings const& with) {
  machine const on(with, {.devices = 1, .memory = 512_MiB}, {});
  table t(with, "5. Training memory");
  t.row("", {exactly(0), exactly(0)}, "");
  a_times_b(t);
  network net;
  t.row("8 parameters of 128 x 128", {near(layers * matrix, scalars), range{}}, "");
  steps(t, net, 512);
  by_batch(t, net);
  kept_losses(t, net, 256);
  loaded(t, net);
  return t.failures();
}

}  // namespace seeds
