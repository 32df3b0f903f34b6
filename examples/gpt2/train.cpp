// A rank's training: LibTorch computes, weir reduces gradients during the backward pass and updates all parameters in
// one launch. LibTorch's AdamW for C++ has some ten launches for each of the 148 parameters.
// Threads: see gpt2.h.
#include <ATen/Parallel.h>

#include <chrono>
#include <cstdio>
#include <optional>
#include <stdexcept>

#include "examples/gpt2/model.h"
#include "weir/checkpoint.h"
#include "weir/copy.h"
#include "weir/device.h"
#include "weir/libtorch.h"
#include "weir/observe.h"
#include "weir/optimizer.h"
#if WEIR_LIBTORCH_HAS_CUDA && TORCH_VERSION_MAJOR >= 2
#include "weir/libtorch_allocator.h"
#define GPT2_ON_WEIR 1
#else
#define GPT2_ON_WEIR 0
#endif

namespace gpt2 {
namespace {

bool is_simulated() {
  return weir::runtime::current().is_simulated();
}
// LibTorch's stream. Tensors of a simulated device lie on the host, where LibTorch works at once.
weir::stream_ref stream_of([[maybe_unused]] weir::device on) {
#if WEIR_LIBTORCH_HAS_CUDA
  if (!is_simulated())
    return weir::borrow_stream(on, c10::cuda::getCurrentCUDAStream(static_cast<at::DeviceIndex>(on.index())).stream());
#endif
  return weir::current_stream(on);
}
weir::device_span span_of(at::Tensor const& t) {
  return {t.data_ptr(), t.numel(), weir::float32};
}
weir::shape shape_of(at::Tensor const& t) {
  return weir::shape(std::span(t.sizes().data(), t.sizes().size()));
}

double mean_over(weir::communicator& rank, double here) {
  weir::buffer value(sizeof here);
  weir::copy(value.data(), &here, sizeof here);
  rank.all_reduce({value.data(), 1, weir::float64}, weir::reduce_op::average);
  weir::copy(&here, value.data(), sizeof here);
  return here;
}

// weir's AdamW. Tensors of a simulated device lie on the host: it has copies in the device's memory.
class updates {
 public:
  // Requires: each parameter has the gradient that data_parallel gave it.
  updates(model const& net, settings const& s)
      : by_(items_of(net), {.rate = s.rate, .beta2 = 0.95, .decay = s.decay, .max_norm = s.clip}) {}
  void step(weir::stream_ref on, double rate) {
    for (auto const& [host, copy] : gradients_)
      weir::copy(copy.data(), host.data_ptr(), host.nbytes());
    by_.set_rate(on, rate);
    by_.step(on);
    for (auto const& [host, copy] : parameters_)
      weir::copy(host.data_ptr(), copy.data(), host.nbytes());
  }
  std::vector<weir::state_part> state() const { return by_.state(); }

 private:
  using copies = std::vector<std::pair<at::Tensor, weir::buffer>>;
  // Weights decay, biases and norms do not.
  std::vector<weir::update_item> items_of(model const& net) {
    std::vector<weir::update_item> items;
    for (auto const& p : net.named_parameters())
      items.push_back({.parameter = reached(p.value(), parameters_),
                       .gradient = reached(p.value().grad(), gradients_),
                       .decay = p.value().dim() > 1 ? 1.0 : 0.0});
    return items;
  }
  static weir::device_span reached(at::Tensor const& t, copies& to) {
    if (!is_simulated())
      return span_of(t);
    weir::buffer const& copy = to.emplace_back(t, weir::buffer(t.nbytes())).second;
    weir::copy(copy.data(), t.data_ptr(), t.nbytes());
    return {copy.data(), t.numel(), weir::float32};
  }
  copies parameters_, gradients_;
  weir::adamw by_;
};

// Returns: inputs and targets. [2, rows, context]
at::Tensor batch(std::vector<std::uint16_t> const& tokens, std::int64_t first_row, settings const& s, at::Device on) {
  auto const as = torch::TensorOptions(at::kLong).pinned_memory(on.is_cuda());
  at::Tensor const host = torch::empty({2, s.batch, s.context}, as);
  fill(tokens, first_row, s, host.data_ptr<std::int64_t>());
  return host.to(on, true);
}
double validate(model& net, std::vector<std::uint16_t> const& tokens, settings const& s, at::Device on) {
  torch::NoGradGuard const no_grad;
  double loss = 0;
  std::int64_t const passes = std::max<std::int64_t>(32 / s.batch, 1);
  for (std::int64_t i = 0; i < passes; ++i) {
    at::Tensor const rows = batch(tokens, i * s.batch, s, on);
    loss += net.forward(rows[0], rows[1]).item<double>() / static_cast<double>(passes);
  }
  return loss;
}

void read_parameters(model const& net, weir::checkpoint_reader const& file, settings const& s) {
  for (auto const& p : net.named_parameters()) {
    // A file of GPT2Model, as the published ones are, has no name before those of its parts.
    std::string const name = file.find(p.key()) ? p.key() : p.key().substr(std::string("transformer.").size());
    auto const* const found = file.find(name);
    if (!found || found->extents != shape_of(p.value()))
      throw std::runtime_error(s.load + ": " + name + (found ? " is " + found->extents.str() : " is missing") +
                               ", the model's is " + shape_of(p.value()).str() +
                               "; give --layers, --width, --context and --vocabulary of the file");
    file.read(name, span_of(p.value()));
  }
}
// Returns: steps so far. A file without an optimizer's state, as others write it, begins at 0.
std::int64_t read_state(updates const& optimizer, weir::checkpoint_reader const& file) {
  if (!file.find("adamw.steps"))
    return 0;
  for (weir::state_part const& part : optimizer.state())
    file.read("adamw." + part.name, part.data);
  return std::stoll(file.metadata().at("step"));
}
void write(std::string const& path, model const& net, updates const& optimizer, std::int64_t step) {
  std::vector<weir::checkpoint_item> items;
  for (auto const& p : net.named_parameters())
    items.emplace_back(p.key(), span_of(p.value()), shape_of(p.value()));
  for (weir::state_part const& part : step > 0 ? optimizer.state() : std::vector<weir::state_part>())
    items.emplace_back("adamw." + part.name, part.data, weir::shape{part.data.count});
  weir::checkpoint_writer file(path);
  // transformers asks for the format.
  file.save(items, {{"format", "pt"}, {"step", std::to_string(step)}});
  file.finish();
}

}  // namespace

void prepare(settings const& s) {
  at::globalContext().setAllowTF32CuBLAS(s.dtype == "tf32");
  if (is_simulated())
    at::set_num_threads(1);  // each rank computes on a thread of its own
#if GPT2_ON_WEIR
  else if (s.allocator == "weir")
    weir::libtorch::use_allocator();
#endif
}

outcome train(settings const& s, corpus const& from, weir::communicator& rank, bool prints) {
  weir::device const on = rank.device();
  weir::set_device(on);
  at::Device const here =
      is_simulated() ? at::Device(at::kCPU) : at::Device(at::kCUDA, static_cast<at::DeviceIndex>(on.index()));
  auto const net = std::make_shared<model>(s);
  std::optional<weir::checkpoint_reader> file;
  if (s.load.empty())
    net->initialise(s.seed);
  else
    read_parameters(*net, file.emplace(s.load, weir::source_location::current()), s);
  net->to(here);
  std::optional<weir::dtype> reduce_as;
  if (s.reduce == "bf16")
    reduce_as = weir::bfloat16;
  weir::libtorch::data_parallel all(net, rank, {.buckets = {.reduce_as = reduce_as}});
  updates optimizer(*net, s);
  std::int64_t const first = file ? read_state(optimizer, *file) : 0;

  at::Tensor const sum = torch::zeros({}, here);  // of the losses since the last line
  auto const pass = [&](std::int64_t step, std::int64_t part) {
    std::int64_t const number = (step * rank.size() + rank.rank()) * s.accumulate + part;
    at::Tensor const rows = batch(from.training, number * s.batch, s, here);
    at::Tensor const loss = all.forward(rows[0], rows[1]) / static_cast<double>(s.accumulate);
    loss.backward();
    sum.add_(loss.detach());
  };
  outcome result;
  auto began = std::chrono::steady_clock::now();
  std::int64_t told = first;
  for (std::int64_t step = first; step < s.steps; ++step) {
    all.zero_grad();
    {
      auto const alone = all.no_sync();
      for (std::int64_t part = 0; part + 1 < s.accumulate; ++part)
        pass(step, part);
    }
    pass(step, s.accumulate - 1);
    optimizer.step(stream_of(on), s.rate * weir::warm_cosine(step, s.steps, s.warmup));
    if ((step + 1) % s.every != 0 && step + 1 != s.steps)
      continue;
    auto const steps = static_cast<double>(step + 1 - std::exchange(told, step + 1));
    result.losses.push_back(mean_over(rank, sum.item<double>() / steps));  // waits for the device
    sum.zero_();
    auto const now = std::chrono::steady_clock::now();
    double const ms = std::chrono::duration<double, std::milli>(now - std::exchange(began, now)).count() / steps;
    double const tokens = static_cast<double>(s.batch * s.context * s.accumulate * rank.size());
    if (prints)
      std::printf("step %6ld  loss %.5f  %9.2f ms  %10.0f tokens/s  %7.0f MiB reserved\n", told, result.losses.back(),
                  ms, tokens / ms * 1e3, static_cast<double>(weir::memory_reserved(on)) / (1 << 20));
    std::fflush(stdout);
  }
  if (!s.save.empty() && rank.rank() == 0) {
    weir::synchronize(on);
    if (std::string const why = rank.failure(); !why.empty())
      throw std::runtime_error("training stops: " + why);
    write(s.save, *net, optimizer, std::max(first, s.steps));
  }
  result.validation = validate(*net, from.validation, s, here);
  return result;
}

}  // namespace gpt2
